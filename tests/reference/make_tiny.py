#!/usr/bin/env python3
"""Writes tiny.ref: what plain float64 arithmetic makes of tests/data/tiny.gguf, for test_model.c.

    python3 tests/reference/make_tiny.py [MODEL.gguf [OUT]]

Needs numpy.  Written from the formats' and the model's definition, one token and one head at a time; shares nothing with the
code under test.  Lines: "prompt IDS…", then "at POSITION VALUE…" with all logits after that position, then
"greedy ID:MARGIN…", the continuation and how far each id leads the next best.
"""
import os
import struct
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))


def read_gguf(path):
    data = open(path, "rb").read()
    at = 4

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)[0]
        at += struct.calcsize("<" + form)
        return value

    def string():
        nonlocal at
        size = take("Q")
        at += size
        return data[at - size:at].decode()

    def value(kind):
        if kind == 8:
            return string()
        if kind == 9:
            element, count = take("I"), take("Q")
            return [value(element) for _ in range(count)]
        return take({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])

    assert data[:4] == b"GGUF" and take("I") == 3
    tensors, keys = take("Q"), take("Q")
    metadata = {}
    for _ in range(keys):
        name = string()
        metadata[name] = value(take("I"))
    infos = []
    for _ in range(tensors):
        name = string()
        dims = [take("Q") for _ in range(take("I"))]
        infos.append((name, dims, take("I"), take("Q")))
    align = metadata.get("general.alignment", 32)
    start = (at + align - 1) // align * align
    return metadata, {name: decode(kind, dims, data[start + offset:]) for name, dims, kind, offset in infos}


def halves(raw):
    return raw.copy().view("<f2").astype(np.float64)


def decode(kind, dims, data):
    """A tensor as float64 [rows, columns] (or [columns])."""
    count = int(np.prod(dims))
    columns, size = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 14: (256, 210), 30: (1, 2)}[kind]
    raw = np.frombuffer(data[:count // columns * size], np.uint8).reshape(-1, size)
    if kind == 0:
        out = raw.reshape(-1).view("<f4").astype(np.float64)
    elif kind == 1:
        out = halves(raw)
    elif kind == 30:
        out = (raw.reshape(-1).view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    elif kind == 8:
        out = halves(raw[:, :2]) * raw[:, 2:].view(np.int8)
    elif kind in (2, 3):
        head = 2 * (kind - 1)
        nibbles = np.concatenate([raw[:, head:] & 15, raw[:, head:] >> 4], axis=1).astype(np.float64)
        out = halves(raw[:, :2]) * (nibbles - 8) if kind == 2 else halves(raw[:, :2]) * nibbles + halves(raw[:, 2:4])
    else:
        out = np.zeros((len(raw), 256))
        for half in range(2):
            low, high = raw[:, 64 * half:64 * half + 64], raw[:, 128 + 32 * half:160 + 32 * half]
            for quarter in range(4):
                part = low[:, 32 * (quarter % 2):32 * (quarter % 2) + 32] >> (4 * (quarter // 2)) & 15
                q = part.astype(np.int64) | (high.astype(np.int64) >> 2 * quarter & 3) << 4
                out[:, 128 * half + 32 * quarter:128 * half + 32 * quarter + 32] = q - 32
        scales = np.repeat(raw[:, 192:208].view(np.int8).astype(np.float64), 16, axis=1)
        out = out * scales * halves(raw[:, 208:210])
    return out.reshape(dims[::-1])


class Llama:
    def __init__(self, metadata, weights):
        get = lambda key: metadata["llama." + key]
        self.w = weights
        self.layers, self.heads, self.kv_heads = get("block_count"), get("attention.head_count"), get("attention.head_count_kv")
        self.dim = get("embedding_length") // self.heads
        self.eps = get("attention.layer_norm_rms_epsilon")
        pairs = np.arange(self.dim // 2)
        self.frequencies = np.float32(get("rope.freq_base") ** (-2.0 * pairs / self.dim))
        self.cache = [([], []) for _ in range(self.layers)]
        self.position = 0

    def norm(self, x, name):
        return x / np.sqrt(np.mean(x * x) + self.eps) * self.w[name]

    def rotate(self, head):
        angle = (np.float32(self.position) * self.frequencies).astype(np.float64)
        even, odd = head[0::2], head[1::2]
        out = np.empty_like(head)
        out[0::2] = even * np.cos(angle) - odd * np.sin(angle)
        out[1::2] = odd * np.cos(angle) + even * np.sin(angle)
        return out

    def step(self, token):
        """The logits after one more token."""
        x = self.w["token_embd.weight"][token].copy()
        for layer in range(self.layers):
            weight = lambda name: self.w[f"blk.{layer}.{name}.weight"]
            h = self.norm(x, f"blk.{layer}.attn_norm.weight")
            q = (weight("attn_q") @ h).reshape(self.heads, self.dim)
            k = (weight("attn_k") @ h).reshape(self.kv_heads, self.dim)
            v = (weight("attn_v") @ h).reshape(self.kv_heads, self.dim)
            keys, values = self.cache[layer]
            keys.append([self.rotate(head) for head in k])
            values.append(v)
            out = []
            for head in range(self.heads):
                kv = head // (self.heads // self.kv_heads)
                turned = self.rotate(q[head])
                score = np.array([key[kv] @ turned for key in keys]) / np.sqrt(self.dim)
                p = np.exp(score - score.max())
                out.append(sum(p[i] * values[i][kv] for i in range(len(p))) / p.sum())
            x = x + weight("attn_output") @ np.concatenate(out)
            h = self.norm(x, f"blk.{layer}.ffn_norm.weight")
            gate = weight("ffn_gate") @ h
            x = x + weight("ffn_down") @ (gate / (1 + np.exp(-gate)) * (weight("ffn_up") @ h))
        self.position += 1
        return self.w.get("output.weight", self.w["token_embd.weight"]) @ self.norm(x, "output_norm.weight")


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "..", "data", "tiny.gguf")
    out = sys.argv[2] if len(sys.argv) > 2 else os.path.join(HERE, "tiny.ref")
    metadata, weights = read_gguf(path)
    vocab = metadata["llama.vocab_size"]
    random = np.random.default_rng(1)
    with open(out, "w") as file:
        print("# Made by make_tiny.py", file=file)
        for length in (1, 5, 40, 300):
            model = Llama(metadata, weights)
            prompt = random.integers(0, vocab, length).tolist()
            print("prompt", *prompt, file=file)
            for position, token in enumerate(prompt):
                logits = model.step(token)
                if position in (length // 2, length - 1):
                    print("at", position, *(f"{value:.7g}" for value in logits), file=file)
            greedy = []
            for _ in range(16):
                best, second = np.argsort(-logits)[:2]
                greedy.append(f"{best}:{logits[best] - logits[second]:.5f}")
                logits = model.step(int(best))
            print("greedy", *greedy, file=file)


if __name__ == "__main__":
    main()
