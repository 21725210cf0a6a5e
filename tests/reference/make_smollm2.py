#!/usr/bin/env python3
"""Writes smollm2.ref: what two other implementations make of the default model, for test_smollm2.c.

    python3 tests/reference/make_smollm2.py MODEL.gguf [OUT]

Needs the packages transformers, torch, gguf and llama-cpp-python (made with 5.24, 2.15, 0.19 and 0.3.36; transformers wants accelerate too).  Ten prompts with
digits, Chinese, code and emoji, half of them through the chat template.  For each:

    prompt IDS…                the prompt
    at POSITION ID VALUE…      transformers, float32 on the dequantised file: the 64 largest logits after that position, and
                               64 at ids that are the same for all prompts
    greedy IDS…                transformers' greedy continuation, 24 tokens
    llama IDS…                 llama.cpp's greedy continuation, 64 tokens, its cache in float32
"""
import hashlib
import os
import sys

import numpy as np
import torch
from llama_cpp import Llama
from transformers import AutoModelForCausalLM, AutoTokenizer

CHATS = [
    "What is 17 * 23 + 4096 / 8?",
    "用中文告诉我水从哪里来。",
    "Write a C function that reverses a string in place.",
    "Which emoji fits a birthday: 🎉, 🌧️ or 🪦? Explain.",
    "List the first 12 prime numbers, separated by commas.",
]
TEXTS = [
    "3.14159265358979323846264338327950288",
    "水轮机把水的能量变成电。第一步是打开闸门,然后",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "😀 😃 🎉 👍🏽 🇩🇪 The weather today is ☀️ and",
    "The penstock is a gated channel that leads water from the dam to the turbine. " * 24 + "The keeper of the gate",
]
TOP, FIXED, GREEDY, LLAMA = 64, 64, 24, 64


def main():
    path = sys.argv[1]
    out = sys.argv[2] if len(sys.argv) > 2 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "smollm2.ref")
    directory, name = os.path.split(os.path.abspath(path))
    digest = hashlib.sha256(open(path, "rb").read()).hexdigest()
    tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(directory, gguf_file=name, dtype=torch.float32, attn_implementation="eager").eval()
    llama = Llama(model_path=path, n_ctx=2048, n_threads=2, verbose=False, type_k=0, type_v=0)
    fixed = sorted(np.random.default_rng(1).choice(model.config.vocab_size, FIXED, replace=False).tolist())

    prompts = []
    for chat in CHATS:
        text = tokenizer.apply_chat_template([{"role": "user", "content": chat}], tokenize=False, add_generation_prompt=True)
        prompts.append(tokenizer(text, add_special_tokens=False)["input_ids"])
    prompts += [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]

    with open(out, "w") as file:
        print(f"# Made by make_smollm2.py from {name}", file=file)
        print(f"sha256 {digest}", file=file)
        for ids in prompts:
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0].numpy()
                whole = model.generate(torch.tensor([ids]), max_new_tokens=GREEDY, min_new_tokens=GREEDY, do_sample=False,
                                       eos_token_id=None, pad_token_id=0)[0].tolist()
            print("prompt", *ids, file=file)
            for position in (len(ids) // 2, len(ids) - 1):
                row = logits[position]
                chosen = np.argsort(-row)[:TOP].tolist() + fixed
                print("at", position, *(f"{i} {row[i]:.9g}" for i in chosen), file=file)
            print("greedy", *whole[len(ids):], file=file)
            llama.reset()
            theirs = []
            for token in llama.generate(ids, temp=0.0, repeat_penalty=1.0):
                theirs.append(int(token))
                if len(theirs) == LLAMA:
                    break
            print("llama", *theirs, file=file)
    print(f"{out}: {os.path.getsize(out)} bytes")


if __name__ == "__main__":
    main()
