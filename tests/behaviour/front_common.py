"""front_common.py: what the tests of the fronts share on top of harness.py."""
import json
import os
import selectors
import struct
import time

import harness
from harness import check, equal

LEFTOVERS = ("penstock_front_requests_generating", "penstock_slots_in_use", "penstock_sequences_running",
             "penstock_sequences_waiting", "penstock_sequences_paused", "penstock_kv_blocks_used", "penstock_reservations")


def wait_idle(stack):
    """Until nothing is left of any request, here or in penstockd: connections, slots, sequences, blocks."""
    seen = {}

    def idle():
        seen.update(stack.metrics())
        return seen["penstock_front_requests_open"] == 1 and not any(seen[name] for name in LEFTOVERS)
    try:
        harness.wait_until(idle, "everything to be released")
    except AssertionError as error:
        raise AssertionError(f"{error}: { {n: seen[n] for n in LEFTOVERS + ('penstock_front_requests_open',)} }") from None


def content_of(reply):
    """What the chunks of a streamed answer say, complete or not."""
    chunks = [json.loads(e) for e in reply.events() if e != "[DONE]"]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c.get("choices"))


def text_of(reply):
    """The content of a streamed answer, after checking its shape."""
    check(reply.ended, "no END_REQUEST", reply)
    equal(reply.status, 200)
    equal(reply.headers["content-type"], "text/event-stream")
    events = reply.events()
    equal(events[-1], "[DONE]")
    finish = [c["choices"][0]["finish_reason"] for c in map(json.loads, events[:-1]) if c["choices"]]
    check(finish[-1] in ("stop", "length") and not any(finish[:-1]), finish)
    return content_of(reply)


def reply_of(call):
    return harness.parse_cgi(call.stdout, call.ended)


def failed_stream(reply):
    """A stream that was told of an error: an error event at the end, no [DONE]."""
    events = reply.events()
    return reply.status == 200 and "[DONE]" not in events and bool(events) and "error" in json.loads(events[-1])


def drain(calls, until=None):
    """Reads several open calls at once, each to its end (or until UNTIL() is true); returns each one's largest gap in
    seconds between two reads."""
    with selectors.DefaultSelector() as selector:
        last = {}
        gaps = {call: 0.0 for call in calls}
        for call in calls:
            selector.register(call.sock, selectors.EVENT_READ, call)
        end = time.monotonic() + harness.DEADLINE
        while selector.get_map() and not (until and until()):
            check(time.monotonic() < end, "streams do not end")
            for key, _ in selector.select(0.1):
                call = key.data
                call.read()
                now = time.monotonic()
                if call in last:
                    gaps[call] = max(gaps[call], now - last[call])
                last[call] = now
                # read() returns at the first STDOUT record: take what else has come before sleeping on the socket
                while not call.ended and has_record(call.pending):
                    call.read()
                if call.ended or not call.sock.fileno() >= 0 or closed(call):
                    selector.unregister(call.sock)
        return [gaps[call] for call in calls]


def has_record(pending):
    if len(pending) < 8:
        return False
    _, _, _, length, padding, _ = struct.unpack(">BBHHBB", pending[:8])
    return len(pending) >= 8 + length + padding


def closed(call):
    """True when the front has closed the connection and nothing is left to read."""
    try:
        return call.sock.recv(1, harness.socket.MSG_PEEK | harness.socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def with_context(model, tokens, path):
    """Writes a copy of MODEL that claims to be trained for TOKENS tokens (the script backend computes nothing)."""
    with open(model, "rb") as f:
        data = bytearray(f.read())
    key = b"llama.context_length"
    at = data.index(struct.pack("<Q", len(key)) + key) + 8 + len(key)
    equal(struct.unpack_from("<I", data, at)[0], 4, "type of llama.context_length")
    struct.pack_into("<I", data, at + 4, tokens)
    with open(path, "wb") as f:
        f.write(data)
    return path


def private_dirty_kb(pid):
    with open(f"/proc/{pid}/smaps_rollup") as f:
        for line in f:
            if line.startswith("Private_Dirty:"):
                return int(line.split()[1])
    raise AssertionError("no Private_Dirty")


def daemon_metric(stack, name):
    """A counter of penstockd, read without the fronts."""
    done = stack.tool("status", "--json", "--config", stack.conf_path)
    return json.loads(done.stdout)["metrics"][name]


def can_read_smaps(pid):
    return os.access(f"/proc/{pid}/smaps_rollup", os.R_OK)
