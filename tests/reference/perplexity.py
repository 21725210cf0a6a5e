#!/usr/bin/env python3
"""Perplexity, KL divergence and agreement by plain numpy, to hold `penstock eval --text` against:

    penstock tokenize --tokenizer MODEL < line > ids       (the line: the text as a JSON string)
    python3 tests/reference/perplexity.py IDS MODEL [BASE] [--context N] [--stride N] [--windows N]

MODEL and BASE are GGUF files of llama (the package gguf decodes their blocks) or hub directories of llama with float
tensors.  Needs numpy, and gguf for GGUF files.  Forward pass in float32 with float64 norms, softmax in float64; prints the
JSON object of `penstock eval --json`, as far as it knows.  Nothing here is shared with penstock's code.
"""
import argparse
import json
import math
import os
import struct
import sys

import numpy as np

FLOATS = {"F32": np.float32, "F16": np.float16}


def read_hub(directory):
    config = json.load(open(os.path.join(directory, "config.json")))
    data = open(os.path.join(directory, "model.safetensors"), "rb").read()
    size = struct.unpack_from("<Q", data)[0]
    tensors = {}
    for name, t in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        raw = data[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            value = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            value = np.frombuffer(raw, FLOATS[t["dtype"]]).astype(np.float32)
        tensors[name] = value.reshape(t["shape"])
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    return tensors, dict(layers=config["num_hidden_layers"], heads=config["num_attention_heads"], head=head, theta=theta,
                         kv=config["num_key_value_heads"], eps=config["rms_norm_eps"])


GGUF_NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
              "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
              "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def read_gguf(path):
    import gguf
    reader = gguf.GGUFReader(path)

    def key(name, fallback=None):
        field = reader.fields.get("llama." + name)
        return fallback if field is None else field.parts[field.data[0]][0].item()
    heads, kv = key("attention.head_count"), key("attention.head_count_kv")
    tensors = {}
    for t in reader.tensors:
        value = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        name = t.name
        if name.startswith("blk."):
            _, layer, base, end = name.split(".")
            if base in ("attn_q", "attn_k"):  # pairs side by side become two halves
                n = heads if base == "attn_q" else kv
                value = value.reshape(n, -1, 2, value.shape[-1]).transpose(0, 2, 1, 3).reshape(value.shape)
            name = f"model.layers.{layer}.{GGUF_NAMES[base]}.{end}"
        else:
            name = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
                    "output.weight": "lm_head.weight"}[name]
        tensors[name] = value
    return tensors, dict(layers=key("block_count"), heads=heads, kv=kv, head=key("embedding_length") // heads,
                         theta=key("rope.freq_base", 10000.0), eps=key("attention.layer_norm_rms_epsilon"))


class Model:
    def __init__(self, path):
        self.t, self.c = read_hub(path) if os.path.isdir(path) else read_gguf(path)

    def norm(self, x, name):
        x64 = x.astype(np.float64)
        return ((x64 / np.sqrt((x64 * x64).mean(-1, keepdims=True) + self.c["eps"])) * self.t[name]).astype(np.float32)

    def linear(self, x, name):
        y = x @ self.t[name + ".weight"].T
        return y + self.t[name + ".bias"] if name + ".bias" in self.t else y

    def logits(self, ids, first):
        """[len(ids) − first, vocab] of the positions from first on."""
        t, c = self.t, self.c
        n, half = len(ids), c["head"] // 2
        angle = np.arange(n)[:, None] * c["theta"] ** (-np.arange(half) / half)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

        def rotate(v):
            a, b = v[..., :half], v[..., half:]
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(np.float32)
        x = t["model.embed_tokens.weight"][ids].astype(np.float32)
        mask = np.triu(np.full((n, n), -np.inf), 1)
        for layer in range(c["layers"]):
            p = f"model.layers.{layer}."
            h = self.norm(x, p + "input_layernorm.weight")
            q, k, v = (self.linear(h, p + f"self_attn.{w}_proj").reshape(n, -1, c["head"]) for w in "qkv")
            q, k = rotate(q), rotate(k)
            out = np.empty_like(q)
            for head in range(c["heads"]):
                of = head * c["kv"] // c["heads"]
                scores = (q[:, head] @ k[:, of].T).astype(np.float64) / math.sqrt(c["head"]) + mask
                scores = np.exp(scores - scores.max(-1, keepdims=True))
                out[:, head] = (scores / scores.sum(-1, keepdims=True)).astype(np.float32) @ v[:, of]
            x = x + self.linear(out.reshape(n, -1), p + "self_attn.o_proj")
            h = self.norm(x, p + "post_attention_layernorm.weight")
            gate, up = self.linear(h, p + "mlp.gate_proj"), self.linear(h, p + "mlp.up_proj")
            x = x + self.linear(gate / (1 + np.exp(-gate)) * up, p + "mlp.down_proj")
        head = "lm_head" if "lm_head.weight" in t else "model.embed_tokens"
        return self.linear(self.norm(x[first:], "model.norm.weight"), head).astype(np.float64)


def windows_of(count, context, stride):
    """(begin, end, first token that counts)"""
    if not stride:
        return [(b, b + context, b + context // 2 + 1) for b in range(0, count - context + 1, context)]
    found, last = [], 0
    for begin in range(0, count, stride):
        end = min(begin + context, count)
        found.append((begin, end, max(last, begin + 1)))
        last = end
        if end == count:
            break
    return found


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def mean(values):
    values = np.asarray(values, np.float64)
    return {"mean": values.mean(), "error": values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0}


def perplexity(nll):
    return {"mean": math.exp(nll["mean"]), "error": math.exp(nll["mean"]) * nll["error"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ids")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--stride", type=int, default=0)
    parser.add_argument("--windows", type=int, default=0)
    args = parser.parse_args()
    ids = np.array(json.loads(open(args.ids).read())["ids"])
    windows = windows_of(len(ids), args.context, args.stride)
    windows = windows[:args.windows] if args.windows else windows
    models = [Model(path) for path in args.models]
    nll, base, kl, agree = [], [], [], []
    for begin, end, first in windows:
        rows = [log_softmax(m.logits(ids[begin:end], first - 1 - begin)[:-1]) for m in models]
        targets = ids[first:end]
        nll += list(-rows[0][np.arange(len(targets)), targets])
        if len(models) == 2:
            base += list(-rows[1][np.arange(len(targets)), targets])
            kl += list((np.exp(rows[1]) * (rows[1] - rows[0])).sum(-1))
            agree += list(rows[0].argmax(-1) == rows[1].argmax(-1))
        print(f"{len(nll)} tokens, perplexity {math.exp(np.mean(nll)):.4f}", file=sys.stderr)
    out = {"text_tokens": len(ids), "windows": len(windows), "tokens": len(nll), "nll": mean(nll), "perplexity": perplexity(mean(nll))}
    if base:
        change = mean(np.array(nll) - np.array(base))
        out["against"] = {"nll": mean(base), "perplexity": perplexity(mean(base)), "nll_change": change,
                          "perplexity_ratio": perplexity(change), "kl": mean(kl), "kl_largest": max(kl), "same_top": mean(agree)}
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
