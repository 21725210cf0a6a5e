#!/usr/bin/env python3
"""Runs bench_decode and llama.cpp on the same model, threads and context in turn, and prints both.

    python3 bench/compare_llama_cpp.py BENCH_DECODE MODEL.gguf [THREADS [CONTEXT [ROUNDS]]]

Needs llama-cpp-python.  One stream: median of the steps after CONTEXT tokens; prompt: 512 tokens at once.  llama.cpp
multiplies activations rounded to 8 bits, penstock float32 ones: speed for exactness is its choice, not an oversight of
ours.  Rounds alternate, so that a busy machine slows both.
"""
import re
import statistics
import subprocess
import sys
import time

import llama_cpp
from llama_cpp import Llama

PROMPT, STEPS = 512, 40


def ours(bench, model, threads, context):
    out = subprocess.run([bench, model, str(threads), str(context), str(STEPS)], check=True, capture_output=True, text=True).stdout
    decode = {int(batch): float(rate) for batch, rate in re.findall(r"decode +(\d+): median [\d.]+ ms, ([\d.]+) tokens/s", out)}
    return decode, max(float(rate) for rate in re.findall(r"prefill \d+: ([\d.]+) tokens/s", out))


def theirs(llama, context):
    vocab = llama.n_vocab()

    def tokens(count):
        return [(i * 7919) % vocab for i in range(count)]

    llama.reset()
    llama.eval(tokens(context))
    times, token = [], 1
    for _ in range(STEPS):
        began = time.perf_counter()
        llama.eval([token])
        times.append(time.perf_counter() - began)
        token = int(llama.sample(temp=0.0))  # not counted: Python's share of it would be
    llama.reset()
    began = time.perf_counter()
    llama.eval(tokens(PROMPT))
    return 1 / statistics.median(times), PROMPT / (time.perf_counter() - began)


def main():
    bench, model = sys.argv[1:3]
    threads, context, rounds = (int(sys.argv[i]) if len(sys.argv) > i else default for i, default in ((3, 2), (4, 128), (5, 3)))
    llama = Llama(model_path=model, n_ctx=2048, n_batch=PROMPT, n_ubatch=PROMPT, n_threads=threads, n_threads_batch=threads,
                  verbose=False)
    theirs(llama, context)
    best = {"penstock": [0, 0], "llama.cpp": [0, 0]}
    for _ in range(rounds):
        decode, prefill = ours(bench, model, threads, context)
        for name, (one, prompt) in (("penstock", (decode[1], prefill)), ("llama.cpp", theirs(llama, context))):
            best[name] = [max(best[name][0], one), max(best[name][1], prompt)]
    print(f"{threads} threads, context {context}, best of {rounds} rounds; llama-cpp-python {llama_cpp.__version__}")
    for name, (one, prompt) in best.items():
        print(f"{name:10} one stream {one:7.1f} tokens/s   prompt of {PROMPT} {prompt:7.1f} tokens/s")
    print("penstock, all streams together: " + ", ".join(f"{batch}: {rate:.0f}" for batch, rate in decode.items()) + " tokens/s")


if __name__ == "__main__":
    main()
