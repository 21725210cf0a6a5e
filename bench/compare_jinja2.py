#!/usr/bin/env python3
"""Chat templates: penstock beside Jinja2 (Debian: python3-jinja2), in one run.

    bench/compare_jinja2.py bench/bench_chat TEMPLATE.jinja

Two conversations: 100 turns with 20 tools, and 200 KB of text in 40 turns.  Medians of 201 renders of the compiled template.
"""
import json
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "support"))
import jinja_oracle as oracle  # noqa: E402

TOOL = {"type": "function", "function": {"name": "search", "description": "Looks something up, at length. " * 8, "parameters": {
    "type": "object", "required": ["query"], "properties": {
        "query": {"type": "string", "description": "What to look for"}, "limit": {"type": "integer", "minimum": 1},
        "kind": {"type": "string", "enum": ["page", "issue", "code"]}}}}}


def talk(turns, size):
    text = ("The quick brown fox jumps over the lazy dog. 天气 " * (size // 50 + 1))[:size]
    return [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i in range(turns)]


CASES = [{"messages": talk(100, 80), "tools": [TOOL] * 20, "add_generation_prompt": True},
         {"messages": talk(40, 5000), "add_generation_prompt": True}]

lines = "".join(json.dumps(case) + "\n" for case in CASES)
ours = subprocess.run([sys.argv[1], sys.argv[2]], input=lines, text=True, capture_output=True, check=True).stdout.splitlines()
with open(sys.argv[2], encoding="utf-8") as file:
    template = oracle.environment().from_string(file.read())
for case, line in zip(CASES, ours):
    times = []
    for _ in range(201):
        begin = time.perf_counter()
        length = len(template.render(**case).encode())
        times.append((time.perf_counter() - begin) * 1e6)
    print(f"penstock {line}; Jinja2 {length} bytes: median {statistics.median(times):.0f} us")
