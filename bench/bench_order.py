#!/usr/bin/env python3
"""bench_order.py: 64 mixed streams through nginx with a real model, all asked for at once: who gets a first token when?  Run by
hand from the build directory:

    python3 ../bench/bench_order.py MODEL.gguf [POLICY…]

Prompts are short (about 40 tokens), middle (240) and long (840), classes −5, 0 and 5, answers 24 tokens.  Per policy a table of
the time to the first token, by class and length: median and largest, seconds.  In the middle of the run `penstock top --once` is
printed.  What must be the same everywhere is the order; the seconds are those of the machine.
"""
import json
import os
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "behaviour"))
import harness  # noqa: E402
from bench_path import request_bytes, stream  # noqa: E402

CLASSES = (-5, 0, 5)
LENGTHS = {"short": 6, "middle": 200, "long": 800}  # words
KINDS = ["short"] * 7 + ["middle"] * 2 + ["long"]


def client(stack, kind, priority, begin, times):
    data = request_bytes(stack, "water " * LENGTHS[kind], keep=False, max_tokens=24, priority=priority, ignore_eos=True)
    first = []
    with stack.nginx.tls() as connection:
        begin.wait()
        began = time.perf_counter()
        seen = stream(connection, data, lambda now: first.append(now - began))
    if b"[DONE]" not in seen:
        raise AssertionError(seen[-300:])
    times.append((priority, kind, first[0], time.perf_counter() - began))


def run(model, policy):
    conf = {"batcher.policy": policy, "batcher.max_running": 8, "batcher.max_queued": 64, "batcher.threads": 2,
            "batcher.kv_tokens": 32768, "batcher.step_tokens": 256, "batcher.long_prompt_tokens": 700}
    with harness.Stack(model=model, conf=conf, nginx=True, nginx_options=["--rate", "1000", "--burst", "1000"], start=False) as stack:
        stack.tool("key", "set", "--config", stack.conf_path, "test", "--ceiling", "-100")
        stack.start()
        times, begin = [], threading.Barrier(65)
        threads = [threading.Thread(target=client, args=(stack, KINDS[i % len(KINDS)], CLASSES[i % 3], begin, times)) for i in range(64)]
        for thread in threads:
            thread.start()
        begin.wait()
        began = time.perf_counter()
        time.sleep(5)
        top = stack.tool("top", "--config", stack.conf_path, "--once", "--interval", "2").stdout
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
        metrics = stack.metrics()
    tokens = metrics["penstock_prompt_tokens_total"] + metrics["penstock_generated_tokens_total"]
    print(f"\n{policy}: {len(times)} streams in {seconds:.1f} s, {tokens / seconds:.0f} tokens/s with prompts, "
          f"{metrics['penstock_preemptions_total']:.0f} preemptions\n\n{top}")
    print("class  length   streams  first token: median  largest")
    for priority in CLASSES:
        for kind in LENGTHS:
            firsts = [first for p, k, first, _ in times if (p, k) == (priority, kind)]
            if firsts:
                print(f"{priority:5}  {kind:7}  {len(firsts):7}  {statistics.median(firsts):20.2f}  {max(firsts):7.2f}")
    return {"policy": policy, "seconds": seconds, "short_p99": max(f for _, k, f, _ in times if k == "short")}


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print(json.dumps([run(sys.argv[1], policy) for policy in sys.argv[2:] or ["fair", "fcfs"]]))
