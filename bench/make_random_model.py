#!/usr/bin/env python3
"""Writes a llama checkpoint of 1.1 B random parameters (the shape of TinyLlama) for bench_decode.

    python3 bench/make_random_model.py DIR bf16|int4 [LAYERS]

bf16: every matrix.  int4: AWQ with groups of 128 and zero points; the embedding, the output matrix and norms stay bf16,
as in the checkpoints people have.  Needs nothing but Python.  Values are of one size, so that activations stay finite;
matrices repeat one random block, which a memory cannot tell from others.
"""
import json
import os
import random
import sys

WIDTH, INNER, HEADS, KV_HEADS, VOCAB, GROUP = 2048, 5632, 32, 4, 32000, 128
BLOCK = 1 << 22


def write(path, tensors):
    """TENSORS: name → (type, shape, pattern); the pattern is repeated."""
    header, at = {}, 0
    for name, (kind, shape, _) in tensors.items():
        size = {"BF16": 2, "F16": 2, "I32": 4}[kind]
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, (_, _, pattern) in tensors.items():
            begin, end = header[name]["data_offsets"]
            left = end - begin
            while left:
                left -= file.write(pattern[: min(left, len(pattern))])


def main():
    directory, kind = sys.argv[1:3]
    layers = int(sys.argv[3]) if len(sys.argv) > 3 else 22
    if kind not in ("bf16", "int4"):
        sys.exit(__doc__)
    generator = random.Random(1)
    bits = generator.randbytes(BLOCK)
    floats = bytearray(generator.randbytes(BLOCK))  # ±0.0078…0.0156
    floats[1::2] = bytes(0xBC if byte & 1 else 0x3C for byte in floats[1::2])
    ones, scales = b"\x80\x3f" * 2048, b"\x00\x18" * 2048  # 1 as bf16, 2⁻⁹ as f16

    tensors = {"model.embed_tokens.weight": ("BF16", [VOCAB, WIDTH], floats), "lm_head.weight": ("BF16", [VOCAB, WIDTH], floats),
               "model.norm.weight": ("BF16", [WIDTH], ones)}

    def linear(name, outputs, inputs):
        if kind == "bf16":
            tensors[name + ".weight"] = ("BF16", [outputs, inputs], floats)
            return
        tensors[name + ".qweight"] = ("I32", [inputs, outputs // 8], bits)
        tensors[name + ".qzeros"] = ("I32", [inputs // GROUP, outputs // 8], bits)
        tensors[name + ".scales"] = ("F16", [inputs // GROUP, outputs], scales)

    for i in range(layers):
        layer, head = f"model.layers.{i}.", WIDTH // HEADS
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}{norm}.weight"] = ("BF16", [WIDTH], ones)
        for name, outputs, inputs in (("q_proj", WIDTH, WIDTH), ("k_proj", KV_HEADS * head, WIDTH), ("v_proj", KV_HEADS * head, WIDTH),
                                      ("o_proj", WIDTH, WIDTH)):
            linear(f"{layer}self_attn.{name}", outputs, inputs)
        for name, outputs, inputs in (("gate_proj", INNER, WIDTH), ("up_proj", INNER, WIDTH), ("down_proj", WIDTH, INNER)):
            linear(f"{layer}mlp.{name}", outputs, inputs)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": INNER,
              "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB,
              "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
              "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    if kind == "int4":
        config["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "config.json"), "w", encoding="ascii") as file:
        json.dump(config, file, indent=1)
    write(os.path.join(directory, "model.safetensors"), tensors)


if __name__ == "__main__":
    main()
