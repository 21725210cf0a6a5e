"""`penstock bench serve` against a server whose every answer is scripted, faults included, and against the whole path.  What is
checked is what was sent, counted and said, never how long it took."""
import csv
import html.parser
import http.server
import json
import os
import pty
import re
import signal
import subprocess
import tempfile
import threading
import time

import harness
from harness import check, equal

TOKENS = 5
ESC = "\x1b[31m"


def event(value):
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def chunk(text=None, finish=None, **more):
    choice = {"index": 0, "delta": {"content": text} if text is not None else {}, "finish_reason": finish}
    return event({"object": "chat.completion.chunk", "choices": [choice], "usage": None, **more})


def usage(prompt=7, completion=TOKENS, cached=3):
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion,
                                           "prompt_tokens_details": {"cached_tokens": cached}}})


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
DONE = event(b"[DONE]")
WHOLE = ROLE + b"".join(chunk(f"w{i} ") for i in range(TOKENS)) + chunk(finish="stop") + usage() + DONE

# Model name → (status, headers, pieces of the body).  A piece is bytes, or a word for the handler.
STREAM = {"Content-Type": "text/event-stream; charset=utf-8"}
JSON = {"Content-Type": "application/json"}
SCRIPTS = {
    "good": (200, STREAM, [WHOLE]),
    "bytes": (200, STREAM, [WHOLE[i:i + 1] for i in range(len(WHOLE))]),
    "crlf": (200, STREAM, [b": hello\r\n\r\n", WHOLE.replace(b"\n", b"\r\n")]),
    "comments": (200, STREAM, [b": still here\n\n" * 50, WHOLE, b": late\n\n"]),
    "no-usage": (200, STREAM, [WHOLE.replace(usage(), b"")]),
    "reasoning": (200, STREAM, [WHOLE.replace(b'"content": "w', b'"reasoning_content": "w')]),
    "tools": (200, STREAM, [event({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}), usage(), DONE]),
    "paced": (200, STREAM, [piece for i in range(TOKENS) for piece in (chunk(f"w{i}"), "pause")] + [usage(), DONE]),
    "one": (200, STREAM, [chunk("word", "stop"), usage(7, 1), DONE]),
    "after-done": (200, STREAM, [WHOLE, "hang"]),
    "no-done": (200, STREAM, [WHOLE.replace(DONE, b"")]),
    "cut": (200, STREAM, [WHOLE[:200], "abort"]),
    "nothing": (200, STREAM, ["abort"]),
    "empty": (200, STREAM, [ROLE, chunk(finish="stop"), usage(7, 0), DONE]),
    "error-event": (200, STREAM, [chunk("a"), event({"error": {"message": "engine " + ESC + "died", "code": "internal"}}), DONE]),
    "bad-json": (200, STREAM, [chunk("a"), event(b'{"choices": [}'), DONE]),
    "deep": (200, STREAM, [event(b'{"a": ' * 100 + b"1" + b"}" * 100), DONE]),
    "array": (200, STREAM, [event(b"[1]"), DONE]),
    "bad-usage": (200, STREAM, [chunk("a"), event({"choices": [], "usage": {"completion_tokens": -5}}), DONE]),
    "endless-line": (200, STREAM, [b"data: ", "flood"]),
    "endless-comments": (200, STREAM, ["drip"]),
    "silent": (200, STREAM, ["hang"]),
    "endless-headers": (200, STREAM, ["headers"]),
    "plain": (200, JSON, [b'{"choices": []}']),
    "429": (429, {"Retry-After": "1", **JSON}, [b'{"error": {"message": "too many requests", "code": "overloaded"}}']),
    "400": (400, JSON, [b'{"detail": "max_tokens is too large"}']),
    "500": (500, {"Content-Type": "text/html"}, [b"<html>\x1b]0;owned\x07 \xff</html>" + b"x" * 5000]),
    "endless-error": (500, JSON, ["flood"]),
    "redirect": (302, {"Location": "http://127.0.0.1:1/"}, [b""]),
    "not-http": (0, {}, [b"220 mail.example ESMTP\r\n"]),
}


class Server:
    """SCRIPTS over HTTP; remembers what was asked."""

    def __init__(self, models=b'{"data": [{"id": "good"}, {"id": "bytes"}]}', order=("good",)):
        outer = self
        self.requests, self.models, self.lock = [], models, threading.Lock()
        self.order = list(order)  # what the model "ordered" does, request by request; the last for ever
        self.active = self.peak = 0
        self.over = threading.Event()
        self.gate = None  # a barrier: answers begin when so many requests are there

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

            def log_message(self, *_):
                pass

            def do_GET(self):
                with outer.lock:
                    outer.requests.append((self.path, dict(self.headers), None))
                if outer.models is None:
                    outer.over.wait(harness.DEADLINE)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(outer.models)))
                self.end_headers()
                self.wfile.write(outer.models)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.lock:
                    outer.requests.append((self.path, dict(self.headers), body))
                    outer.active += 1
                    outer.peak = max(outer.peak, outer.active)
                    name = body["model"]
                    if name == "ordered":
                        name = outer.order.pop(0) if len(outer.order) > 1 else outer.order[0]
                self.entered = True
                try:
                    if outer.gate:
                        outer.gate.wait(harness.DEADLINE)
                    self.answer(*SCRIPTS[name])
                except ConnectionError:
                    self.close_connection = True
                finally:
                    self.leave()

            def leave(self):
                """Before the last byte is sent: the client may start its next request at once."""
                with outer.lock:
                    outer.active -= self.entered
                    self.entered = False

            def piece(self, data):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()

            def answer(self, status, headers, pieces):
                if not status:
                    self.close_connection = True
                    self.wfile.write(pieces[0])
                    return
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if pieces == ["headers"]:
                    self.flush_headers()
                    while not outer.over.is_set():
                        self.wfile.write(b"X-More: " + b"y" * 4000 + b"\r\n")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for data in pieces:
                    if data == "abort":
                        self.close_connection = True
                        return
                    while data == "flood" and not outer.over.is_set():
                        self.piece(b"z" * 65536)
                    while data == "drip" and not outer.over.wait(0.02):
                        self.piece(b": wait\n\n")
                    if data == "pause":
                        time.sleep(0.003)
                    if data == "hang":
                        outer.over.wait(harness.DEADLINE)
                        self.close_connection = True
                        return
                    if data and not isinstance(data, str):
                        self.piece(data)
                self.leave()
                self.wfile.write(b"0\r\n\r\n")

        class Quiet(http.server.ThreadingHTTPServer):
            request_queue_size, daemon_threads = 256, True

            def handle_error(self, request, address):
                pass  # clients that leave are what these tests are about

        self.httpd = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.httpd.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.httpd.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.httpd.shutdown()
        self.httpd.server_close()

    def bodies(self):
        return [body for _, _, body in self.requests if body]

    def posts(self):
        return [request for request in self.requests if request[2]]


def bench(*arguments, **options):
    return subprocess.run([harness.program("penstock"), "bench", "serve", *map(str, arguments)], capture_output=True, text=True,
                          timeout=harness.DEADLINE, **options)


def measure(server, *arguments, code=0):
    """Runs against SERVER; the JSON of its only run."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "out.json")
        done = bench("--base-url", server.url, "--input-len", 10, "--output-len", TOKENS, "--json", path, "--save-detailed",
                     *arguments)
        equal(done.returncode, code, done.stderr + done.stdout)
        equal(done.stderr if code == 0 else "", "")
        with open(path) as f:
            runs = json.load(f)["runs"]
        equal(len(runs), 1)
        runs[0]["stdout"] = done.stdout
        return runs[0]


def fails(*arguments, says):
    done = bench(*arguments)
    equal(done.returncode, 2, f"{arguments}: {done.stderr}")
    equal(done.stdout, "", arguments)
    for text in (says,) if isinstance(says, str) else says:
        check(text in done.stderr, arguments, done.stderr)
    check("--help" in done.stderr, done.stderr)


def test_wrong_options():
    fails("--nonsense", says="wrong option")
    fails("here", says="unexpected argument here")
    fails("--num-prompts", "0", says=("--num-prompts 0", "1…1000000"))
    fails("--num-prompts", "5,", says="--num-prompts 5,")
    fails("--num-prompts", "1,2,3", says="3 values for a sweep of 1")
    fails("--request-rate", "-1", says=("--request-rate -1", "0.0001…1e+06"))
    fails("--request-rate", "1,2", "--max-concurrency", "1,2", says="only one of")
    fails("--max-concurrency", "65537", says="1…65536")
    fails("--max-concurrency", ",".join("1" * 33), says="more than 32")
    fails("--burstiness", "0", says="--burstiness 0")
    fails("--base-url", "ftp://x", says="--base-url ftp://x")
    fails(*["--base-url", "http://x"] * 5, says="more than 4")
    fails("--label", "a", "--label", "b", says="--label: 2 values for 1 server")
    fails("--header", "no-value", says="NAME=VALUE")
    fails("--header", "a=b\r\nc: d", says="one line")
    fails("--goodput", "itl:5", says="--goodput itl:5")
    fails("--goodput", "ttft:5", "tpot:x", says="--goodput x")
    fails("--goodput", "ttft", says="--goodput ttft")
    fails("--percentile-metrics", "ttft,x", says="--percentile-metrics")
    fails("--metric-percentiles", "101", says="0…100")
    fails("--dataset-name", "sharegpt", says=("sharegpt", "random, prefix_repetition, custom, trace"))
    fails("--dataset-name", "custom", says="--dataset-path")
    fails("--dataset-path", "x", says="--dataset-path x")
    fails("--dataset-name", "trace", "--dataset-path", "x", "--request-rate", "1", says="--request-rate")
    fails("--trace-priority", says="--dataset-name trace")
    fails("--backend", "tgi", says="openai, openai-chat")
    fails("--endpoint", "v1", says="begin with /")
    fails("--extra-body", "{", says="--extra-body")
    fails("--extra-body", '{"stream": false}', says="stream")
    fails("--api-key", "a", "--api-key-file", "b", says="--api-key")
    fails("--preset", "nothing", says="lmdeploy, agents")
    fails("--random-input-len", "99999999", says="--random-input-len 99999999")
    fails("--temperature", "warm", says="--temperature warm")
    done = subprocess.run([harness.program("penstock"), "bench"], capture_output=True, text=True)
    equal((done.returncode, done.stdout), (2, ""))
    done = subprocess.run([harness.program("penstock"), "bench", "nonsense"], capture_output=True, text=True)
    check(done.returncode == 2 and "nonsense" in done.stderr, done.stderr)
    done = bench("--help")
    check(done.returncode == 0 and done.stdout.startswith("usage: penstock bench serve"), done.stdout)


def test_counts_and_bodies():
    with Server() as server:
        run = measure(server, "--num-prompts", 20, "--max-concurrency", 4, "--api-key", "sk-x", "--header", "X-One=1", "X-Two: 2",
                      "--ignore-eos", "--top-p", "0.5", "--extra-body", '{"user": "me", "temperature": 0.25}', "--num-warmups", "3",
                      "--goodput", "ttft:1e6", "tpot:1e6", "e2el:1e6", "--metric-percentiles", "25,99.9")
        equal((run["completed"], run["failed"], run["cancelled"], run["unfinished"]), (20, 0, 0, 0))
        equal((run["total_input_tokens"], run["total_output_tokens"], run["cached_input_tokens"]), (140, 20 * TOKENS, 60))
        equal((run["text_chunks"], run["without_usage"]), (20 * TOKENS, 0))
        equal((run["model_id"], run["request_rate"], run["max_concurrency"]), ("good", "inf", 4))
        check(1 <= run["max_concurrent_requests"] <= 4 and server.peak <= 4, run, server.peak)
        check(abs(run["request_goodput"] - run["request_throughput"]) < 1e-6, run)
        check(abs(run["output_throughput"] * run["duration"] - 100) < 1e-3, run)
        check(abs(run["total_token_throughput"] * run["duration"] - 240) < 1e-3, run)
        check(0 < run["mean_ttft_ms"] <= run["mean_e2el_ms"], run)
        check("p25_itl_ms" in run and "p99.9_e2el_ms" in run and "p99_ttft_ms" not in run, run)
        equal(len(server.posts()), 23, "warm-up requests are sent and not counted")
        for path, headers, body in server.posts():
            equal(path, "/v1/chat/completions")
            equal((headers["Authorization"], headers["X-One"], headers["X-Two"]), ("Bearer sk-x", "1", "2"))
            check("Expect" not in headers, headers)
            equal({k: v for k, v in body.items() if k != "messages"},
                  {"model": "good", "max_tokens": TOKENS, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
                   "top_p": 0.5, "user": "me", "temperature": 0.25})
            equal((len(body["messages"]), body["messages"][0]["role"]), (1, "user"))
            equal(len(body["messages"][0]["content"].split(" ")), 10)
        for line in ("Successful requests:                     20", "Failed requests:                         0", "Mean TTFT (ms):",
                     "P99.9 E2EL (ms):", "Request goodput (req/s):", "Total generated tokens:                  100"):
            check(line in run["stdout"], line, run["stdout"])
        server.requests.clear()
        run = measure(server, "--num-prompts", 2, "--backend", "openai", "--model", "good", "--temperature", "server")
        for path, _, body in server.posts():
            equal((path, len(body["prompt"].split(" "))), ("/v1/completions", 10))
            check("temperature" not in body and "messages" not in body, body)


def test_same_seed_same_requests():
    with Server() as server:
        def ask(*arguments):
            server.requests.clear()
            measure(server, "--num-prompts", 12, "--max-concurrency", 1, "--random-range-ratio", "0.5", *arguments)
            return server.bodies()
        first = ask("--seed", 3)
        equal(ask("--seed", 3), first)
        check(ask("--seed", 4) != first)
        lengths = {len(body["messages"][0]["content"].split(" ")) for body in first}
        check(lengths <= set(range(5, 16)) and len(lengths) > 3, lengths)


def test_shared_prefix():
    with Server() as server:
        measure(server, "--num-prompts", 40, "--dataset-name", "prefix_repetition", "--prefix-repetition-prefix-len", 30,
                "--prefix-repetition-num-prefixes", 3)
        texts = [body["messages"][0]["content"].split(" ") for body in server.bodies()]
        equal({len(text) for text in texts}, {40})
        equal(len({tuple(text[:30]) for text in texts}), 3)
        equal(len({tuple(text[30:]) for text in texts}), 40)


def test_good_streams():
    """Whatever the cuts, the comments and the line ends, the counts are the same."""
    with Server() as server:
        for model in ("good", "bytes", "crlf", "comments", "reasoning", "no-usage", "after-done"):
            run = measure(server, "--num-prompts", 2, "--model", model)
            equal((run["completed"], run["failed"], run["text_chunks"], run["total_output_tokens"]), (2, 0, 2 * TOKENS, 2 * TOKENS), model)
            equal(run["without_usage"], 2 if model == "no-usage" else 0, model)
            equal(run["total_input_tokens"], 20 if model == "no-usage" else 14, model)
        run = measure(server, "--num-prompts", 2, "--model", "one")
        equal((run["completed"], run["total_output_tokens"], run["mean_tpot_ms"], run["mean_itl_ms"]), (2, 2, 0, 0))
        run = measure(server, "--num-prompts", 2, "--model", "tools")
        equal((run["completed"], run["text_chunks"], run["total_output_tokens"]), (2, 2, 2 * TOKENS))


FAULTS = {
    "no-done": ("truncated", None, "without [DONE]"),
    "cut": ("truncated", None, ""),
    "nothing": ("truncated", None, ""),
    "empty": ("empty", None, "no token"),
    "error-event": ("server", None, "engine ?[31mdied"),
    "bad-json": ("protocol", None, "event 2"),
    "deep": ("protocol", None, "nested deeper than 32"),
    "array": ("protocol", None, "must be a JSON object"),
    "bad-usage": ("protocol", None, "usage.completion_tokens"),
    "endless-line": ("protocol", None, "longer than 1048576 bytes"),
    "endless-comments": ("timeout", None, ""),
    "silent": ("timeout", None, ""),
    "endless-headers": ("protocol", None, "headers without end"),
    "plain": ("protocol", None, "application/json"),
    "429": ("http", 429, "too many requests"),
    "400": ("http", 400, "max_tokens is too large"),
    "500": ("http", 500, "<html>"),
    "endless-error": ("http", 500, ""),
    "redirect": ("http", 302, ""),
    "not-http": ("protocol", None, ""),
}


def test_faults():
    """Each fault is counted under its kind, says why, and holds nothing up; no byte of a stranger reaches the terminal raw."""
    with Server() as server:
        for model, (kind, status, says) in FAULTS.items():
            run = measure(server, "--num-prompts", 3, "--model", model, "--request-timeout", "0.5" if kind == "timeout" else "30", code=1)
            equal((run["completed"], run["failed"]), (0, 3), model)
            equal(len(run["errors"]), 1, f"{model}: {run['errors']}")
            error = run["errors"][0]
            equal((error["kind"], error.get("http"), error["count"]), (kind, status, 3), f"{model}: {error}")
            check(says in error["message"], model, error)
            check(not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", run["stdout"]), model, run["stdout"])
            equal((run["mean_ttft_ms"], run["output_throughput"]), (0, 0), model)


def test_nobody_listens():
    url = f"http://127.0.0.1:{harness.free_port()}"
    done = bench("--base-url", url)
    check(done.returncode == 1 and "/v1/models" in done.stderr and done.stdout == "", done.stderr, done.stdout)
    done = bench("--base-url", url, "--model", "m", "--num-prompts", 5)
    check(done.returncode == 1 and re.search(r"^  connect: +5 ", done.stdout, re.M), done.stdout, done.stderr)
    done = bench("--base-url", url, "--model", "m", "--ready-check-timeout-sec", "0.2")
    check(done.returncode == 1 and "not ready after 0.2 s: connect" in done.stderr and done.stdout == "", done.stderr)
    with Server(models=b'{"data": []}') as server:
        done = bench("--base-url", server.url)
        check(done.returncode == 1 and "--model" in done.stderr, done.stderr)
        done = bench("--base-url", server.url, "--model", "good", "--num-prompts", 1, "--ready-check-timeout-sec", 5)
        equal((done.returncode, len(server.posts())), (0, 2), done.stderr)
        done = bench("--base-url", server.url.replace("http:", "https:"), "--model", "m", "--num-prompts", 2)
        check(done.returncode == 1 and re.search(r"^  tls: +2 ", done.stdout, re.M), done.stdout, done.stderr)


def test_faults_beside_good_requests():
    """A server that refuses some: the others are measured, the run is a success, and the kinds are told apart."""
    with Server(order=["good", "429", "good", "cut", "429", "good"]) as server:
        run = measure(server, "--num-prompts", 6, "--max-concurrency", 1, "--model", "ordered")
        equal((run["completed"], run["failed"]), (3, 3))
        equal(sorted((e["kind"], e.get("http"), e["count"]) for e in run["errors"]), [("http", 429, 2), ("truncated", None, 1)])
        outcomes = [request["outcome"] for request in run["requests"]]
        equal(outcomes, ["success", "http", "success", "truncated", "http", "success"])
        for request in run["requests"]:
            if request["outcome"] == "success":
                equal((request["input_len"], request["output_len"], len(request["itls"])), (7, TOKENS, TOKENS - 1))
                check(0 < request["ttft"] <= request["latency"], request)


def test_concurrency_is_reached_and_kept():
    with Server() as server:
        server.gate = threading.Barrier(6)  # a client that never has six on their way would hang here
        run = measure(server, "--num-prompts", 12, "--max-concurrency", 6)
        equal((run["completed"], run["max_concurrent_requests"], server.peak), (12, 6, 6))
        server.gate = threading.Barrier(9)
        run = measure(server, "--num-prompts", 9)
        equal((run["completed"], run["max_concurrent_requests"], run["max_concurrency"]), (9, 9, None))


def test_request_rate():
    """Arrivals end where count / rate says, so the run cannot be shorter; and no request leaves before it is due."""
    with Server() as server:
        for burstiness in ("1", "0.3", "50"):
            run = measure(server, "--num-prompts", 30, "--request-rate", 100, "--burstiness", burstiness)
            due = [request["due_s"] for request in run["requests"]]
            equal(due, sorted(due))
            check(abs(due[-1] - 0.3) < 1e-6, due)
            check(run["duration"] >= 0.3, run["duration"])
            check(all(request["start_s"] >= request["due_s"] - 1e-6 for request in run["requests"]), run["requests"])
            equal(run["request_rate"], 100)


def test_custom_file():
    with Server() as server, tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "data.jsonl")
        with open(path, "w") as f:
            f.write('{"prompt": "caf\u00e9", "max_tokens": 3}\n\n'
                    '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "id": 5}\n'
                    '{"prompt": "c", "output_tokens": 9}\n')
        data = ("--dataset-name", "custom", "--dataset-path", path)
        measure(server, *data, "--num-prompts", 3, "--max-concurrency", 1, "--disable-shuffle", "--custom-output-len", 17)
        equal([(body["messages"], body["max_tokens"]) for body in server.bodies()],
              [([{"role": "user", "content": "caf\u00e9"}], 3),
               ([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], 17), ([{"role": "user", "content": "c"}], 9)])
        server.requests.clear()
        run = measure(server, *data, "--num-prompts", 7)
        equal(run["completed"], 7)
        sent = [body["messages"][-1]["content"] for body in server.bodies()]
        equal(sorted(set(sent)), ["c", "caf\u00e9", "u"], "oversampled")
        check(all(sent.count(text) in (2, 3) for text in sent), sent)
        equal(measure(server, *data, "--num-prompts", 7, "--no-oversample")["completed"], 3)
        done = bench("--base-url", server.url, *data, "--backend", "openai")
        check(done.returncode == 1 and f"{path}:3: messages need --backend openai-chat" in done.stderr, done.stderr)
        done = bench("--base-url", server.url, "--dataset-name", "custom", "--dataset-path", path + ".none")
        check(done.returncode == 1 and "No such file" in done.stderr, done.stderr)


def test_trace():
    with Server() as server, tempfile.TemporaryDirectory() as directory:
        path, keys = os.path.join(directory, "trace.csv"), os.path.join(directory, "keys")
        with open(path, "w") as f:
            f.write("arrival_s,key,class,prompt_tokens,shared_prefix_id,shared_prefix_tokens,output_tokens,cancel_after_s\n"
                    "0.2,b,1,12,p,8,5,\n0.0,a,0,10,p,8,4,\n0.1,a,,9,,,3,600\n0.3,b,-2,11,q,8,6,\n")
        with open(keys, "w") as f:
            f.write("# tenants\na sk-a\nb sk-b\n")
        run = measure(server, "--dataset-name", "trace", "--dataset-path", path, "--trace-key-file", keys, "--trace-priority")
        equal((run["completed"], run["num_prompts"], run["request_rate"]), (4, 4, "trace"))
        check(run["duration"] >= 0.3, run)
        seen = sorted(server.posts(), key=lambda r: r[2]["max_tokens"])
        equal([r[2]["max_tokens"] for r in seen], [3, 4, 5, 6])
        equal([r[1]["Authorization"] for r in seen], ["Bearer sk-a", "Bearer sk-a", "Bearer sk-b", "Bearer sk-b"])
        equal([r[2].get("priority") for r in seen], [0, 0, 1, -2])
        words = [r[2]["messages"][0]["content"].split(" ") for r in seen]
        equal([len(w) for w in words], [9, 10, 12, 11])
        check(words[1][:8] == words[2][:8] != words[3][:8], words)
        with open(path, "w") as f:
            f.write("arrival_s,prompt_tokens,output_tokens,cancel_after_s\n0,5,5,0.05\n0,5,5,0.05\n")
        run = measure(server, "--dataset-name", "trace", "--dataset-path", path, "--model", "silent", code=1)
        equal((run["completed"], run["failed"], run["cancelled"]), (0, 0, 2), "cancelled as the trace says: no failure, no success")
        with open(path, "w") as f:
            f.write("arrival_s,prompt_tokens,output_tokens\n0,5,x\n")
        done = bench("--base-url", server.url, "--dataset-name", "trace", "--dataset-path", path)
        check(done.returncode == 1 and f'{path}: line 2, column output_tokens: "x"' in done.stderr, done.stderr)


class Page(html.parser.HTMLParser):
    """What a page loads, whether its tags match, and its text."""
    VOID = {"meta", "br", "link", "img"}

    def __init__(self, text):
        super().__init__()
        self.stack, self.tags, self.loads, self.text = [], [], [], ""
        self.feed(text)
        self.close()
        equal(self.stack, [])

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.loads += [value for name, value in attributes if name in ("src", "href")]
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        equal(tag, self.stack.pop())

    def handle_data(self, data):
        self.text += data


def test_sweep_and_files():
    with Server() as server, Server() as other, tempfile.TemporaryDirectory() as directory:
        paths = {kind: os.path.join(directory, "out." + kind) for kind in ("json", "csv", "html")}
        done = bench("--base-url", server.url, "--base-url", other.url, "--model", "paced", "--label", "=<one> & \"1\"", "--label", "two", "--input-len", 4,
                     "--output-len", TOKENS, "--max-concurrency", "1,2,4", "--num-prompts", "2,4,6", "--metadata", "commit=abc", "gpu=<none>",
                     "--percentile-metrics", "ttft,tpot", *[f"--{kind}={path}" for kind, path in paths.items()])
        equal(done.returncode, 0, done.stderr)
        with open(paths["json"]) as f:
            report = json.load(f)
        equal(report["metadata"], {"commit": "abc", "gpu": "<none>"})
        runs = report["runs"]
        equal([(run["label"], run["max_concurrency"], run["completed"]) for run in runs],
              [(label, c, n) for label in ('=<one> & "1"', "two") for c, n in ((1, 2), (2, 4), (4, 6))])
        check("mean_ttft_ms" in runs[0] and "mean_itl_ms" not in runs[0], runs[0])
        equal(sorted(map(str, server.bodies())), sorted(map(str, other.bodies())), "every server is asked the same")
        texts = [body["messages"][0]["content"] for body in server.bodies()]
        equal(len(set(texts)), 12, "every point asks something else")
        with open(paths["csv"], newline="") as f:
            rows = list(csv.DictReader(f))
        equal([int(row["completed"]) for row in rows], [2, 4, 6, 2, 4, 6])
        equal(rows[0]["label"], "'=<one> & \"1\"", "no formula for a spreadsheet")
        for row, run in zip(rows, runs):
            check(abs(float(row["median_tpot_ms"]) - run["median_tpot_ms"]) < 1e-3, row, run)
        with open(paths["html"]) as f:
            text = f.read()
        page = Page(text)
        equal(page.loads, [])
        check("url(" not in text and "<script" not in text and "@import" not in text, "loads nothing")
        check('=<one> & "1"' in page.text and "gpu=<none>" in page.text and "one" not in page.tags, page.tags)
        equal(page.tags.count("svg"), 4 + 2)
        check(page.tags.count("circle") >= 6 * 7 and "nan" not in text and "inf " not in page.text, page.tags.count("circle"))
        check("4 streams" in done.stdout.splitlines()[-1] and "two" in done.stdout.splitlines()[-1], done.stdout)
        done = bench("--base-url", server.url, "--num-prompts", 1, "--json", os.path.join(directory, "none", "x.json"))
        check(done.returncode == 1 and "cannot write" in done.stderr and "Successful requests" in done.stdout, done.stderr)


def test_presets():
    with Server() as server:
        done = bench("--base-url", server.url, "--preset", "lmdeploy", "--max-concurrency", "1,2", "--num-warmups", 0)
        equal(done.returncode, 0, done.stderr)
        equal(len(server.posts()), 16)
        for body in server.bodies():
            equal((len(body["messages"][0]["content"].split(" ")), body["max_tokens"], body["ignore_eos"]), (200, 300, True))
        server.requests.clear()
        done = bench("--base-url", server.url, "--preset", "agents", "--num-prompts", 5, "--num-warmups", 0, "--output-len", 7)
        equal((done.returncode, len(server.posts())), (0, 20), done.stderr)
        prefixes = {tuple(body["messages"][0]["content"].split(" ")[:1500]) for body in server.bodies()}
        check(len(prefixes) <= 4 * 4 and server.bodies()[0]["max_tokens"] == 7, len(prefixes))


def interrupt(server, number, *arguments):
    """Starts a run that cannot end, waits until NUMBER requests are there, and sends Ctrl-C."""
    process = subprocess.Popen([harness.program("penstock"), "bench", "serve", "--base-url", server.url, *map(str, arguments)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    harness.wait_until(lambda: len(server.requests) >= number, "requests")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=harness.DEADLINE)
    return process.returncode, out, err


def test_interrupt():
    with Server(order=["good"] * 5 + ["silent"]) as server, tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "out.json")
        code, out, err = interrupt(server, 7, "--model", "ordered", "--num-prompts", 50, "--max-concurrency", 2, "--json", path)
        equal(code, 1)
        check("interrupted" in err and "Result (interrupted)" in out, out, err)
        check(re.search(r"^Successful requests: +5 ", out, re.M) and re.search(r"^Requests not finished: +45 ", out, re.M), out)
        with open(path) as f:
            run = json.load(f)["runs"][0]
        equal((run["completed"], run["failed"], run["unfinished"], run["interrupted"]), (5, 0, 45, True))
        code, out, err = interrupt(server, 8, "--model", "silent", "--num-prompts", 5, "--num-warmups", 1)
        check(code == 1 and "interrupted" in err and out == "", out, err)
    with Server(models=None) as server:  # before there is a run
        code, out, err = interrupt(server, 1, "--connect-timeout", 3600)
        check(code == 1 and "interrupted" in err and out == "", out, err)


def test_progress_bar():
    """There is one on a terminal only, and it leaves the line empty."""
    with Server() as server:
        leader, follower = os.openpty()
        done = subprocess.run([harness.program("penstock"), "bench", "serve", "--base-url", server.url, "--num-prompts", "4", "--max-concurrency", "2"],
                              stdout=subprocess.PIPE, stderr=follower, timeout=harness.DEADLINE)
        os.close(follower)
        seen = b""
        try:
            while more := os.read(leader, 65536):
                seen += more
        except OSError:
            pass
        os.close(leader)
        equal(done.returncode, 0)
        check(b"4/4" in seen and seen.endswith(b"\r\x1b[K"), seen)
        equal(bench("--base-url", server.url, "--num-prompts", 2).stderr, "")


def test_key_files():
    with Server() as server, tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "key")
        with open(path, "w") as f:
            f.write("sk-secret\nmore\n")
        measure(server, "--num-prompts", 1, "--api-key-file", path)
        equal({request[1]["Authorization"] for request in server.requests}, {"Bearer sk-secret"})
        with open(path, "w") as f:
            f.write("two words\n")
        done = bench("--base-url", server.url, "--api-key-file", path)
        check(done.returncode == 1 and "--api-key-file" in done.stderr and "two words" not in done.stderr, done.stderr)
        done = bench("--base-url", server.url, "--api-key", "a b")
        check(done.returncode == 1 and "--api-key" in done.stderr and "a b" not in done.stderr, done.stderr)


def test_whole_path():
    """nginx with TLS, fronts, penstockd with scripted tokens: the server's counts are the tool's."""
    text = "The water runs down to the wheel and turns it."
    with harness.Stack(script=harness.script(text, pace=200), nginx=True) as stack:
        tokens = len(stack.ids(text))
        server = type("Stack", (), {"url": stack.nginx.url})
        tls = ("--cacert", stack.nginx.certificate, "--api-key", stack.key)
        run = measure(server, "--num-prompts", 24, "--max-concurrency", 6, "--output-len", 100, *tls)
        equal((run["completed"], run["failed"], run["without_usage"]), (24, 0, 0), run["errors"])
        equal(run["model_id"], stack.model_name())
        equal(run["total_output_tokens"], 24 * tokens)
        check(run["total_input_tokens"] >= 24 * 10, run)
        check(run["text_chunks"] <= 24 * tokens and run["mean_tpot_ms"] > 0, run)
        metrics = stack.metrics()
        for name, value in (("penstock_generated_tokens_total", 24 * tokens), ("penstock_prompt_tokens_total", run["total_input_tokens"])):
            equal(metrics[name], value, name)
        run = measure(server, "--num-prompts", 3, "--cacert", stack.nginx.certificate, "--model", "m", code=1)
        equal([(e["kind"], e["http"], e["count"]) for e in run["errors"]], [("http", 401, 3)])
        run = measure(server, "--num-prompts", 3, *tls, "--model", "nobody", code=1)
        check(run["errors"][0]["http"] == 404 and "nobody" in run["errors"][0]["message"], run["errors"])
        run = measure(server, "--num-prompts", 2, "--api-key", stack.key, "--model", "m", code=1)
        equal([(e["kind"], e["count"]) for e in run["errors"]], [("tls", 2)], "a certificate nobody vouches for")
        run = measure(server, "--num-prompts", 2, "--api-key", stack.key, "--insecure")
        equal(run["completed"], 2)


if __name__ == "__main__":
    harness.main(globals())
