#!/usr/bin/env python3
"""bench_path.py: what the path from socket to batch and back costs, without a model.  Run by hand from the build directory:

    python3 ../bench/bench_path.py [REQUESTS]

penstockd plays a script (backend = script), so all that is measured is nginx (TLS), front, lanes and scheduling:

  first byte   a request on an open TLS connection until the first content event, one step of 1 ms included, one request at
               a time.  The bar (first byte at the client within 5 ms of its token) holds when this whole figure is below.
  memory       private memory of the front children afterwards, and after a 4 MB prompt (bar: 1 MB each)
  gaps         16 streams of one child at 10 ms a token; a 4 MB prompt arrives at the same child: the largest gap between two
               tokens of a stream while it is taken in, against the largest gap without it (bar: 20 ms more at most)
"""
import json
import os
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "behaviour"))
import harness  # noqa: E402


def request_bytes(stack, content, keep=True, **fields):
    body = json.dumps({"model": stack.model_name(), "messages": [{"role": "user", "content": content}], "stream": True, **fields})
    return (f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {stack.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body.encode())}\r\n"
            f"Connection: {'keep-alive' if keep else 'close'}\r\n\r\n{body}").encode()


def stream(connection, data, on_event=None):
    """Sends a request and reads its chunked answer; calls on_event(now) for each piece with content."""
    connection.sendall(data)
    seen = b""
    while b"\r\n0\r\n\r\n" not in seen[-16:]:
        piece = connection.recv(65536)
        now = time.perf_counter()
        if not piece:
            break
        if on_event and b'"content":"' in piece:
            on_event(now)
        seen += piece
    return seen


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


def private_kb(pid):
    with open(f"/proc/{pid}/smaps_rollup") as f:
        return sum(int(line.split()[1]) for line in f if line.startswith(("Private_Dirty", "Private_Clean")))


def first_byte(requests):
    with harness.Stack(script=harness.script("hello there", pace=1000), nginx=True) as stack:
        data, times = request_bytes(stack, "hi", max_tokens=1), []
        with stack.nginx.tls() as connection:
            for i in range(requests + 50):
                first, began = [], time.perf_counter()
                stream(connection, data, first.append)
                time.sleep(0.01)  # low load, and below nginx's rate limit
                if i >= 50:
                    times.append((first[0] - began) * 1e3)
        print(f"first byte   {requests} requests: p50 {statistics.median(times):.2f} ms, p99 {quantile(times, 0.99):.2f} ms, "
              f"of which 1 ms is the step")
        print("memory       private memory of the front children:", ", ".join(f"{private_kb(p)} KB" for p in stack.front_children()))


def gaps():
    conf = {"front.children": 1, "front.streams_per_front": 40, "batcher.max_running": 16, "batcher.max_queued": 16,
            "model.max_context": 2048}
    with harness.Stack(script=harness.script("word ", pace=10000, repeat=0), conf=conf, nginx=True) as stack:
        arrivals = [[] for _ in range(15)]
        data = request_bytes(stack, "go", keep=False, max_tokens=1200)

        def run(times):
            with stack.nginx.tls() as connection:
                stream(connection, data, times.append)
        threads = [threading.Thread(target=run, args=(times,)) for times in arrivals]
        for thread in threads:
            thread.start()
        harness.wait_until(lambda: all(len(times) > 300 for times in arrivals), "300 tokens of every stream")
        quiet_until = time.perf_counter()
        refused = stack.nginx.https("POST", "/v1/chat/completions", headers=stack.headers({"Content-Type": "application/json"}),
                                    body=json.dumps({"model": stack.model_name(), "max_tokens": 1,
                                                     "messages": [{"role": "user", "content": "lorem ipsum " * 350000}]}))
        taken_in = time.perf_counter()
        for thread in threads:
            thread.join()

        def largest(begin, end):
            return max(b - a for times in arrivals for a, b in zip(times, times[1:]) if begin < b <= end) * 1e3
        start = max(times[0] for times in arrivals)
        print(f"gaps         15 streams, 10 ms a token: largest gap {largest(start, quiet_until):.1f} ms alone, "
              f"{largest(quiet_until, taken_in):.1f} ms while a 4 MB prompt is taken in (answer {refused.status} after "
              f"{(taken_in - quiet_until) * 1e3:.0f} ms)")
        print("memory       private memory of the child after that prompt:",
              ", ".join(f"{private_kb(p)} KB" for p in stack.front_children()))


if __name__ == "__main__":
    first_byte(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
    gaps()
