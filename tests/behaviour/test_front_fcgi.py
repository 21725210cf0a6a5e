"""The fronts' FastCGI side, with records no web server would send.  penstockd is not needed here.

Whatever comes in, it is answered or the connection is closed, within the time-out, and no other client notices.
"""
import os
import random
import socket

import fcgi_client as fc
import harness
from harness import check, equal

TIMEOUT_MS = 400


class Fronts(harness.Stack):
    """The fronts alone.  At the end every child must still be there and hold no connection."""

    def __init__(self, conf=None, keys=False):
        values = {"front.header_timeout_ms": TIMEOUT_MS * int(harness.SLOW), "front.children": 2,
                  "batcher.max_running": 4, "batcher.max_queued": 8}
        values.update(conf or {})
        super().__init__(conf=values, keys=keys, start=False)
        try:
            self.start_front()
            harness.wait_until(self.alive, "the fronts")
            derived = self.tool("config", "derived", self.conf_path).stdout.split()
            count = int(next(line for line in derived if line.startswith("children="))[9:])
            harness.wait_until(lambda: len(self.front_children()) == count, "all children")
            self.children = sorted(self.front_children())
        except BaseException:
            self.dump()
            self.close()
            raise

    def alive(self):
        check(self.front.running(), "penstock-front ended")
        try:
            return self.fcgi("GET", "/livez").status == 200
        except OSError:
            return False

    def raw(self, data=b""):
        return fc.Raw(self.front_socket, data)

    def quiet(self):
        """True when only the asking connection is open."""
        return self.metrics()["penstock_front_requests_open"] == 1

    def __exit__(self, kind, *rest):
        try:
            if kind is None:
                harness.wait_until(self.quiet, "all other connections to be closed")
                equal(sorted(self.front_children()), self.children, "children")
        except BaseException:
            self.dump()
            raise
        finally:
            super().__exit__(kind, *rest)


def test_polite_shapes():
    """The same request in every framing: whole, byte by byte, tiny records, padding 255, four-byte lengths."""
    whole = fc.request("/livez")
    with Fronts() as fronts:
        equal(fronts.raw(whole).reply().body, b"ok\n")
        with fronts.raw() as one:
            for byte in whole:
                one.send(bytes([byte]))
            equal(one.reply().body, b"ok\n")
        for piece in (1, 2, 7, 50):
            for padding in (0, 1, 255):
                data = fc.begin() + fc.params(fc.get("/livez"), piece, padding) + fc.stdin(b"", 1, padding)
                equal(fronts.raw(data).reply().status, 200, f"records of {piece}, padding {padding}")
        content = b"".join(fc.pair(n, v, long=True) for n, v in fc.get("/livez").items())
        data = fc.begin() + fc.record(fc.PARAMS, content) + fc.record(fc.PARAMS) + fc.stdin()
        equal(fronts.raw(data).reply().status, 200, "four-byte lengths")
        with fronts.raw(fc.begin(request=65535, flags=fc.KEEP_CONN) + fc.params(fc.get("/livez"), request=65535)
                        + fc.stdin(request=65535)) as high:
            equal(high.reply().status, 200, "request 65535")
            equal(high.requests, {65535})
            high.read_close()  # the connection ends with its request, whatever the flag says


def test_idle_and_half_sent():
    """Connections that say nothing or stop half-way are closed in time; meanwhile others are served by every child."""
    whole = fc.request("/livez")
    body = fc.begin() + fc.params(fc.post("/livez", 10)) + fc.record(fc.STDIN, b"12345", length=10)
    with Fronts() as fronts:
        waiting = [fronts.raw(whole[:cut]) for cut in (0, 1, 7, 8, 15, 16, 20, 24, 40, len(whole) - 9)]
        late = fronts.raw(body)
        for _ in range(40):
            equal(fronts.fcgi("GET", "/livez").status, 200)
        for raw in waiting:
            raw.read_close()
            equal(raw.stdout, b"", "no answer to half a head")
        equal(late.reply().status, 408, "half a body")


def test_hang_up_anywhere():
    whole = fc.begin() + fc.params(fc.post("/v1/models", 40)) + fc.stdin(b"x" * 40, 7)
    with Fronts() as fronts:
        for cut in range(0, len(whole), 3):
            fronts.raw(whole[:cut]).close()
        for cut in (0, 10, len(whole)):  # half-closed is hung up: nginx never does it for a client that waits
            raw = fronts.raw(whole[:cut])
            raw.sock.shutdown(socket.SHUT_WR)
            raw.read_close()


def closed(fronts, data, why):
    """DATA is refused: the connection is closed without an answer."""
    with fronts.raw(data) as raw:
        raw.read_close()
        equal((raw.stdout, raw.ended), (b"", False), why)


def test_wrong_records():
    good = fc.params(fc.get("/livez")) + fc.stdin()
    with Fronts() as fronts:
        for version in (0, 2, 255):
            closed(fronts, fc.begin(version=version) + good, f"version {version}")
        for role in (0, fc.AUTHORIZER, fc.FILTER, 9):
            closed(fronts, fc.begin(role) + good, f"role {role}")
        for kind in range(256):
            if kind != fc.BEGIN:
                closed(fronts, fc.record(kind, b"12345678") + good, f"type {kind} first")
            if kind != fc.PARAMS:
                closed(fronts, fc.begin() + fc.record(kind, b"") + good, f"type {kind} among the parameters")
            if kind != fc.STDIN:
                closed(fronts, fc.begin() + fc.params(fc.get("/livez")) + fc.record(kind, b"12") + fc.stdin(),
                       f"type {kind} in the body")
        closed(fronts, fc.record(fc.GET_VALUES, fc.pair("FCGI_MAX_CONNS", ""), request=0), "GET_VALUES")
        closed(fronts, fc.begin(request=0) + good, "request 0")
        closed(fronts, fc.begin() + fc.params(fc.get("/livez"), request=2) + fc.stdin(), "another request's parameters")
        closed(fronts, fc.begin() + fc.params(fc.get("/livez")) + fc.record(fc.STDIN, b"x", request=2),
               "another request's body")
        closed(fronts, fc.begin() + fc.record(fc.ABORT) + good, "ABORT among the parameters")
        closed(fronts, fc.begin() + fc.params(fc.get("/livez")) + fc.record(fc.STDIN, b"x") + fc.record(fc.ABORT),
               "ABORT in the body")
        closed(fronts, fc.begin() + fc.begin() + good, "BEGIN twice")
        closed(fronts, fc.record(fc.BEGIN, b"\0\1\0") + good, "a short BEGIN")


def test_hostile_parameters():
    """Lengths that lie (CVE-2025-23016), too many, too large: refused before the library sees them."""
    end = fc.record(fc.PARAMS) + fc.stdin()
    with Fronts() as fronts:
        for n in (0x7fffffff, 0x7ffffffe, 0x40000000, 0x10000):
            for m in (n, 0, 5):
                closed(fronts, fc.begin() + fc.record(fc.PARAMS, fc.length(n) + fc.length(m) + b"NAMEvalue") + end,
                       f"lengths {n} and {m}")
                closed(fronts, fc.begin() + fc.record(fc.PARAMS, fc.length(m) + fc.length(n) + b"NAMEvalue") + end,
                       f"lengths {m} and {n}")
        closed(fronts, fc.begin() + fc.record(fc.PARAMS, b"\x80") + end, "a length cut off")
        closed(fronts, fc.begin() + fc.record(fc.PARAMS, b"\x04\x04NAMEval") + end, "a value cut off")
        many = b"".join(fc.pair(f"N{i}", "v") for i in range(1000000))
        closed(fronts, fc.begin() + b"".join(fc.record(fc.PARAMS, many[at:at + 65535]) for at in range(0, len(many), 65535)),
               "a million parameters")
        closed(fronts, fc.begin() + fc.params([(f"N{i}", "v") for i in range(257)]) + fc.stdin(), "257 parameters")
        closed(fronts, fc.begin() + fc.params(fc.get("/livez", HTTP_X="v" * 32768)) + fc.stdin(), "a value of 32 KB")
        closed(fronts, fc.begin() + fc.record(fc.PARAMS, b"x", 255) * 400, "padding instead of content")
        closed(fronts, fc.begin() + fc.params(fc.get("/livez", HTTP_X="a\0b")) + fc.stdin(), "a NUL in a value")
        for name in ("", "A=B", "A B", "A\n"):
            closed(fronts, fc.begin() + fc.params([(name, "v")]) + fc.stdin(), f"name {name!r}")
        ok = fc.begin() + fc.params(fc.get("/livez", HTTP_X="v" * 32767)) + fc.stdin()
        equal(fronts.raw(ok).reply().status, 200, "a value just under the limit")
        values = list(fc.get("/livez").items())
        ok = fc.begin() + fc.params(values + [(f"N{i}", "v") for i in range(256 - len(values))]) + fc.stdin()
        equal(fronts.raw(ok).reply().status, 200, "256 parameters")


def test_headers_that_came_twice():
    with Fronts() as fronts:
        for name in ("HTTP_AUTHORIZATION", "CONTENT_TYPE", "CONTENT_LENGTH", "REQUEST_METHOD", "DOCUMENT_URI"):
            values = list(fc.get("/v1/models", HTTP_AUTHORIZATION="Bearer x", CONTENT_TYPE="text/plain").items())
            values.append((name, dict(values)[name]))
            reply = fronts.raw(fc.begin() + fc.params(values) + fc.stdin()).reply()
            equal(reply.status, 400, name)
            check(name in reply.json()["error"]["message"], reply)
        values = list(fc.get("/livez").items()) + [("HTTP_COOKIE", "a"), ("HTTP_COOKIE", "b")]
        equal(fronts.raw(fc.begin() + fc.params(values) + fc.stdin()).reply().status, 200, "others may come twice")


def test_declared_length():
    """CONTENT_LENGTH against the real size of STDIN, which is always read to its end."""
    body = b"0123456789" * 100
    with Fronts() as fronts:
        for declared, status in (("1000", 200), ("", 200), (None, 200), ("999", 400), ("1001", 400), ("0", 400), ("-1", 400),
                                 ("1e3", 400), ("+1000", 400), (" 1000", 400), ("0x3e8", 400), ("9" * 40, 400), ("x", 400)):
            values = {n: v for n, v in fc.post("/livez", 0, CONTENT_LENGTH=declared, REQUEST_METHOD="GET").items()
                      if v is not None}
            reply = fronts.raw(fc.begin() + fc.params(values) + fc.stdin(body, 300)).reply()
            equal(reply.status, status, f"CONTENT_LENGTH {declared!r}")


def test_body_over_the_limit():
    limit = 100000
    with Fronts({"front.max_body": limit}) as fronts:
        head = fc.begin() + fc.params(fc.post("/v1/chat/completions", limit + 1))
        with fronts.raw(head) as raw:  # answered before any of the body was sent
            equal(raw.reply().status, 413)
            check(raw.ended)
            for _ in range(20):  # a proxy that is still writing is not reset
                check(raw.send(fc.record(fc.STDIN, b"x" * 30000)))
            raw.send(fc.record(fc.STDIN))
            raw.read_close()
        for declared in (limit + 1, 10 ** 15, 2 ** 62):
            with fronts.raw(fc.begin() + fc.params(fc.post("/livez", declared, REQUEST_METHOD="GET"))) as raw:
                equal(raw.reply().status, 413, f"{declared} bytes")


def test_pipelining_and_late_bytes():
    one = fc.request("/livez")
    with Fronts() as fronts:
        closed(fronts, one + one, "a second request in the same packet")
        with fronts.raw(fc.begin() + fc.params(fc.post("/livez", 5, REQUEST_METHOD="GET"))) as raw:
            raw.send(fc.stdin(b"12345"))
            equal(raw.reply().status, 200)
            raw.send(one)
            raw.read_close()


def test_random_bytes():
    """Mutated requests; the seed is printed so that a failure can be repeated."""
    seed = int(os.environ.get("PENSTOCK_SEED", random.randrange(1 << 30)))
    rounds = int(os.environ.get("PENSTOCK_ROUNDS", 300))
    print("PENSTOCK_SEED", seed)
    rng = random.Random(seed)
    base = fc.begin() + fc.params(fc.post("/livez", 10, HTTP_AUTHORIZATION="Bearer x")) + fc.stdin(b"0123456789", 4)
    with Fronts({"front.header_timeout_ms": 100}) as fronts:
        for _ in range(rounds):
            data = bytearray(base)
            for _ in range(rng.randrange(1, 5)):
                at = rng.randrange(len(data))
                if rng.random() < 0.7:
                    data[at] = rng.randrange(256)
                else:
                    data[at:at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
            with fronts.raw() as raw:
                cut = rng.randrange(len(data))
                if raw.send(bytes(data[:cut])):
                    raw.send(bytes(data[cut:]))
                raw.read()
                check(raw.ended or raw.closed)


def test_more_connections_than_slots():
    """Slots full of half-sent requests: the backlog waits, then everybody is served."""
    with Fronts({"front.children": 2, "front.streams_per_front": 2, "batcher.max_running": 1, "batcher.max_queued": 2}) as fronts:
        stuck = [fronts.raw(fc.begin()) for _ in range(4)]
        waiting = [fronts.raw(fc.request("/livez")) for _ in range(20)]
        for raw in waiting:
            equal(raw.reply().status, 200)
        for raw in stuck:
            raw.read_close()


if __name__ == "__main__":
    harness.main(globals())
