"""The nginx site alone: a FastCGI responder of this test stands behind it and records what arrives.

Checked here: routes and their parameters, what is refused before a front hears of it, the shape of nginx's own errors,
streams passing through as they come, limits.  What the real fronts answer is checked in test_nginx_stack.py.
"""
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time

import harness
from harness import check, equal


class FakeFront:
    """Accepts FastCGI requests on a socket; one thread each.  `requests` holds (params, stdin) in order of completion;
    `answer(params, stdin, send)` writes the reply."""

    def __init__(self, path):
        self.requests, self.answer, self.hold = [], self.default_answer, threading.Event()
        self.hold.set()
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.bind(path)
        self.sock.listen(512)
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()

    def close(self):
        """Ends the thread before the descriptor: its number is soon another front's, and an accept that the kernel restarts
        would take that one's connections."""
        if self.sock.fileno() < 0:
            return
        self.sock.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.sock.close()

    def default_answer(self, params, stdin, send):
        body = json.dumps({"path": params["DOCUMENT_URI"], "bytes": len(stdin)}).encode()
        send(b"Status: 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def accept(self):
        while True:
            try:
                connection, _ = self.sock.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        def exactly(count):
            data = b""
            while len(data) < count:
                more = connection.recv(count - len(data))
                if not more:
                    raise ConnectionError
                data += more
            return data

        def send(data):
            connection.sendall(harness.fcgi_record(harness.FCGI_STDOUT, data))
        with connection:
            try:
                pairs, stdin = b"", b""
                while True:
                    _, kind, _, length, padding, _ = struct.unpack(">BBHHBB", exactly(8))
                    content = exactly(length + padding)[:length]
                    if kind == harness.FCGI_PARAMS:
                        pairs += content
                    elif kind == harness.FCGI_STDIN:
                        stdin += content
                        if not content:
                            break
                params = parse_pairs(pairs)
                self.requests.append((params, stdin))
                self.hold.wait(harness.DEADLINE)
                self.answer(params, stdin, send)
                connection.sendall(harness.fcgi_record(harness.FCGI_STDOUT)
                                   + harness.fcgi_record(harness.FCGI_END, b"\0" * 8))
            except OSError:
                pass


def parse_pairs(data):
    def length(at):
        if data[at] < 128:
            return data[at], at + 1
        return struct.unpack(">I", data[at:at + 4])[0] & 0x7fffffff, at + 4
    params, at = {}, 0
    while at < len(data):
        name, at = length(at)
        value, at = length(at)
        params[data[at:at + name].decode()] = data[at + name:at + name + value].decode("latin-1")
        at += name + value
    return params


class Site:
    """One directory with a configuration, a fake front and nginx."""

    def __init__(self, options=(), conf="", keys=True, allow="127.0.0.0/8"):
        self.dir = tempfile.mkdtemp(prefix="penstock-test-", dir="/tmp")
        try:
            path = os.path.join(self.dir, "penstock.conf")
            with open(path, "w") as f:
                f.write(f"[service]\nrun_dir = {self.dir}\n[front]\n{f'keys_file = {self.dir}/keys' if keys else ''}\n{conf}\n")
            self.front = FakeFront(os.path.join(self.dir, "front.sock"))
            self.nginx = harness.Nginx(self.dir, path, options, allow)
        except BaseException:
            shutil.rmtree(self.dir)
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.nginx.process.stop()
        self.front.close()
        shutil.rmtree(self.dir)


def error_of(reply, status, code, kind=None):
    equal(reply.status, status, str(reply))
    equal(reply.headers.get("content-type"), "application/json", str(reply))
    error = reply.json()["error"]
    equal(set(error), {"message", "type", "param", "code"})
    equal(error["code"], code)
    if kind:
        equal(error["type"], kind)
    return reply


KEY = {"Authorization": "Bearer sk-x"}
CHAT = "/v1/chat/completions"


def test_every_route_of_the_api_reaches_a_front():
    with open(os.path.join(harness.SOURCE, "src", "api", "routes.def")) as f:
        rows = re.findall(r'^ROUTE\(\w+,\s*(\w+),\s*"([^"]+)",\s*(\w+),\s*(\w+)\)', f.read(), re.M)
    check(rows, "no rows in routes.def")
    with Site() as site:
        for match, path, method, key in rows:
            path += "some-model" if match == "PREFIX" else ""
            reply = site.nginx.https(method, path, "{}" if method == "POST" else None, KEY)
            equal(reply.status, 200, path)
            equal(reply.json()["path"], path)
            reply = site.nginx.https(method, path, "{}" if method == "POST" else None)
            equal(reply.status, 401 if key == "KEY" else 200, path + " without a key")
            equal(site.nginx.https("OPTIONS", path).status, 200, path + " preflight")
            equal(site.nginx.https("HEAD", path, headers=KEY).body, b"", path + " HEAD")


def test_parameters_that_reach_a_front():
    with Site() as site:
        site.nginx.https("POST", CHAT + "?a=b", '{"x":1}', {
            **KEY, "Content-Type": "application/json", "X-Request-Id": "abc", "X-Request-Timeout": "7.5",
            "Proxy": "http://evil/", "Cookie": "secret=1", "X-Other": "y"})
        params, stdin = site.front.requests[-1]
        equal(params, {"REQUEST_METHOD": "POST", "CONTENT_TYPE": "application/json", "CONTENT_LENGTH": "7",
                       "REMOTE_ADDR": "127.0.0.1", "HTTP_AUTHORIZATION": "Bearer sk-x", "HTTP_X_REQUEST_ID": "abc",
                       "HTTP_X_REQUEST_TIMEOUT": "7.5", "DOCUMENT_URI": CHAT})
        equal(stdin, b'{"x":1}')
        site.nginx.https("GET", "/v1/models/a%20b%0d%0aX", headers=KEY)
        equal(site.front.requests[-1][0]["DOCUMENT_URI"], "/v1/models/a b\r\nX")


def test_unknown_routes_are_json_404():
    with Site() as site:
        for path in ("/", "/v1", "/v1/chat/completions/", "/v1/models/", "/v1/models/a/b", "/v1/embeddings", "/metrics/x",
                     "/penstock-error", "/livez.php", "/v1/chat/completions/../../x", "/%2e%2e/etc/passwd"):
            for headers in ({}, KEY):
                reply = site.nginx.https("GET", path, headers=headers)
                check(reply.status in (404, 400), path, reply)
                error_of(reply, reply.status, "not_found" if reply.status == 404 else "bad_request", "invalid_request_error")
        equal(site.front.requests, [])


def test_an_unknown_version_of_http_is_json_505():
    with Site() as site:
        for version in ("2.0", "9.9"):
            reply = site.nginx.raw(f"GET /livez HTTP/{version}\r\nHost: x\r\n\r\n".encode())
            error_of(reply, 505, "bad_request", "invalid_request_error")
        equal(site.front.requests, [])


def test_the_access_log_names_the_request_and_not_the_error_page():
    with Site() as site:
        site.nginx.https("POST", "/v1/nothing?secret=1", "{}", KEY)
        site.nginx.https("POST", CHAT + "?secret=2", "{}")
        site.nginx.https("POST", CHAT + "?secret=3", "{}", KEY)
        site.nginx.raw(b"\x01\r\n\r\n")

        def lines():
            with open(os.path.join(site.dir, "access.log")) as f:
                found = [" ".join(line.split()[2:6]) for line in f]
            return found if len(found) >= 4 else None
        equal(sorted(harness.wait_until(lines, "four lines in the access log")),
              sorted(["POST /v1/nothing HTTP/1.1 404", f"POST {CHAT} HTTP/1.1 401", f"POST {CHAT} HTTP/1.1 200", "- - - 400"]))


def test_no_key_is_refused_before_the_body():
    with Site() as site:
        for header in ("", "Authorization:\r\n", "Authorization:   \r\n"):
            with site.nginx.tls() as s:
                s.sendall((f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{header}Content-Length: 1000000\r\n"
                           "Expect: 100-continue\r\n\r\n").encode())
                reply = error_of(site.nginx.read_response(s), 401, "invalid_api_key", "authentication_error")
                equal(reply.headers["www-authenticate"], "Bearer")
        equal(site.front.requests, [])
    with Site(keys=False) as site:
        equal(site.nginx.https("POST", CHAT, "{}").status, 200, "no keys configured")


def test_bodies():
    with Site(conf="max_body = 300000") as site:
        equal(site.nginx.https("POST", CHAT, b"x" * 300000, KEY).json()["bytes"], 300000)
        error_of(site.nginx.https("POST", CHAT, b"x" * 300001, KEY), 413, "request_too_large")
        check("300000" in site.nginx.https("POST", CHAT, b"x" * 300001, KEY).json()["error"]["message"])
        chunked = (f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nTransfer-Encoding: chunked\r\n\r\n"
                   "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n").encode()
        equal(site.nginx.raw(chunked).json()["bytes"], 11)
        equal(site.front.requests[-1][0]["CONTENT_LENGTH"], "11")
        with site.nginx.tls() as s:
            s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Length: 5\r\n"
                      "Expect: 100-continue\r\n\r\n".encode())
            check(s.recv(100).startswith(b"HTTP/1.1 100 "))
            s.sendall(b"hello")
            equal(site.nginx.read_response(s).json()["bytes"], 5)
        before = len(site.front.requests)
        with site.nginx.tls() as s:  # over the limit and announced: refused before a byte of it
            s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Length: 300001\r\n"
                      "Expect: 100-continue\r\n\r\n".encode())
            error_of(site.nginx.read_response(s), 413, "request_too_large")
        for head in ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "Content-Length: 5\r\nContent-Length: 5\r\n",
                     "Content-Length: -1\r\n", "Content-Length: 1e3\r\n", "Transfer-Encoding: gzip, chunked\r\n"):
            reply = site.nginx.raw(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n{head}\r\nhello".encode())
            check(reply.status in (400, 501), head, reply)
            equal(reply.headers["content-type"], "application/json")
            reply.json()
        equal(len(site.front.requests), before, "a refused body reached a front")


def test_malformed_requests():
    with Site() as site:
        for data, status, code in (
                (b"GARBAGE\r\n\r\n", 400, "bad_request"),
                (b"GET /livez HTTP/1.1\r\n\r\n", 400, "bad_request"),  # no Host
                (b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "bad_request"),
                (b"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n", 400, "bad_request"),
                (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414, "uri_too_long"),
                (b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 9000 + b"\r\n\r\n", 431, "headers_too_large"),
                (b"TRACE /livez HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method_not_allowed")):
            error_of(site.nginx.raw(data), status, code)
        with socket.create_connection(("127.0.0.1", site.nginx.port), harness.DEADLINE) as s:
            s.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            error_of(site.nginx.read_response(s), 400, "https_required")
        equal(site.front.requests, [])


def test_addresses():
    with Site(allow="10.0.0.0/8") as site:
        error_of(site.nginx.https("GET", "/livez"), 403, "forbidden", "permission_error")
        error_of(site.nginx.https("POST", CHAT, "{}", KEY), 403, "forbidden")
        equal(site.front.requests, [])


def test_overflow_is_429_at_once_and_health_still_answers():
    """limit_conn equals max_running + max_queued: 80 with the default configuration."""
    with Site() as site:
        site.front.hold.clear()
        held = [site.nginx.tls() for _ in range(80)]
        for s in held:
            s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        harness.wait_until(lambda: len(site.front.requests) == 80, "80 requests at the front")
        with site.nginx.tls() as s:
            began = time.monotonic()
            s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            reply = error_of(site.nginx.read_response(s), 429, "overloaded", "rate_limit_error")
            print(f"429 after {(time.monotonic() - began) * 1e3:.1f} ms")
        equal(reply.headers["retry-after"], "1")
        error_of(site.nginx.https("POST", CHAT, "{}"), 401, "invalid_api_key")
        requests = len(site.front.requests)
        site.front.hold.set()
        for path in ("/livez", "/readyz", "/metrics", "/v1/models"):
            equal(site.nginx.https("GET", path, headers=KEY).status, 200, path)
        check(len(site.front.requests) >= requests + 4)
        for s in held:
            equal(site.nginx.read_response(s).status, 200)
            s.close()
        equal(site.nginx.https("POST", CHAT, "{}", KEY).status, 200)


def test_rate_limit():
    with Site(options=("--rate", "1", "--burst", "3")) as site:
        replies = [site.nginx.https("GET", "/livez") for _ in range(8)]
        limited = [r for r in replies if r.status == 429]
        check(len(limited) >= 3, [r.status for r in replies])
        error_of(limited[0], 429, "overloaded")
        equal(limited[0].headers["retry-after"], "1")


def test_no_front():
    with Site() as site:
        site.front.close()
        os.unlink(os.path.join(site.dir, "front.sock"))
        reply = error_of(site.nginx.https("POST", CHAT, "{}", KEY), 502, "unavailable", "server_error")
        equal(reply.headers["retry-after"], "2")
        error_of(site.nginx.https("GET", "/readyz"), 502, "unavailable")


def test_a_stream_passes_as_it_comes():
    with Site() as site:
        go = [threading.Event() for _ in range(3)]

        def answer(params, stdin, send):
            send(b"Content-Type: text/event-stream\r\n\r\n: ok\n\n")
            for i, event in enumerate(go):
                event.wait(harness.DEADLINE)
                send(b"data: %d\n\n" % i)
        site.front.answer = answer
        with site.nginx.tls() as s:
            s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            got = b""
            for i, event in enumerate(go):
                while (b": ok\n\n" if i == 0 else b"data: %d\n\n" % (i - 1)) not in got:
                    got += s.recv(4096)  # each event arrives before the next one is made
                check(b"data: %d" % i not in got)
                event.set()
            while not got.endswith(b"0\r\n\r\n"):
                got += s.recv(4096)
            check(b"data: 2" in got)


def test_the_front_sees_that_a_client_left():
    with Site() as site:
        gone = threading.Event()

        def answer(params, stdin, send):
            try:
                while True:
                    send(b"Content-Type: text/event-stream\r\n\r\n: ok\n\n" if not gone.is_set() else b"")
                    time.sleep(0.01)
            except OSError:
                gone.set()
        site.front.answer = answer
        with site.nginx.tls() as s:
            s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            s.recv(10)
        check(gone.wait(harness.DEADLINE), "the connection to the front stayed open")


def test_http2():
    curl = harness.require_tool("curl")
    with Site() as site:
        done = subprocess.run([curl, "-sS", "--http2", "--cacert", site.nginx.certificate, "-w", "%{http_version} %{http_code}",
                               "-H", "Authorization: Bearer k", "-d", "{}", f"https://localhost:{site.nginx.port}{CHAT}"],
                              capture_output=True, text=True)
        equal(done.stdout, '{"path": "/v1/chat/completions", "bytes": 2}2 200', done.stderr)
        done = subprocess.run([curl, "-sS", "--http2", "--cacert", site.nginx.certificate, "-w", " %{http_version} %{http_code}",
                               "-d", "{}", f"{site.nginx.url}{CHAT}"], capture_output=True, text=True)
        check(done.stdout.endswith(" 2 401"), done)
        check('"code":"invalid_api_key"' in done.stdout, done)


def test_the_log_holds_no_secrets():
    with Site() as site:
        site.nginx.https("POST", CHAT + "?api_key=sk-query", '{"messages":"private words"}', {"Authorization": "Bearer sk-head"})
        path = os.path.join(site.dir, "access.log")
        text = harness.wait_until(lambda: os.path.exists(path) and open(path).read(), "a log line")
        check(" POST /v1/chat/completions " in text, text)
        for secret in ("sk-query", "sk-head", "private"):
            check(secret not in text, text)


def test_old_protocols_are_refused():
    openssl = harness.require_tool("openssl")
    with Site() as site:
        for option, works in (("-tls1_1", False), ("-tls1_2", True), ("-tls1_3", True)):
            done = subprocess.run([openssl, "s_client", "-connect", f"127.0.0.1:{site.nginx.port}", option, "-brief"],
                                  input="", capture_output=True, text=True)
            equal(done.returncode == 0, works, option + done.stderr)


def test_the_renderer_refuses_what_would_break_out():
    tool = os.path.join(harness.SOURCE, "nginx", "penstock-site")
    base = [tool, "--penstock", harness.program("penstock"), "--certificate", "/c", "--key", "/k"]
    for more in (["--listen", "443; root /"], ["--key", '/k"; include /etc/shadow'], ["--rate", "0"], ["--rate", "x"],
                 ["--allow", "all; deny all"], ["--access", "/a", "--allow", "::1"], ["--nonsense"], ["--listen"]):
        done = subprocess.run(base + more, capture_output=True, text=True)
        equal(done.returncode, 2, f"{more}: {done.stdout[:100]}")
        equal(done.stdout, "", str(more))
        check(done.stderr.strip(), more)


if __name__ == "__main__":
    harness.main(globals())
