"""Classes, limits of keys, deadlines and the queue with the real processes.  The script backend makes the load; tests look at
codes, counts and order, never at how long something takes."""
import json
import threading

import harness
from harness import check, equal, wait_until

CHAT = "/v1/chat/completions"
ENDLESS = "script e\npace 10000\nids 30 31 32\nrepeat 0\n"


def keyed(stack, name, *settings):
    """A new key with SETTINGS, made before the fronts start."""
    done = stack.tool("key", "new", "--config", stack.conf_path, name, *settings)
    equal(done.returncode, 0, done.stderr)
    return done.stdout.strip()


def body(stack, content="hello", **fields):
    return json.dumps({"model": stack.model_name(), "messages": [{"role": "user", "content": content}], **fields})


def ask(stack, key, more=None, **fields):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + key, **(more or {})}
    return stack.open_fcgi("POST", CHAT, headers, body(stack, **fields))


def error(reply):
    return reply.status, reply.json()["error"]["code"]


def test_settings_of_keys():
    with harness.Stack(script=harness.script("yes"), conf={"front.children": 1, "front.streams_per_front": 40}, start=False) as stack:
        plain = stack.key
        boss = keyed(stack, "boss", "--ceiling", "-10", "--priority", "-1")
        stack.start()
        equal(ask(stack, plain, priority=3).reply().status, 200)
        reply = ask(stack, plain, priority=-1).reply()
        equal(error(reply), (403, "forbidden"))
        check("-1" in reply.json()["error"]["message"] and "is 0" in reply.json()["error"]["message"], reply.body)
        equal(reply.json()["error"]["param"], "priority")
        equal(ask(stack, boss, priority=-10).reply().status, 200)
        equal(error(ask(stack, boss, priority=-11).reply()), (403, "forbidden"))
        equal(error(ask(stack, boss, priority=-101).reply()), (400, "invalid_value"))
        done = stack.tool("key", "set", "--config", stack.conf_path, "test", "--ceiling", "-4")
        equal(done.returncode, 0, done.stderr)
        stack.front.popen.send_signal(harness.signal.SIGHUP)
        wait_until(lambda: ask(stack, plain, priority=-4).reply().status == 200, "the new ceiling")
        listed = stack.tool("key", "list", "--config", stack.conf_path).stdout
        check("boss  priority=-1  ceiling=-10\n" in listed and "test  ceiling=-4\n" in listed, listed)
        equal(stack.tool("key", "set", "--config", stack.conf_path, "nobody", "--priority", "1").returncode, 1)
        equal(stack.tool("key", "set", "--config", stack.conf_path, "boss").returncode, 2)
        equal(stack.tool("key", "new", "--config", stack.conf_path, "x", "--priority", "101").returncode, 2)


def test_requests_at_a_time():
    """Over several children, since penstockd counts."""
    with harness.Stack(script=ENDLESS, conf={"front.children": 3}, start=False) as stack:
        key = keyed(stack, "two", "--max-requests", "2")
        stack.start()
        calls = [ask(stack, key, stream=True) for _ in range(2)]
        wait_until(lambda: stack.metrics()["penstock_sequences_running"] == 2, "two streams")
        for _ in range(6):
            reply = ask(stack, key, stream=True).reply()
            equal(error(reply), (429, "key_requests_exceeded"))
            check(int(reply.headers["retry-after"]) >= 1, reply.headers)
        other = ask(stack, stack.key, stream=True)
        wait_until(lambda: stack.metrics()["penstock_sequences_running"] == 3, "another key")
        calls.pop().close()
        wait_until(lambda: stack.metrics()["penstock_sequences_running"] == 2, "one has left")
        calls.append(ask(stack, key, stream=True))
        wait_until(lambda: stack.metrics()["penstock_sequences_running"] == 3, "another may come")
        metrics = stack.metrics()
        equal(metrics['penstock_rejections_total{reason="key_requests"}'], 6)
        equal(metrics["penstock_requests_rejected_total"], 6)
        for call in calls + [other]:
            call.close()
        wait_until(lambda: stack.metrics()["penstock_slots_in_use"] == 0 and stack.metrics()["penstock_tokens_inside"] == 0, "idle")


def test_tokens_a_minute():
    with harness.Stack(script=harness.script("yes"), start=False) as stack:
        key = keyed(stack, "metered", "--tokens-per-minute", "200")
        stack.start()
        equal(ask(stack, key, max_tokens=10, content="water " * 140).reply().status, 200)
        reply = ask(stack, key, max_tokens=10, content="water " * 140).reply()
        equal(error(reply), (429, "key_tokens_exceeded"))
        check(1 <= int(reply.headers["retry-after"]) <= 60, reply.headers)
        equal(ask(stack, stack.key, max_tokens=10, content="water " * 140).reply().status, 200)


def test_queue_of_tokens():
    with harness.Stack(script=ENDLESS, conf={"batcher.max_running": 1, "batcher.kv_tokens": 2048, "batcher.max_queued_tokens": 1500,
                                             "model.max_context": 2048}) as stack:
        calls = [ask(stack, stack.key, content="water " * 900, stream=True, max_tokens=500) for _ in range(2)]
        wait_until(lambda: stack.metrics()["penstock_slots_in_use"] == 2 and stack.metrics()["penstock_reservations"] == 0, "two inside")
        reply = ask(stack, stack.key, content="water " * 1500, stream=True, max_tokens=500).reply()
        equal(error(reply), (429, "overloaded"))
        check("tokens" in reply.json()["error"]["message"] and int(reply.headers["retry-after"]) >= 1, reply)
        equal(stack.metrics()['penstock_rejections_total{reason="queue_tokens"}'], 1)
        small = ask(stack, stack.key, content="hi", stream=True, max_tokens=5)
        wait_until(lambda: stack.metrics()["penstock_slots_in_use"] == 3, "a small one fits")
        for call in calls + [small]:
            call.close()


def test_deadlines():
    """Waiting, in the prompt (no: the script computes at once), decoding; by field and by header; whole and streamed."""
    with harness.Stack(script=ENDLESS, conf={"batcher.max_running": 1}) as stack:
        reply = ask(stack, stack.key, timeout=0.2).reply()
        equal(error(reply), (504, "timeout"))
        first = ask(stack, stack.key, stream=True)
        wait_until(lambda: stack.metrics()["penstock_sequences_running"] == 1, "one stream")
        for fields, headers in (({"timeout": 0.2}, {}), ({}, {"X-Request-Timeout": "0.2"}), ({"timeout": 300}, {"X-Request-Timeout": "0.2"}),
                                ({"timeout": 0.2, "stream": True}, {})):
            equal(error(ask(stack, stack.key, headers, **fields).reply()), (504, "timeout"), fields)  # it waits
        first.close()
        wait_until(lambda: stack.metrics()["penstock_slots_in_use"] == 0, "idle")
        reply = ask(stack, stack.key, {"X-Request-Timeout": "0.3"}, stream=True).reply()
        equal(reply.status, 200)
        events = reply.events()
        equal(json.loads(events[-1])["error"]["code"], "timeout")
        check("[DONE]" not in events)
        equal(error(ask(stack, stack.key, {"X-Request-Timeout": "soon"}).reply()), (400, "invalid_value"))
        # on a slow machine a deadline passes in the front, before penstockd has the request
        check(1 <= stack.metrics()['penstock_requests_expired_total{reason="deadline"}'] <= 6, stack.metrics())
        equal(stack.metrics()["penstock_slots_in_use"], 0)


def test_choices():
    """n answers to one prompt: by index in a stream, together in a whole answer; a stop string ends its own answer."""
    ids = "script a\npace 500\nids 30 31 32 33 34 35\nrepeat 3\n"
    with harness.Stack(script=ids, conf={"batcher.max_running": 4}) as stack:
        one = stack.chat(max_tokens=18).json()
        text = one["choices"][0]["message"]["content"]
        prompt = one["usage"]["prompt_tokens"]
        computed = stack.metrics()["penstock_prompt_tokens_total"]
        whole = stack.chat(max_tokens=18, n=4).json()
        equal([c["index"] for c in whole["choices"]], [0, 1, 2, 3])
        equal([c["message"]["content"] for c in whole["choices"]], [text] * 4)
        equal({c["finish_reason"] for c in whole["choices"]}, {one["choices"][0]["finish_reason"]})
        equal(whole["usage"]["prompt_tokens"], prompt, "the prompt counts once")
        equal(whole["usage"]["completion_tokens"], 4 * one["usage"]["completion_tokens"])
        check(stack.metrics()["penstock_prompt_tokens_total"] - computed < 2 * prompt, "and is computed once")
        events = stack.chat(max_tokens=18, n=3, stream=True, stream_options={"include_usage": True}).events()
        chunks = [json.loads(event) for event in events[:-1]]
        equal(events[-1], "[DONE]")
        said = {i: "" for i in range(3)}
        ended = []
        for chunk in chunks[:-1]:
            (choice,) = chunk["choices"]
            check(choice["index"] not in ended, "nothing after its end")
            said[choice["index"]] += choice["delta"].get("content") or ""
            if choice["finish_reason"]:
                ended.append(choice["index"])
        equal((said, sorted(ended)), ({i: text for i in range(3)}, [0, 1, 2]))
        equal(chunks[-1]["usage"]["completion_tokens"], 3 * one["usage"]["completion_tokens"])
        equal(error(stack.chat(n=5)), (400, "invalid_value"))
        equal(error(stack.chat(n=0)), (400, "invalid_value"))
        equal(error(stack.chat(n=17)), (400, "invalid_value"))
    with harness.Stack(script=ENDLESS, conf={"batcher.max_running": 4}) as stack:
        word = stack.chat(max_tokens=40).json()["choices"][0]["message"]["content"][10:13]
        reply = stack.chat(max_tokens=1500, n=4, stop=word).json()  # every one stops by a word of its own
        equal({c["finish_reason"] for c in reply["choices"]}, {"stop"})
        check(reply["usage"]["completion_tokens"] < 200, reply["usage"])
        wait_until(lambda: stack.metrics()["penstock_slots_in_use"] == 0, "no more than that was computed for long")
        call = stack.open_chat(max_tokens=1500, n=4, stream=True)
        wait_until(lambda: stack.metrics()["penstock_sequences_running"] == 4, "four sequences")
        call.close()
        wait_until(lambda: all(stack.metrics()["penstock_" + name] == 0 for name in
                               ("slots_in_use", "tokens_inside", "kv_blocks_used", "sequences_running")), "all gone")
        equal(error(stack.chat(n=4, timeout=0.2)), (504, "timeout"))


def test_small_window():
    """Sixteen answers and the smallest window: credit is shared, nothing stalls."""
    with harness.Stack(script="script a\npace 100\nids 30 31 32 33\nrepeat 50\n",
                       conf={"batcher.max_running": 16, "front.stream_window": 4096, "front.streams_per_front": 4,
                             "batcher.max_queued": 4}) as stack:
        reply = stack.chat(n=16, max_tokens=200, stream=True)
        equal(reply.events()[-1], "[DONE]")
        equal(sum(json.loads(e)["choices"][0]["finish_reason"] is not None for e in reply.events()[:-1]), 16)


def test_many_clients_lose_nothing():
    """Twelve clients for eight places, three keys with limits: every request is answered, 200 or a 429 with Retry-After, and
    nothing is left counted."""
    with harness.Stack(script=harness.script("one two three", pace=500),
                       conf={"batcher.max_running": 2, "batcher.max_queued": 6, "front.children": 3}, start=False) as stack:
        keys = [keyed(stack, f"k{i}", "--max-requests", "3") for i in range(3)]
        stack.start()
        seen, lock = [], threading.Lock()

        def client(index):
            for turn in range(15):
                reply = ask(stack, keys[index % 3], stream=turn % 2 == 0, priority=turn % 4).reply()
                with lock:
                    seen.append((reply.status, reply.headers.get("retry-after")))

        threads = [threading.Thread(target=client, args=(i,)) for i in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        equal(len(seen), 12 * 15)
        check({status for status, _ in seen} <= {200, 429}, seen)
        check(all(after and int(after) >= 1 for status, after in seen if status == 429), seen)
        metrics = stack.metrics()
        good = sum(status == 200 for status, _ in seen)
        check(good > 0)
        equal(metrics["penstock_requests_finished_total"], good)
        equal(metrics["penstock_requests_rejected_total"], len(seen) - good)
        for name in ("slots_in_use", "tokens_inside", "reservations", "kv_blocks_used", "sequences_running", "sequences_waiting"):
            equal(metrics["penstock_" + name], 0, name)


if __name__ == "__main__":
    harness.main(globals())
