"""Faults between fronts and penstockd, with real processes: who dies, who notices, and what is left behind (nothing)."""
import json
import os
import random
import signal
import time

import fcgi_client as fc
import harness
from front_common import content_of, drain, failed_stream, reply_of, text_of, wait_idle
from harness import check, equal, script

ENDLESS = "word "
CONF = {"front.children": 3, "front.streams_per_front": 8, "batcher.max_running": 12, "batcher.max_queued": 8,
        "batcher.kv_tokens": 65536}


def kill(pid, sig=signal.SIGKILL):
    os.kill(pid, sig)


def test_child_killed_mid_stream():
    """Its streams end without END_REQUEST or [DONE]; every other stream goes on; its lane serves again."""
    words = "one two three four five six seven eight nine ten " * 30
    conf = dict(CONF, **{"front.children": 2, "batcher.max_queued": 0})
    with harness.Stack(script=script(words, pace=1000), conf=conf) as stack:
        victim, other = stack.front_children()
        calls = [stack.open_chat(stream=True) for _ in range(12)]  # at least four and at most eight on each child
        for call in calls:
            call.read_until(b"data: ")
        kill(victim)
        drain(calls)
        replies = [reply_of(call) for call in calls]
        cut = [reply for reply in replies if not reply.ended]
        check(4 <= len(cut) <= 8, f"{len(cut)} streams were cut")
        for reply in cut:
            check("[DONE]" not in reply.events() and not failed_stream(reply), "a stream of the dead child ended properly")
            check(words.startswith(content_of(reply)))
        for reply in replies:
            if reply.ended:
                equal(text_of(reply), words)
        harness.wait_until(lambda: len(stack.front_children()) == 2, "a new child")
        stack.wait_attached()
        check(victim not in stack.front_children() and other in stack.front_children())
        wait_idle(stack)
        m = stack.metrics()
        equal(m["penstock_front_respawns_total"], 1)
        equal(m["penstock_lanes_reset_total"], 1)
        equal(m["penstock_front_submitted_total"], 12, "the dead child's counters are kept")
        calls = [stack.open_chat(stream=True) for _ in range(12)]
        drain(calls)
        for call in calls:
            equal(text_of(reply_of(call)), words)


def test_penstockd_killed():
    """Every open client is told within five seconds; /readyz says 503; a new penstockd serves without new fronts."""
    with harness.Stack(script=script(ENDLESS, 1000, 0), conf=dict(CONF, **{"batcher.max_running": 4})) as stack:
        children = sorted(stack.front_children())
        streams = [stack.open_chat(stream=True) for _ in range(3)]
        for call in streams:
            call.read_until(b"data: ")
        whole = stack.open_chat()
        harness.wait_until(lambda: stack.metrics()["penstock_sequences_running"] == 4, "four to run")
        queued = [stack.open_chat(stream=True), stack.open_chat()]
        harness.wait_until(lambda: stack.metrics()["penstock_sequences_waiting"] == 2, "two to wait")
        began = time.monotonic()
        stack.daemon.kill()
        drain(streams + queued + [whole])
        took = time.monotonic() - began
        print(f"all clients told after {1e3 * took:.1f} ms")
        check(took < 5 * harness.SLOW, took)
        for call in streams:
            check(failed_stream(reply_of(call)) and call.ended, reply_of(call))
        for call in queued + [whole]:
            equal(reply_of(call).status, 503)
        # A child without a stream may be the last to notice.
        harness.wait_until(lambda: stack.metrics()["penstock_front_children_attached"] == 0, "all children to notice")
        equal(stack.fcgi("GET", "/readyz").status, 503)
        equal(stack.fcgi("GET", "/livez").status, 200)
        equal(stack.fcgi("GET", "/v1/models", stack.headers()).status, 200)
        reply = stack.chat()
        equal(reply.status, 503)
        check(int(reply.headers["retry-after"]) >= 1)
        stack.start_daemon()
        stack.wait_ready()
        stack.wait_attached()
        equal(sorted(stack.front_children()), children, "children")
        reply = stack.chat(max_tokens=5)
        equal((reply.status, reply.json()["choices"][0]["finish_reason"]), (200, "length"))
        wait_idle(stack)


def test_penstockd_hangs():
    """Stopped, not dead: the heartbeat tells.  When it goes on, it is served again."""
    with harness.Stack(script=script(ENDLESS, 1000, 0), conf=dict(CONF, **{"batcher.watchdog_ms": 1000})) as stack:
        call = stack.open_chat(stream=True)
        call.read_until(b"data: ")
        kill(stack.daemon.pid, signal.SIGSTOP)
        try:
            drain([call])
            check(failed_stream(reply_of(call)) and call.ended)
            harness.wait_until(lambda: stack.fcgi("GET", "/readyz").status == 503, "/readyz to say 503")
            harness.wait_until(lambda: stack.metrics()["penstock_front_children_attached"] == 0, "all children to notice")
            equal(stack.chat().status, 503)
        finally:
            kill(stack.daemon.pid, signal.SIGCONT)
        stack.wait_attached()
        equal(stack.chat(max_tokens=5).status, 200)
        wait_idle(stack)


def test_penstockd_killed_again_and_again():
    rounds = int(os.environ.get("PENSTOCK_ROUNDS", 5))
    with harness.Stack(script=script("short answer", 200), conf=CONF) as stack:
        children = sorted(stack.front_children())
        for _ in range(rounds):
            stack.wait_attached()
            calls = [stack.open_chat(stream=True) for _ in range(6)]
            calls[0].read_until(b"data: ")
            stack.daemon.kill()
            drain(calls)
            for call in calls:
                reply = reply_of(call)
                check(call.ended, "cut without an end")
                check(reply.status in (200, 503), reply)
                if reply.status == 200:
                    check(failed_stream(reply) or text_of(reply) == "short answer", reply)
            stack.start_daemon()
            stack.wait_ready()
        stack.wait_attached()
        equal(stack.chat().json()["choices"][0]["message"]["content"], "short answer")
        equal(sorted(stack.front_children()), children)


def test_client_leaves_in_every_state():
    """Queued, in prefill, in decode, streamed and not: work stops and everything is free."""
    text = f"prefill 20000\n{script(ENDLESS, 1000, 0)}"
    conf = dict(CONF, **{"batcher.max_running": 2, "batcher.max_queued": 6, "batcher.step_tokens": 16, "front.children": 2})
    with harness.Stack(script=text, conf=conf) as stack:
        for stream in (True, False):
            running = [stack.open_chat(stream=True) for _ in range(2)]
            for call in running:
                call.read_until(b"data: ")
            queued = stack.open_chat(stream=stream)
            harness.wait_until(lambda: stack.metrics()["penstock_sequences_waiting"] == 1, "one to wait")
            queued.close()
            harness.wait_until(lambda: stack.metrics()["penstock_sequences_waiting"] == 0, "nobody to wait")
            running.pop().close()
            before = stack.metrics()["penstock_prompt_tokens_total"]
            prefill = stack.open_chat("water " * 200, stream=stream)
            harness.wait_until(lambda: stack.metrics()["penstock_prompt_tokens_total"] > before, "prefill to begin")
            prefill.close()
            harness.wait_until(lambda: stack.metrics()["penstock_sequences_running"] == 1, "prefill to stop")
            decode = stack.open_chat(stream=stream)
            harness.wait_until(lambda: stack.metrics()["penstock_sequences_running"] == 2, "decode")
            decode.close()
            running[0].close()
            wait_idle(stack)
        m = stack.metrics()
        equal(m["penstock_front_clients_gone_total"], 10)
        equal(m["penstock_requests_cancelled_total"], 10)


def test_client_left_in_the_backlog():
    """What its client left while it waited to be accepted is not computed."""
    conf = dict(CONF, **{"front.children": 1, "front.streams_per_front": 24})
    with harness.Stack(script=script("hello", 200), conf=conf) as stack:
        child, = stack.front_children()
        kill(child, signal.SIGSTOP)
        try:
            for _ in range(10):
                stack.open_chat().close()
            patient = stack.open_chat()
        finally:
            kill(child, signal.SIGCONT)
        equal(patient.reply().status, 200)
        wait_idle(stack)
        equal(stack.metrics()["penstock_front_submitted_total"], 1)


def test_abort_and_late_records():
    """ABORT and records that have no business here end a running request at once."""
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "x"}], "stream": True}).encode()
    with harness.Stack(script=script(ENDLESS, 1000, 0), conf=CONF) as stack:
        head = fc.begin() + fc.params(fc.post("/v1/chat/completions", len(body), HTTP_AUTHORIZATION="Bearer " + stack.key))
        for late in (fc.record(fc.ABORT), fc.record(fc.STDIN, b"more"), fc.record(fc.GET_VALUES, request=0), fc.begin(), b"\0" * 8,
                     fc.record(fc.ABORT) * 1000):
            with fc.Raw(stack.front_socket, head + fc.stdin(body, 11, 3)) as raw:
                raw.read(b"data: ")
                raw.send(late)
                raw.read_close()
                check(not raw.ended and b"[DONE]" not in raw.stdout)
            wait_idle(stack)
        equal(stack.metrics()["penstock_requests_cancelled_total"], 6)


def test_hung_child_is_replaced():
    """A child that does not come round is killed; what it held is cut, and the service is whole again."""
    conf = dict(CONF, **{"front.watchdog_ms": 3000})
    with harness.Stack(script=script(ENDLESS, 1000, 0), conf=conf) as stack:
        victim = stack.front_children()[0]
        kill(victim, signal.SIGSTOP)
        harness.wait_until(lambda: victim not in stack.front_children(), "the hung child to be killed")
        stack.wait_attached()
        check("has not come round" in stack.front.log_text())
        equal(stack.chat(max_tokens=5).status, 200)
        wait_idle(stack)


def test_random_disconnects():
    """Clients that leave at random moments leave no lane, slot or block in use.  PENSTOCK_ROUNDS raises their number."""
    rounds = int(os.environ.get("PENSTOCK_ROUNDS", 300))
    seed = int(os.environ.get("PENSTOCK_SEED", random.randrange(1 << 30)))
    print("PENSTOCK_SEED", seed)
    rng = random.Random(seed)
    with harness.Stack(script=script("some words " * 30, pace=300), conf=CONF) as stack:
        children = sorted(stack.front_children())
        open_calls = []
        for _ in range(rounds):
            if len(open_calls) >= 16:
                open_calls.pop(rng.randrange(len(open_calls))).close()
            call = stack.open_chat("water " * rng.randrange(40), stream=rng.random() < 0.7)
            open_calls.append(call)
            if rng.random() < 0.3:
                call.read()
            if rng.random() < 0.3:
                open_calls.pop(rng.randrange(len(open_calls))).close()
        for call in open_calls:
            call.close()
        wait_idle(stack)
        equal(sorted(stack.front_children()), children)
        equal(text_of(stack.chat(stream=True)), "some words " * 30)


def test_random_kills_of_children():
    """Children killed under load: no stream gets another's bytes, nothing is left over.  PENSTOCK_ROUNDS raises the number
    of kills."""
    rounds = int(os.environ.get("PENSTOCK_ROUNDS", 8))
    rng = random.Random(int(os.environ.get("PENSTOCK_SEED", 1)))
    scripts = "".join(script(f"answer {n} " * 40, pace=500, name=f"s{n}") for n in range(8))
    with harness.Stack(script=scripts, conf=CONF) as stack:
        for _ in range(rounds):
            calls = [(n, stack.open_chat(stream=True, seed=n)) for n in range(8)]
            calls[0][1].read()
            kill(rng.choice(stack.front_children()))
            drain([c for _, c in calls])
            for n, call in calls:
                said, wanted = content_of(reply_of(call)), f"answer {n} " * 40
                check(wanted.startswith(said), f"stream {n} said {said[-80:]!r}")
                check(not call.ended or said == wanted or reply_of(call).status != 200, f"stream {n} was cut but ended")
            stack.wait_attached()
        wait_idle(stack)


if __name__ == "__main__":
    harness.main(globals())
