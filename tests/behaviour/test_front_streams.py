"""Answers straight from the fronts: exact bytes, streamed and whole, and what a client's pace does to its neighbours.

penstockd replays token scripts here, so every byte of an answer is known.
"""
import os
import signal

import harness
from front_common import daemon_metric, drain, reply_of, text_of, wait_idle
from harness import check, equal, script

MIXED = "Grüße, 世界! 👩‍🚀 naïve ☃ — ok. " * 3


def test_stream_and_whole_are_equal():
    with harness.Stack(script=script(MIXED, pace=200)) as stack:
        streamed = stack.chat(stream=True)
        equal(text_of(streamed), MIXED)
        whole = stack.chat()
        equal(whole.json()["choices"][0]["message"]["content"], MIXED)
        equal(int(whole.headers["content-length"]), len(whole.body))
        check("content-length" not in streamed.headers, streamed.headers)
        equal(whole.json()["usage"]["completion_tokens"], len(stack.ids(MIXED)))
        wait_idle(stack)


def test_never_half_a_character():
    """Characters are several tokens here, and each token arrives on its own: every record on the wire is whole UTF-8."""
    with harness.Stack(script=script(MIXED, pace=2000)) as stack:
        check(len(stack.ids("世")) > 1, "the test needs characters of several tokens")
        call = stack.open_chat(stream=True)
        pieces = []
        while piece := call.read():
            piece.decode()  # raises on half a character
            check("�" not in piece.decode(), piece)
            pieces.append(piece)
        check(len(pieces) > 20, "tokens were to arrive one by one", len(pieces))
        check(b"\r\n\r\n" in pieces[0] and pieces[0].split(b"\r\n\r\n", 1)[1], "the first write carries a body byte")
        equal(text_of(reply_of(call)), MIXED)


def test_waiting_tokens_become_one_write():
    """While the child stands still tokens pile up; they go out in few records, and none is lost."""
    words = "one two three four five six seven eight nine ten " * 20
    conf = {"front.children": 1, "batcher.max_running": 4, "batcher.max_queued": 4}
    with harness.Stack(script=script(words, pace=1000), conf=conf) as stack:
        call = stack.open_chat(stream=True)
        call.read_until(b"data: ")
        child, = stack.front_children()
        os.kill(child, signal.SIGSTOP)
        try:
            served = daemon_metric(stack, "generated_tokens_total")
            harness.wait_until(lambda: daemon_metric(stack, "generated_tokens_total") >= served + 100, "tokens to pile up")
        finally:
            os.kill(child, signal.SIGCONT)
        records = 0
        while call.read():
            records += 1
        equal(text_of(reply_of(call)), words)
        tokens = len(stack.ids(words))
        check(records < tokens - 80, f"{records} records for {tokens} tokens, of which 100 had piled up")


def test_a_batcher_faster_than_its_front_is_not_out_of_memory():
    """Eight answers at once, so fast that the front never writes the last event it has: what it has written must not be kept,
    or the stream of a client that reads ends in an error once it is longer than a few windows."""
    conf = {"front.stream_window": 8192}
    with harness.Stack(script=script("one two three four five six seven ", pace=1, repeat=0), conf=conf) as stack:
        reply = stack.chat(stream=True, n=8, max_tokens=1500, stop=["never said"])
        check(reply.body.endswith(b"data: [DONE]\n\n"), reply.body[-400:])
        equal(reply.body.count(b'"finish_reason":"length"'), 8)
        wait_idle(stack)


def test_keepalive_comments():
    ids = "script slow\ndelay 700000\nids 300 301 302\n"
    with harness.Stack(script=ids, conf={"front.keepalive_ms": 100}) as stack:
        reply = stack.chat(stream=True)
        check(reply.body.startswith(b": ping\n\n: ping\n\n"), reply)
        text_of(reply)
        whole = stack.chat()
        check(b"ping" not in whole.body, whole)


def test_bad_requests_never_reach_penstockd():
    body = '{"model":"tiny","messages":[{"role":"user","content":"x"}]%s}'
    cases = [(b"", 400), (b"{", 400), (b"[]", 400), (b"5", 400), (b'"x"', 400), (b"null", 400), (b"\xff", 400),
             ((body % ',"n":0').encode(), 400), ((body % ',"temperature":"hot"').encode(), 400),
             ((body % ',"model":"tiny"').encode(), 400), (body.replace("tiny", "other").encode() % b"", 404),
             (b'{"model":"tiny","messages":[]}', 400), (b"[" * 5000 + b"]" * 5000, 400),
             ((body % ',"stop":["x",""]').encode(), 400)]
    with harness.Stack(script=script("hello")) as stack:
        for data, status in cases:
            reply = stack.fcgi("POST", "/v1/chat/completions", stack.headers(), data)
            equal(reply.status, status, data[:60])
            check(reply.json()["error"]["message"], reply)
            check(len(reply.body) < 4096)
        m = stack.metrics()
        equal(m["penstock_front_submitted_total"], 0)
        equal(m["penstock_requests_total"], 0)
        equal(m["penstock_requests_rejected_total"], 0)
        equal(stack.chat().status, 200)


def test_declared_length_of_a_chat():
    data = b'{"model":"tiny","messages":[{"role":"user","content":"x"}]}'
    with harness.Stack(script=script("hello")) as stack:
        for declared, status in ((str(len(data)), 200), ("", 200), (None, 200), (str(len(data) - 1), 400),
                                 (str(len(data) + 1), 400), ("0", 400), ("-1", 400), ("1e3", 400)):
            reply = stack.fcgi("POST", "/v1/chat/completions", stack.headers(), data, {"CONTENT_LENGTH": declared})
            equal(reply.status, status, f"CONTENT_LENGTH {declared!r}")


def test_overload_is_429():
    conf = {"batcher.max_running": 1, "batcher.max_queued": 1, "front.children": 2}
    with harness.Stack(script=script("word ", pace=2000, repeat=0), conf=conf) as stack:
        running = stack.open_chat(stream=True)
        running.read_until(b"data: ")
        queued = stack.open_chat(stream=True)
        harness.wait_until(lambda: stack.metrics()["penstock_sequences_waiting"] == 1, "one to wait")
        for _ in range(20):
            reply = stack.chat(stream=True)
            equal(reply.status, 429)
            check(int(reply.headers["retry-after"]) >= 1, reply.headers)
            equal(reply.json()["error"]["code"], "overloaded")
        for path in ("/livez", "/readyz", "/metrics", "/v1/models"):  # live on the tenth that is left
            equal(stack.fcgi("GET", path, stack.headers()).status, 200, path)
        running.close()
        queued.read_until(b"data: ")
        queued.close()
        wait_idle(stack)


def test_slow_client_and_its_neighbours():
    """One of sixteen streams on a child stops reading: it pauses, then it is ended and its blocks are free; the others
    lose no token, also when its reply ends.  Their largest gap is printed, not judged."""
    words = "some words that make text " * 100
    conf = {"batcher.slow_client_timeout_ms": 700 * int(harness.SLOW), "batcher.max_running": 16, "batcher.max_queued": 0,
            "front.children": 1, "front.streams_per_front": 18, "front.stream_window": 4096, "batcher.kv_tokens": 65536}
    with harness.Stack(script=script(words, pace=1000) + script("x ", 1000, 0, name="endless"), conf=conf) as stack:
        slow = stack.open_chat(stream=True, seed=1)
        slow.read_until(b"data: ")
        calls = [stack.open_chat(stream=True, seed=0) for _ in range(15)]
        gaps = drain(calls)
        for call in calls:
            equal(text_of(reply_of(call)), words)
        print(f"largest gap of 15 neighbours of a client that does not read: {1e3 * max(gaps):.1f} ms")
        harness.wait_until(lambda: stack.metrics()["penstock_front_slow_clients_total"] == 1, "the slow client to be ended")
        wait_idle(stack)
        while slow.read():
            pass
        check(not slow.ended and b"[DONE]" not in slow.stdout, "cut without an end")


def test_large_prompt_beside_streams():
    """A 4 MB prompt on a child with 15 running streams.  The largest gap it adds is printed, not judged; the child gives
    the memory back."""
    from front_common import can_read_smaps, private_dirty_kb, with_context
    import tempfile
    words = "some words that make text " * 100
    prompt = " the" * 1000000
    conf = {"batcher.max_running": 16, "batcher.max_queued": 0, "front.children": 1, "front.streams_per_front": 18,
            "batcher.kv_tokens": 1 << 21, "batcher.step_tokens": 4096}
    with tempfile.TemporaryDirectory() as directory:
        model = with_context(harness.TINY_MODEL, 1 << 20, os.path.join(directory, "tiny.gguf"))
        with harness.Stack(script=script("ok") + script(words, pace=2000, repeat=0, name="words"), conf=conf, model=model) as stack:
            child, = stack.front_children()
            streams = [stack.open_chat(stream=True, seed=1, max_tokens=50000) for _ in range(15)]
            for call in streams:
                call.read_until(b"data: ")
            quiet = drain(streams, lambda: len(streams[-1].stdout) > 100000)
            large = stack.open_chat(prompt, seed=0, max_tokens=5)
            busy = drain(streams + [large], lambda: large.ended)
            reply = reply_of(large)
            equal(reply.status, 200, reply)
            equal(reply.json()["choices"][0]["message"]["content"], "ok")
            check(reply.json()["usage"]["prompt_tokens"] > 1000000, reply)
            print(f"largest gap of 15 streams: {1e3 * max(quiet):.1f} ms alone, {1e3 * max(busy[:-1]):.1f} ms beside a 4 MB prompt")
            for call in streams:
                call.close()
            wait_idle(stack)
            if can_read_smaps(child) and not os.environ.get("PENSTOCK_SANITIZER"):
                kb = private_dirty_kb(child)
                print(f"private memory of the child afterwards: {kb} KB")
                check(kb <= 1024, f"{kb} KB private after a 4 MB prompt")


if __name__ == "__main__":
    harness.main(globals())
