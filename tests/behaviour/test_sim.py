"""The simulator from outside: files in, tables and JSON out; what penstockd records, it replays."""
import csv
import io
import json
import os
import subprocess
import tempfile
import threading

import harness
from harness import check, equal

COST = {"fixed_us": 5000, "prefill_us_per_token": 50, "decode_us_per_seq": 50, "context_us_per_ktoken": 5, "kv_tokens": 100000,
        "block": 64, "max_batch": 32, "step_tokens": 1024, "long_prompt_tokens": 8192, "max_queue_wait_s": 60, "itl_target_ms": 50}


def sim(*arguments, text=None):
    return subprocess.run([harness.program("penstock"), "sim", *map(str, arguments)], input=text, capture_output=True, text=True,
                          timeout=harness.DEADLINE)


def write(directory, name, content):
    path = os.path.join(directory, name)
    with open(path, "w") as f:
        f.write(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_generated_trace_runs_under_every_policy():
    with tempfile.TemporaryDirectory() as directory:
        cost = write(directory, "cost.json", COST)
        text = sim("--generate", "chat", "--requests", 300, "--rate", 5, "--seed", 3).stdout
        equal(sim("--generate", "chat", "--requests", 300, "--rate", 5, "--seed", 3).stdout, text, "a seed makes a trace")
        rows = list(csv.DictReader(io.StringIO(text)))
        equal(len(rows), 300)
        trace = write(directory, "trace.csv", text)
        keys = {f"key:{row['key']}" for row in rows}
        for policy in ("fcfs", "priority", "fair"):
            done = sim("--trace", trace, "--policy", policy, "--model-cost", cost, "--json", "--seed", 7)
            equal(done.returncode, 0, done.stderr)
            result = json.loads(done.stdout)
            equal(result["policy"], policy)
            equal(result["finished"] + result["rejected"] + result["cancelled"], 300)
            equal(result["cached_tokens"], 0)
            equal({g["group"] for g in result["groups"]}, keys | {"short", "long", "class:0", "class:1"})
            again = json.loads(sim("--policy", policy, "--model-cost", cost, "--json", "--trace", "-", text=text).stdout)
            for name in ("step_cpu_us_p50", "step_cpu_us_p99"):
                del result[name], again[name]
            equal(again, result, "the same input, the same result")
            table = sim("--trace", trace, "--policy", policy, "--model-cost", cost).stdout
            check(f"policy            {policy}\n" in table and "class:1" in table, table)


def test_columns_in_any_order_and_numbers_as_keys():
    with tempfile.TemporaryDirectory() as directory:
        cost = write(directory, "cost.json", COST)
        trace = write(directory, "trace.csv", "output_tokens,cancel_after_s,key,arrival_s,class,shared_prefix_tokens,prompt_tokens,"
                      "shared_prefix_id\n5,,7,0.5,-1,10,100,sys\n3,0.0001,8,0,2,0,20000,\n")
        result = json.loads(sim("--trace", trace, "--policy", "fair", "--model-cost", cost, "--json").stdout)
        equal((result["finished"], result["cancelled"]), (1, 1))
        equal([g["group"] for g in result["groups"]], ["short", "long", "key:7", "key:8", "class:-1", "class:2"])
        equal([g["requests"] for g in result["groups"]], [1, 1, 1, 1, 1, 1])


def test_bad_input():
    with tempfile.TemporaryDirectory() as directory:
        cost = write(directory, "cost.json", COST)
        trace = write(directory, "trace.csv", "arrival_s,prompt_tokens,output_tokens\n0,1,1\n")

        def fails(code, says, *arguments):
            done = sim(*arguments)
            equal(done.returncode, code, f"{arguments}: {done.stderr}")
            equal(done.stdout, "", str(arguments))
            for words in says.split("|"):
                check(words in done.stderr, words, done.stderr)

        bad = write(directory, "bad.csv", "arrival_s,prompt_tokens,output_tokens\n0,1,1\n0,1,many\n")
        fails(1, "bad.csv|line 3|output_tokens|many|16777216", "--trace", bad, "--model-cost", cost)
        fails(1, "cannot open", "--trace", os.path.join(directory, "none.csv"), "--model-cost", cost)
        fails(1, "none.json", "--trace", trace, "--model-cost", os.path.join(directory, "none.json"))
        odd = write(directory, "odd.json", {**COST, "speed": 1})
        fails(1, "odd.json|speed", "--trace", trace, "--model-cost", odd)
        odd = write(directory, "odd.json", {**COST, "block": 0})
        fails(1, "odd.json|block = 0|1…1024", "--trace", trace, "--model-cost", odd)
        fails(2, "--trace and --model-cost", "--trace", trace)
        fails(2, "lifo", "--trace", trace, "--model-cost", cost, "--policy", "lifo")
        fails(2, "chaos", "--generate", "chaos")
        fails(2, "--requests", "--generate", "chat", "--requests", "0")
        fails(2, "--long", "--generate", "chat", "--long", "1.5")
        fails(1, "does not begin", "--replay", trace)


def test_a_recording_of_the_simulator_replays():
    with tempfile.TemporaryDirectory() as directory:
        cost = write(directory, "cost.json", {**COST, "kv_tokens": 20000})
        record = os.path.join(directory, "record")
        text = sim("--generate", "chat", "--requests", 200, "--rate", 50).stdout
        equal(sim("--trace", "-", "--model-cost", cost, "--record", record, text=text).returncode, 0)
        done = sim("--replay", record)
        equal(done.returncode, 0, done.stderr)
        check("every plan is as it was" in done.stdout, done.stdout)
        with open(record) as f:
            lines = f.read().splitlines(keepends=True)
        for i, line in enumerate(lines):
            if line.startswith("I ") and i > len(lines) // 2:
                lines[i] = "I " + str(int(line.split()[1]) + 1) + " " + line.split(" ", 2)[2]
                break
        done = sim("--replay", write(directory, "changed", "".join(lines)))
        equal(done.returncode, 1)
        check(f"line {i + 1}, plan" in done.stderr and "handle" in done.stderr, done.stderr)


def test_what_penstockd_records_replays():
    with tempfile.TemporaryDirectory(prefix="penstock-record-", dir="/tmp") as directory:
        record = os.path.join(directory, "record")
        with harness.Stack(script=harness.script("one two three four five six seven", pace=500, repeat=3),
                           conf={"batcher.record": record, "batcher.max_running": 4}) as stack:
            replies = []
            threads = [threading.Thread(target=lambda i=i: replies.append(stack.chat("word " * (1 + 17 * i), max_tokens=5 + i).status))
                       for i in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            equal(replies, [200] * 12)
        done = sim("--replay", record)
        equal(done.returncode, 0, done.stderr)
        check("every plan is as it was" in done.stdout, done.stdout)


if __name__ == "__main__":
    harness.main(globals())
