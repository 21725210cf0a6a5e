#!/usr/bin/env python3
"""A tokenizer.json that no training made: byte-level BPE without ignore_merges, its merges put together at random.

    bench/make_random_tokenizer.py FILE MERGES [LONGEST [SEED]]

LONGEST: bytes of a token at most (default 12, as in real vocabularies; 24 is hard).  260,000 merges make 20 MB, or 26.
"""
import json
import random
import sys

SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")


def main():
    path, merge_count, longest, seed = sys.argv[1], int(sys.argv[2]), *(int(arg) for arg in (sys.argv[3:] + ["12", "1"][len(sys.argv) - 3:]))
    chance = random.Random(seed)
    alphabet = [chr(byte) for byte in [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100), *range(0x100, 0x144)]]
    vocab = {spelling: at for at, spelling in enumerate(alphabet)}
    tokens, parts, merges = list(alphabet), list("Ġetaoinshrdlucmfwypvbgkjqxz"), []
    while len(merges) < merge_count:
        left = chance.choice(tokens if chance.random() < 0.2 else parts)
        right = chance.choice(parts)
        if left + right in vocab or len(left + right) > longest:
            continue
        vocab[left + right] = len(vocab)
        tokens.append(left + right)
        merges.append([left, right])
        if len(left + right) < longest // 2:
            parts.append(left + right)
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges}
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                   "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}, "post_processor": None,
                   "decoder": dict(level, use_regex=True), "model": model}, f, ensure_ascii=False, indent=2)


if __name__ == "__main__":
    main()
