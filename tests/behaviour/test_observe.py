"""What an operator sees: /metrics with histograms, penstock top, penstock blackbox also after a kill -9."""
import json
import os
import re
import signal

import harness
from harness import check, equal, wait_until

ENDLESS = "script e\npace 5000\nids 30 31 32\nrepeat 0\n"


def histogram(metrics, name):
    """[(upper edge, cumulative count)], sum, count."""
    buckets = [(float(match.group(1)), value) for key, value in metrics.items()
               if (match := re.fullmatch(re.escape(name) + r'_bucket\{le="([^"]+)"\}', key))]
    return buckets, metrics[name + "_sum"], metrics[name + "_count"]


def test_histograms():
    with harness.Stack(script=harness.script("one two three four five", pace=3000)) as stack:
        for _ in range(3):
            equal(stack.chat(max_tokens=50).status, 200)
        metrics = stack.metrics()
        counts = {"time_to_first_token_seconds": 3, "e2e_request_latency_seconds": 3, "request_queue_time_seconds": 3,
                  "request_prefill_time_seconds": 3, "request_decode_time_seconds": 3, "request_prompt_tokens": 3,
                  "request_generation_tokens": 3, "request_time_per_output_token_seconds": 3}
        tokens = metrics["penstock_generated_tokens_total"]
        counts["inter_token_latency_seconds"] = tokens - 3
        for name in ("step_time_seconds", "step_sequences", "step_tokens", "step_budget_ratio"):
            counts[name] = metrics["penstock_steps_total"]
        for name, wanted in counts.items():
            buckets, total, count = histogram(metrics, "penstock_" + name)
            equal(count, wanted, name)
            equal(buckets[-1][0], float("inf"), name)
            equal(buckets[-1][1], count, name)
            equal(sorted(buckets), buckets, name)
            check(all(a[1] <= b[1] for a, b in zip(buckets, buckets[1:])), name, buckets)
            check(total > 0, name)
        equal(metrics["penstock_request_generation_tokens_sum"], tokens)
        equal(metrics["penstock_step_sequences_sum"], metrics["penstock_steps_total"])


def test_top():
    with harness.Stack(script=ENDLESS) as stack:
        calls = [stack.open_chat(stream=True, priority=priority) for priority in (0, 0, 7)]
        wait_until(lambda: stack.metrics()["penstock_sequences_running"] == 3, "three streams")
        # The census is taken five times a second, so it may take a reading until it has them.
        wait_until(lambda: sum(g["running"] for g in json.loads(stack.tool(
            "top", "--config", stack.conf_path, "--json", "--once", "--interval", "0.2").stdout)["groups"]) == 3, "groups")
        done = stack.tool("top", "--config", stack.conf_path, "--json", "--count", "2", "--interval", "0.3")
        equal(done.returncode, 0, done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        equal(len(lines), 2)
        groups = {(g["class"], g["key"]): (g["running"], g["waiting"]) for g in lines[1]["groups"]}
        equal(groups, {(0, "test"): (2, 0), (7, "test"): (1, 0)})
        equal((lines[1]["state"], lines[1]["running"], lines[1]["inside"]), ("ready", 3, 3))
        check(lines[1]["generated_tokens_per_s"] > 0 and lines[1]["steps_per_s"] > 0, lines[1])
        check(0.001 < lines[1]["itl"]["p50_s"] < 60, lines[1])
        check(lines[1]["batch_sequences"] > 0 and lines[1]["kv_blocks_used"] > 0, lines[1])
        done = stack.tool("top", "--config", stack.conf_path, "--once", "--interval", "0.2")
        check("\033" not in done.stdout and "3 running of 8" in done.stdout and "TTFT p50" in done.stdout, done.stdout)
        check(re.search(r"^ +7  test +1 +0$", done.stdout, re.M), done.stdout)
        for call in calls:
            call.close()
        stack.daemon.stop()
        done = stack.tool("top", "--config", stack.conf_path, "--once")
        equal(done.returncode, 1)
        check("is penstockd running" in done.stderr, done.stderr)


def plans(stack, *arguments):
    done = stack.tool("blackbox", "--config", stack.conf_path, "--json", *arguments)
    equal(done.returncode, 0, done.stderr)
    return json.loads(done.stdout)


def test_black_box_after_a_kill():
    """Killed in the middle of its work; the plans say what it did, and the next start keeps them."""
    with harness.Stack(script=ENDLESS, conf={"batcher.step_tokens": 32, "front.streams_per_front": 8}) as stack:
        calls = [stack.open_chat("secret words " * 40, stream=True) for _ in range(6)]
        wait_until(lambda: stack.metrics()["penstock_generated_tokens_total"] > 300, "some tokens")
        box = plans(stack, "--last", "5")
        equal((len(box["plans"]), box["alive"], box["pid"]), (5, True, stack.daemon.pid))
        stack.daemon.kill()
        box = plans(stack, "--last", "4096")
        equal((box["alive"], box["step_tokens"], box["max_running"]), (False, 32, 8))
        steps = box["plans"]
        check(len(steps) > 50, len(steps))
        equal([p["plan"] for p in steps], list(range(steps[0]["plan"], steps[0]["plan"] + len(steps))))
        check(all(a["time_s"] <= b["time_s"] for a, b in zip(steps, steps[1:])))
        check(all(p["rows"] <= 32 and p["decodes"] + p["prefills"] == p["sequences"] for p in steps))
        check(all(len(p["items"]) == min(24, p["sequences"] + p["evicted"] + p["expired"]) for p in steps))
        check(all(p["step_ms"] is not None for p in steps[:-2] if p["sequences"]), "only what was under way has no time")
        first = [p for p in steps if p["admitted"]]
        equal(sum(p["admitted"] for p in first), 6)
        check(all(item["kind"] == "prefill" for p in first for item in p["items"] if item["admitted"]))
        equal(len({item["request"] for p in steps for item in p["items"]}), 6)
        check(steps[-1]["running"] == 6 and steps[-1]["free_blocks"] < box["blocks"], steps[-1])
        with open(f"/dev/shm/penstock.{stack.instance}.blackbox", "rb") as f:
            check(b"secret" not in f.read(), "no text")
        equal(os.stat(f"/dev/shm/penstock.{stack.instance}.blackbox").st_mode & 0o777, 0o640)
        text = stack.tool("blackbox", "--config", stack.conf_path, "--last", "3").stdout
        equal(len(text.splitlines()), 5, text)
        check("(dead)" in text.splitlines()[0], text)

        stack.start_daemon()
        stack.wait_ready()
        equal(plans(stack)["plans"], [])
        equal(plans(stack, "--previous", "--last", "4096")["plans"], steps)
        for call in calls:
            call.close()
        stack.daemon.stop(signal.SIGTERM)
        equal(stack.tool("blackbox", "--config", stack.conf_path).returncode, 1, "a good end leaves none")


def test_black_box_after_a_fault():
    with harness.Stack(script="script f\npace 500\nids 30 31 32 fault\n") as stack:
        check(stack.chat(max_tokens=20).status >= 500)
        stack.daemon.popen.wait(harness.DEADLINE)
        check(plans(stack)["plans"][-1]["step_ms"] is None)


if __name__ == "__main__":
    harness.main(globals())
