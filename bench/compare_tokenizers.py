#!/usr/bin/env python3
"""bench/bench_tokenizer beside the `tokenizers` and `tiktoken` packages: the same texts, one thread, each text once (cold).

    pip install tokenizers tiktoken
    chrt -f 50 python3 bench/compare_tokenizers.py BENCH_TOKENIZER tokenizer.json TEXT...

tiktoken gets the vocabulary of the file (byte-level BPE whose first step is a Split) and its expression.
"""
import json
import os
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"


def cpu(function):
    start = time.process_time()
    result = function()
    return result, time.process_time() - start


def byte_of():
    plain = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{chr(byte): byte for byte in plain}, **{chr(0x100 + at): byte for at, byte in enumerate(others)}}


def tiktoken_of(path):
    import tiktoken
    with open(path, encoding="utf-8") as f:
        body = json.load(f)
    split = next(step for step in body["pre_tokenizer"]["pretokenizers"] if step["type"] == "Split")["pattern"]["Regex"]
    mapping = byte_of()
    ranks = {bytes(mapping[c] for c in token): rank for token, rank in body["model"]["vocab"].items() if all(c in mapping for c in token)}
    return tiktoken.Encoding("file", pat_str=split, mergeable_ranks=ranks, special_tokens={})


def main():
    bench, path, *texts = sys.argv[1:]
    from tokenizers import Tokenizer
    tokenizer, seconds = cpu(lambda: Tokenizer.from_file(path))
    print(f"tokenizers: load {seconds * 1e3:.0f} ms", flush=True)
    encoding = tiktoken_of(path)
    for text in texts:
        with open(text, encoding="utf-8") as f:
            content = f.read()
        size = len(content.encode())
        # In pieces of 100 KB: whole books make the offsets of `tokenizers` slower than they need to be.
        pieces = [content[at:at + 100000] for at in range(0, len(content), 100000)]
        count, seconds = cpu(lambda: sum(len(tokenizer.encode(piece, add_special_tokens=False).ids) for piece in pieces))
        print(f"tokenizers {text}: {size / seconds * 1e-6:.2f} MB/s, {count / seconds * 1e-6:.2f} M tokens/s", flush=True)
        count, seconds = cpu(lambda: sum(len(encoding.encode_ordinary(piece)) for piece in pieces))
        print(f"tiktoken   {text}: {size / seconds * 1e-6:.2f} MB/s, {count / seconds * 1e-6:.2f} M tokens/s", flush=True)
    subprocess.run([bench, path, *texts], check=True)


if __name__ == "__main__":
    main()
