#!/usr/bin/env python3
"""The scheduler's bars, in the simulator: traces of many shapes on machines of several sizes.

    bench/sim_bars.py PENSTOCK [--quick] [--only WORD] [--dir DIR]

Load is what is offered (output tokens by the time between first and last arrival) by the throughput that fcfs reaches when
everything arrives at once.  Every figure but the step's CPU time is the same on every machine.  Exit status 1 when a bar is
missed.
"""
import argparse
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

# Microseconds and limits, of machines that resemble ...
COSTS = {
    # a CPU with a small model
    "cpu": dict(fixed_us=5000, prefill_us_per_token=2000, decode_us_per_seq=1500, context_us_per_ktoken=100, kv_tokens=131072,
                max_batch=16, step_tokens=256, long_prompt_tokens=4096, max_queue_wait_s=3600, itl_target_ms=100),
    # a small GPU
    "small": dict(fixed_us=9000, prefill_us_per_token=60, decode_us_per_seq=60, context_us_per_ktoken=6, kv_tokens=400000,
                  max_batch=64, step_tokens=1024, long_prompt_tokens=8192, max_queue_wait_s=3600, itl_target_ms=50),
    # a large GPU
    "large": dict(fixed_us=12000, prefill_us_per_token=20, decode_us_per_seq=15, context_us_per_ktoken=1.2, kv_tokens=3000000,
                  max_batch=256, step_tokens=8192, long_prompt_tokens=16384, max_queue_wait_s=3600, itl_target_ms=60),
    # the same without a target for the time between tokens
    "plain": dict(fixed_us=12000, prefill_us_per_token=20, decode_us_per_seq=15, kv_tokens=3000000, max_batch=256,
                  step_tokens=2048, long_prompt_tokens=16384, max_queue_wait_s=3600),
}
LONG = {"cpu": "0.05:12000", "small": "0.05:32768", "large": "0.05:65536", "plain": "0.05:65536"}
SHAPES = {
    "poisson": ["poisson"],
    "bursty": ["bursty"],
    "very bursty": ["bursty", "--burst", "30"],
    "on-off": ["onoff"],
    "chat": ["chat", "--prefixes", "0"],
    "short answers": ["poisson", "--output", "20:0.6"],
    "long answers": ["poisson", "--output", "600:0.8"],
    "tiny prompts": ["poisson", "--prompt", "40:0.8"],
    "many keys": ["poisson", "--keys", "200:1"],
    "three classes": ["bursty", "--classes", "3", "--keys", "5"],
}
POOL_SHAPES = {
    **SHAPES,
    "some long": ["poisson", "--long", "0.05:4000"],
    "wide answers": ["poisson", "--output", "300:1.3", "--prompt", "100:0.5"],
    "one length": ["poisson", "--output", "800:0", "--prompt", "200:0"],
}
POLICIES = ("fcfs", "priority", "fair")


class Bench:
    def __init__(self, penstock, directory):
        self.penstock, self.directory, self.missed = penstock, pathlib.Path(directory), 0

    def run(self, *args):
        done = subprocess.run([self.penstock, "sim", *map(str, args)], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"penstock sim {' '.join(map(str, args))}: {done.stderr.strip()}")
        return done.stdout

    def trace(self, name, *args):
        path = self.directory / (name.replace(" ", "_") + ".csv")
        path.write_text(self.run("--generate", *args))
        return path

    def cost(self, name, **changes):
        path = self.directory / "cost.json"
        path.write_text(json.dumps({**COSTS[name], **changes}))
        return path

    def simulate(self, trace, cost, policy, scale=1.0):
        out = json.loads(self.run("--trace", trace, "--policy", policy, "--model-cost", cost, "--json", "--time-scale", repr(scale)))
        out["group"] = {group["group"]: group for group in out["groups"]}
        return out

    def verdict(self, good):
        self.missed += not good
        return "" if good else "  MISSED"


def offered(trace):
    arrivals, tokens = [], 0
    with open(trace) as stream:
        for row in csv.DictReader(stream):
            arrivals.append(float(row["arrival_s"]))
            tokens += int(row["output_tokens"])
    return tokens / (max(arrivals) - min(arrivals))


def largest(trace):
    with open(trace) as stream:
        return max(int(row["prompt_tokens"]) + int(row["output_tokens"]) for row in csv.DictReader(stream))


def time_to_first_token(bench, requests, wait_s, only):
    print("\np99 TTFT of short requests, load 0.8, 5 % long prompts: at least 4 times lower than fcfs; throughput within 2 %\n")
    print(f"{'machine':8} {'trace':14} {'fcfs s':>9} {'priority':>9} {'fair':>9} {'times':>13} {'throughput':>16} {'long p99 s':>26} {'wait max':>9} {'rejected':>14}")
    for machine in COSTS:
        for shape, args in SHAPES.items():
            if only and only not in machine + " " + shape:
                continue
            trace = bench.trace("trace", *args, "--requests", requests, "--long", LONG[machine], "--seed", 1)
            full = bench.simulate(trace, bench.cost(machine, max_queue_wait_s=0), "fcfs", 0)["throughput_tok_s"]
            cost = bench.cost(machine, max_queue_wait_s=wait_s)
            scale = offered(trace) / (0.8 * full)
            out = {policy: bench.simulate(trace, cost, policy, scale) for policy in POLICIES}
            ttft = [out[p]["group"]["short"]["ttft_p99_s"] for p in POLICIES]
            ratio = [ttft[0] / t for t in ttft[1:]]
            speed = [out[p]["throughput_tok_s"] / out["fcfs"]["throughput_tok_s"] for p in POLICIES[1:]]
            good = min(ratio) >= 4 and min(speed) >= 0.98
            slow = "/".join(f"{out[p]['group']['long']['ttft_p99_s']:.1f}" for p in POLICIES)
            lost = "/".join(str(out[p]["rejected"]) for p in POLICIES)
            wait = max(out[p]["group"][g]["wait_max_s"] for p in POLICIES[1:] for g in ("short", "long"))
            print(f"{machine:8} {shape:14} {ttft[0]:9.3f} {ttft[1]:9.3f} {ttft[2]:9.3f} {ratio[0]:6.1f} {ratio[1]:6.1f} "
                  f"{speed[0]:8.4f} {speed[1]:7.4f} {slow:>26} {wait:9.1f} {lost:>14}{bench.verdict(good)}", flush=True)


def fairness(bench, requests, only):
    print("\nservice of backlogged keys under fair: less than 5 % apart\n")
    print(f"{'machine':8} {'trace':32} {'fcfs':>8} {'fair':>8} {'jain':>8}")
    mixes = {
        "2 keys, one asks 4 times as much": ["backlog"],
        "2 keys, evenly": ["backlog", "--keys", "2:0"],
        "8 keys": ["backlog", "--keys", "8:1"],
        "2 keys, long prompts too": ["backlog", "--long", "0.05:16000"],
        "2 keys, 3 classes": ["backlog", "--classes", "3"],
    }
    for machine in COSTS:
        for shape, args in mixes.items():
            if only and only not in machine + " " + shape:
                continue
            trace = bench.trace("trace", *args, "--requests", requests)
            cost = bench.cost(machine, max_queue_wait_s=0)
            apart = {}
            for policy in ("fcfs", "fair"):
                out = bench.simulate(trace, cost, policy)
                service = [g["service_tokens"] for g in out["groups"] if g["group"].startswith("key:")]
                if "8 keys" in shape: # they stop being backlogged one after the other: what counts is the share of each
                    apart[policy] = 1 - out["jain"]
                else:
                    apart[policy] = 1 - min(service) / max(service)
            print(f"{machine:8} {shape:32} {apart['fcfs']:8.4f} {apart['fair']:8.4f} {out['jain']:8.4f}{bench.verdict(apart['fair'] < 0.05)}",
                  flush=True)


def tight_pool(bench, requests, only):
    print("\na pool of 30 % of the KV tokens that the unlimited run needs: everything finishes, preempted tokens < 15 %\n")
    print(f"{'machine':8} {'trace':14} {'peak':>9}  {'preempted, % of prompt and output tokens':>42} {'throughput':>20}")
    for machine in COSTS:
        for shape, args in POOL_SHAPES.items():
            if only and only not in machine + " " + shape:
                continue
            trace = bench.trace("trace", *args, "--requests", requests, "--cancel", 0)
            free = {p: bench.simulate(trace, bench.cost(machine, kv_tokens=1 << 30, max_queue_wait_s=0), p, 0) for p in POLICIES}
            lost, speed, good, whole = [], [], True, True
            for policy in POLICIES:
                pool = int(0.3 * free[policy]["kv_peak_tokens"])
                cost = bench.cost(machine, kv_tokens=pool, max_queue_wait_s=0)
                out = bench.simulate(trace, cost, policy, 0)
                lost.append(out["preempted_tokens"] / (out["prefill_tokens"] + out["generated_tokens"]))
                speed.append(out["throughput_tok_s"] / free[policy]["throughput_tok_s"])
                whole = whole and pool > largest(trace)
                good = good and lost[-1] < 0.15
                good = good and (not whole or out["generated_tokens"] == free[policy]["generated_tokens"])
            print(f"{machine:8} {shape:14} {free['fair']['kv_peak_tokens']:9}  {'':10}" + " ".join(f"{100 * x:9.3f}" for x in lost) +
                  f"  {'/'.join(f'{x:.3f}' for x in speed):>20}{bench.verdict(good)}"
                  + ("" if whole else "  (a request needs more than the pool)"), flush=True)


def step_time(bench, only):
    print("\nCPU time of a scheduling step (this machine's): under 60 us for 512 running and 4,096 waiting\n")
    print(f"{'policy':8} {'running':>8} {'waiting':>8} {'p50 us':>8} {'p99 us':>8}")
    points = [(batch, 4096) for batch in (32, 64, 128, 256, 512)] + [(512, n) for n in (0, 64, 512, 4096, 32768, 262144)]
    for policy in POLICIES if only in (None, "step") else ():
        for batch, waiting in points:
            # As many as fit begin at once; the others come when all of those run, and leave before the first of them ends.
            path = bench.directory / "step.csv"
            with open(path, "w") as out:
                out.write("arrival_s,key,class,prompt_tokens,output_tokens,cancel_after_s\n")
                for i in range(batch):
                    out.write(f"0,k{i % 16},0,{100 + i % 200},3000,\n")
                for i in range(waiting):
                    out.write(f"1,k{i % 16},{i % 3},{100 + i * 7919 % 1000},100,40\n")
            cost = bench.cost("large", max_batch=batch, kv_tokens=1 << 29, max_queue_wait_s=0, fixed_us=9000)
            out = bench.simulate(path, cost, policy)
            good = batch != 512 or waiting != 4096 or out["step_cpu_us_p50"] < 60
            print(f"{policy:8} {batch:8} {waiting:8} {out['step_cpu_us_p50']:8.2f} {out['step_cpu_us_p99']:8.2f}{bench.verdict(good)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("penstock")
    parser.add_argument("--quick", action="store_true", help="fewer requests")
    parser.add_argument("--bar", choices=("ttft", "fair", "pool", "step"))
    parser.add_argument("--wait", type=float, default=3600, help="max_queue_wait_s of the first bar")
    parser.add_argument("--only", help="machines and traces whose name has this word")
    args = parser.parse_args()
    requests = 1500 if args.quick else 6000
    with tempfile.TemporaryDirectory(prefix="penstock-bars-") as directory:
        bench = Bench(args.penstock, directory)
        if args.bar in (None, "ttft"):
            time_to_first_token(bench, requests, args.wait, args.only)
        if args.bar in (None, "fair"):
            fairness(bench, requests, args.only)
        if args.bar in (None, "pool"):
            tight_pool(bench, requests, args.only)
        if args.bar in (None, "step"):
            step_time(bench, args.only)
    print(f"\n{bench.missed} missed")
    return bench.missed != 0


if __name__ == "__main__":
    sys.exit(main())
