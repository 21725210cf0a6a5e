"""The whole path with real processes: nginx, fronts, penstockd with the script backend, and clients that verify the
certificate.  What nginx does alone is in test_nginx_site.py."""
import json
import os
import signal
import socket
import subprocess
import threading
import time

import harness
from harness import check, equal

CHAT = "/v1/chat/completions"
TEXT = "The water runs down to the wheel: \u4f60\u597d, caf\u00e9, \U0001f600 done."


def body(stack, **fields):
    values = {"model": stack.model_name(), "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1000}
    values.update(fields)
    return json.dumps(values)


def head(stack, content, method="POST", path=CHAT, more=""):
    """A raw HTTP/1.1 request."""
    return (f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {stack.key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n{more}\r\n").encode() + content.encode()


class Stream:
    """One request through nginx whose reply is read bit by bit."""

    def __init__(self, stack, receive_buffer=None, **fields):
        raw = socket.socket()
        if receive_buffer:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        raw.settimeout(harness.DEADLINE)
        raw.connect(("127.0.0.1", stack.nginx.port))
        context = harness.ssl.create_default_context(cafile=stack.nginx.certificate)
        self.sock = context.wrap_socket(raw, server_hostname="localhost")
        self.sock.sendall(head(stack, body(stack, stream=True, **fields)))
        self.data = b""

    def read(self):
        more = self.sock.recv(65536)
        self.data += more
        return more

    def read_until(self, text, count=1):
        while self.data.count(text) < count:
            if not self.read():
                raise AssertionError(f"ended before {text!r}: {self.data[-500:]!r}")

    def read_all(self):
        while not self.data.endswith(b"\r\n0\r\n\r\n") and self.read():
            pass
        return self.data

    def close(self):
        self.sock.close()


def words(reply):
    """Text of a stream's events, and its finish reasons."""
    events = reply.events()
    equal(events[-1], "[DONE]")
    chunks = [json.loads(event) for event in events[:-1]]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    return text, [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]


def test_answers_streamed_and_whole():
    with harness.Stack(script=harness.script(TEXT), nginx=True) as stack:
        reply = stack.nginx.https("POST", CHAT, body(stack), stack.headers())
        equal(reply.status, 200, reply)
        equal(reply.json()["choices"][0]["message"]["content"], TEXT)
        equal(int(reply.headers["content-length"]), len(reply.body))
        reply = stack.nginx.https("POST", CHAT, body(stack, stream=True), stack.headers({"X-Request-Id": "my-id.1"}))
        equal(words(reply), (TEXT, ["stop"]))
        check(reply.headers["content-type"].startswith("text/event-stream"), reply.headers)
        equal(reply.headers["x-request-id"], "my-id.1")
        curl = harness.require_tool("curl")
        for version in ("--http1.1", "--http2"):
            done = subprocess.run([curl, "-sS", "-N", version, "--cacert", stack.nginx.certificate, "-H",
                                   f"Authorization: Bearer {stack.key}", "-H", "Content-Type: application/json", "-d",
                                   body(stack, stream=True), f"https://localhost:{stack.nginx.port}{CHAT}"], capture_output=True)
            equal(done.returncode, 0, done.stderr)
            equal(words(harness.Reply(body=done.stdout)), (TEXT, ["stop"]), version)


def test_keys():
    with harness.Stack(script=harness.script(TEXT), nginx=True) as stack:
        for value in (None, "", "Bearer", "Bearer ", "Bearer sk-wrong", stack.key, "Basic " + stack.key, "Bearer " + stack.key + "x"):
            headers = {"Content-Type": "application/json"}
            if value is not None:
                headers["Authorization"] = value
            reply = stack.nginx.https("POST", CHAT, body(stack), headers)
            equal(reply.status, 401, value)
            equal(reply.json()["error"]["code"], "invalid_api_key", value)
            equal(reply.headers["www-authenticate"], "Bearer", value)
        equal(stack.metrics()["penstock_requests_total"], 0, "nothing reached the batcher")


def test_other_routes_and_methods():
    with harness.Stack(script=harness.script(TEXT), nginx=True) as stack:
        https, headers = stack.nginx.https, stack.headers()
        models = https("GET", "/v1/models", headers=headers)
        equal([m["id"] for m in models.json()["data"]], [stack.model_name()])
        equal(https("GET", "/v1/models/" + stack.model_name(), headers=headers).status, 200)
        equal(https("GET", "/v1/models/other", headers=headers).json()["error"]["code"], "model_not_found")
        reply = https("HEAD", "/v1/models", headers=headers)
        equal((reply.status, reply.body, reply.headers["content-length"]), (200, b"", models.headers["content-length"]))
        reply = https("HEAD", CHAT, headers=headers)
        equal((reply.status, reply.body), (405, b""))
        for method, path in (("GET", CHAT), ("DELETE", CHAT), ("POST", "/v1/models"), ("PUT", "/livez")):
            reply = https(method, path, "{}" if method in ("POST", "PUT") else None, headers)
            equal((reply.status, reply.json()["error"]["code"]), (405, "method_not_allowed"), path)
            check("allow" in reply.headers, reply)
        for path in ("/livez", "/readyz", "/metrics"):
            equal(https("GET", path).status, 200, path)
        check(b"penstock_steps_total" in https("GET", "/metrics").body)
        reply = https("OPTIONS", CHAT, headers={"Origin": "https://page.example", "Access-Control-Request-Method": "POST",
                                                "Access-Control-Request-Headers": "authorization,content-type"})
        equal(reply.status, 204, reply)
        check("authorization" in reply.headers["access-control-allow-headers"].lower(), reply)
        equal(https("POST", CHAT, body(stack, model="other"), headers).json()["error"]["code"], "model_not_found")


def test_bodies():
    with harness.Stack(script=harness.script(TEXT), nginx=True, conf={"front.max_body": 200000}) as stack:
        content = body(stack).encode()
        chunked = head(stack, "").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        for at in range(0, len(content), 7):
            chunked += b"%x\r\n%s\r\n" % (len(content[at:at + 7]), content[at:at + 7])
        equal(stack.nginx.raw(chunked + b"0\r\n\r\n").json()["choices"][0]["message"]["content"], TEXT)
        with stack.nginx.tls() as s:
            request = head(stack, content.decode(), more="Expect: 100-continue\r\n")
            s.sendall(request[:-len(content)])
            check(s.recv(200).startswith(b"HTTP/1.1 100 "))
            s.sendall(content)
            equal(stack.nginx.read_response(s).json()["choices"][0]["message"]["content"], TEXT)
        for text, status, code in (("{", 400, "invalid_json"), ("[]", 400, None), ("", 400, None), ('{"model": 5}', 400, None),
                                   (body(stack, messages=[]), 400, None), (body(stack, messages="x"), 400, None),
                                   (body(stack, temperature=3), 400, None),
                                   (body(stack, user="x" * 200000), 413, "request_too_large"),
                                   (body(stack, messages=[{"role": "user", "content": "water " * 5000}]), 400, "context_length_exceeded")):
            reply = stack.nginx.https("POST", CHAT, text, stack.headers())
            equal(reply.status, status, text[:80])
            if code:
                equal(reply.json()["error"]["code"], code)
            equal(set(reply.json()["error"]), {"message", "type", "param", "code"})
        equal(stack.metrics()["penstock_requests_total"], 2, "only the good ones reached the batcher")


def test_overflow():
    """max_running + max_queued requests are taken, the next is refused at once, and a place is free when one leaves."""
    conf = {"batcher.max_running": 2, "batcher.max_queued": 2, "batcher.kv_tokens": 4096, "front.keepalive_ms": 100}
    with harness.Stack(script=harness.script(TEXT, pace=5000, repeat=0), nginx=True, conf=conf) as stack:
        streams = [Stream(stack, max_tokens=1900) for _ in range(2)]
        for stream in streams:
            stream.read_until(b"content")
        for waiting in (1, 2):
            streams.append(Stream(stack, max_tokens=1900))
            harness.wait_until(lambda: stack.metrics()["penstock_sequences_waiting"] == waiting, "waiting requests")
        began = time.monotonic()
        reply = stack.nginx.https("POST", CHAT, body(stack), stack.headers())
        print(f"429 after {(time.monotonic() - began) * 1e3:.1f} ms with the TLS handshake")
        equal((reply.status, reply.json()["error"]["code"], reply.headers["retry-after"]), (429, "overloaded", "1"))
        equal(stack.nginx.https("GET", "/readyz").status, 200, "health is outside the limit")
        equal(stack.nginx.https("GET", "/v1/models", headers=stack.headers()).status, 200)
        streams[0].close()
        streams[2].read_until(b"content")
        extra = Stream(stack)
        for stream in streams[1:] + [extra]:
            stream.close()

        def idle():
            m = stack.metrics()
            return not any(m["penstock_" + name] for name in ("sequences_running", "sequences_waiting", "slots_in_use", "kv_blocks_used"))
        harness.wait_until(idle, "everything is free again")


def test_a_killed_child_ends_its_streams_only():
    conf = {"front.streams_per_front": 1}
    with harness.Stack(script=harness.script(TEXT, pace=10000, repeat=0), nginx=True, conf=conf) as stack:
        streams = [Stream(stack, max_tokens=1900) for _ in range(3)]
        for stream in streams:
            stream.read_until(b"content")
        busy = [pid for pid in stack.front_children() if holds_a_client(pid)]
        equal(len(busy), 3, "one child per stream")
        os.kill(busy[0], signal.SIGKILL)
        ended = []

        def one_ended():
            for stream in streams:
                if stream not in ended and not read_some(stream):
                    ended.append(stream)
            return ended
        harness.wait_until(one_ended, "the end of the killed child's stream")
        text = ended[0].data
        check(b"[DONE]" not in text and b'"finish_reason":"' not in text, text[-300:])
        others = [stream for stream in streams if stream not in ended]
        equal(len(others), 2)
        for stream in others:
            before = stream.data.count(b"data: ")
            stream.read_until(b"data: ", before + 50)
        harness.wait_until(lambda: stack.metrics()["penstock_sequences_running"] == 2, "its sequence is gone")
        for stream in others:
            stream.close()


def holds_a_client(pid):
    """Does this child hold an accepted connection of the front's socket?"""
    try:
        out = subprocess.run(["ss", "-xnp", "state", "established"], capture_output=True, text=True).stdout
    except FileNotFoundError:
        harness.skip("ss is not installed")
    return any(f"pid={pid}," in line and "front.sock" in line for line in out.splitlines())


def read_some(stream):
    """Reads what is there; False at the end of the reply."""
    stream.sock.settimeout(0.05)
    try:
        return bool(stream.read()) and not stream.data.endswith(b"\r\n0\r\n\r\n")
    except (TimeoutError, harness.ssl.SSLWantReadError):
        return True
    except OSError:
        return False
    finally:
        stream.sock.settimeout(harness.DEADLINE)


def test_a_whole_answer_cut_is_seen_by_the_client():
    curl = harness.require_tool("curl")
    with harness.Stack(script=harness.script(TEXT, pace=2000, repeat=0), nginx=True, conf={"front.streams_per_front": 1}) as stack:
        process = subprocess.Popen([curl, "-sS", "--fail", "--cacert", stack.nginx.certificate, "-H",
                                    f"Authorization: Bearer {stack.key}", "-H", "Content-Type: application/json", "-d", body(stack),
                                    f"{stack.nginx.url}{CHAT}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        harness.wait_until(lambda: stack.metrics()["penstock_sequences_running"] == 1, "the request runs")
        for pid in stack.front_children():
            if holds_a_client(pid):
                os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=harness.DEADLINE)
        check(process.returncode != 0, "curl took a cut answer for a whole one")
        harness.wait_until(lambda: stack.nginx.https("POST", CHAT, body(stack, max_tokens=3), stack.headers()).status == 200,
                           "service goes on")


def test_the_batcher_killed_and_back():
    with harness.Stack(script=harness.script(TEXT, pace=2000, repeat=0), nginx=True) as stack:
        stream = Stream(stack)
        stream.read_until(b"content")
        whole = {}

        def ask():
            whole["reply"] = stack.nginx.https("POST", CHAT, body(stack), stack.headers())
        thread = threading.Thread(target=ask)
        thread.start()
        harness.wait_until(lambda: stack.metrics()["penstock_sequences_running"] == 2, "both run")
        began = time.monotonic()
        stack.daemon.kill()
        data = stream.read_all()
        thread.join()
        print(f"clients knew after {time.monotonic() - began:.3f} s")
        check(b'data: {"error":' in data and b"[DONE]" not in data, data[-300:])
        equal(whole["reply"].status, 503, whole["reply"])
        harness.wait_until(lambda: stack.nginx.https("GET", "/readyz").status == 503, "readiness is withdrawn")
        equal(stack.nginx.https("GET", "/livez").status, 200)
        equal(stack.nginx.https("GET", "/metrics").status, 200, "metrics work without the batcher")
        reply = stack.nginx.https("POST", CHAT, body(stack), stack.headers())
        equal(reply.status, 503)
        check("retry-after" in reply.headers, reply)
        done = stack.tool("status", "--config", stack.conf_path)
        equal(done.returncode, 1)
        stack.start_daemon()
        harness.wait_until(lambda: stack.nginx.https("GET", "/readyz").status == 200, "a new batcher serves the same fronts")
        equal(stack.nginx.https("POST", CHAT, body(stack, max_tokens=5), stack.headers()).status, 200)


def test_a_client_that_does_not_read_is_ended_and_nobody_else_notices():
    """Small windows everywhere, so that an answer of 1,900 tokens cannot hide in socket buffers."""
    conf = {"batcher.slow_client_timeout_ms": 500, "front.children": 3, "front.stream_window": 4096}
    with harness.Stack(script=harness.script(TEXT, pace=1500, repeat=0), nginx=True, conf=conf) as stack:
        lazy = [Stream(stack, receive_buffer=4096, max_tokens=1900) for _ in range(4)]
        for stream in lazy:
            stream.read_until(b"content")
        reply = stack.nginx.https("POST", CHAT, body(stack, stream=True, max_tokens=1900), stack.headers())
        equal(words(reply)[1], ["length"], "the neighbour's stream is whole")

        def ended():  # by whoever notices first
            m = stack.metrics()
            return m["penstock_slow_clients_total"] + m["penstock_front_slow_clients_total"] >= 4
        harness.wait_until(ended, "the lazy ones are ended")
        harness.wait_until(lambda: stack.metrics()["penstock_kv_blocks_used"] == 0, "blocks are free")
        for stream in lazy:
            stream.close()


def test_status_and_drain():
    with harness.Stack(script=harness.script(TEXT, pace=2000, repeat=20), nginx=True) as stack:
        stream = Stream(stack)
        stream.read_until(b"content")
        done = stack.tool("status", "--json", "--config", stack.conf_path)
        equal(done.returncode, 0, done.stderr)
        status = json.loads(done.stdout)
        equal((status["state"], status["answers"], status["metrics"]["sequences_running"]), ("ready", True, 1))
        check(status["pid"] == stack.daemon.pid, status)
        text = stack.tool("status", "--config", stack.conf_path).stdout
        check("1 running" in text and "ready" in text, text)
        equal(stack.tool("drain", "--config", stack.conf_path).returncode, 0)
        harness.wait_until(lambda: stack.nginx.https("GET", "/readyz").status == 503, "not ready while draining")
        equal(stack.nginx.https("POST", CHAT, body(stack), stack.headers()).status, 503)
        check(stream.read_all().rstrip(b"0\r\n").endswith(b"data: [DONE]"), stream.data[-200:])
        harness.wait_until(lambda: not stack.daemon.running(), "the batcher ends")
        equal(stack.daemon.popen.returncode, 0)


if __name__ == "__main__":
    harness.main(globals())
