#!/usr/bin/env python3
"""Checkpoints with the head shapes of real models, and what transformers makes of them, for `penstock eval --golden`.

    python3 tests/gpu/make_real.py OUT

Two layers each, heads of 64 and 128, one, two and eight KV heads, prompts longer than a page and than a tile.  Made where they
are used: they are too large to keep.  Everything but the sizes is tests/reference/make_dense.py's.
"""
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "reference"))
import make_dense  # noqa: E402

make_dense.VOCAB = 1536
make_dense.GREEDY = 12
decoder, encoder, rope = make_dense.decoder, make_dense.encoder, make_dense.rope


def real(heads, kv_heads, head_dim=128, width=1024, **more):
    return decoder(vocab_size=1536, hidden_size=width, intermediate_size=1712, num_attention_heads=heads,
                   num_key_value_heads=kv_heads, head_dim=head_dim, **more)


CASES = {
    "glm4-32b-heads": ("glm4", real(48, 2, attention_bias=False, **rope(partial_rotary_factor=0.5)), "bfloat16", None),
    "glm4-9b-heads": ("glm4", real(32, 2, attention_bias=True, **rope(partial_rotary_factor=0.5)), "bfloat16", None),
    "qwen3-heads": ("qwen3", real(32, 8, use_sliding_window=False, **rope(theta=1e6)), "bfloat16", None),
    "llama-64-heads": ("llama", real(16, 8, 64, rms_norm_eps=1e-5, **rope(theta=5e5)), "bfloat16", None),
    "llama-one-kv-head": ("llama", real(8, 1, rms_norm_eps=1e-5, **rope(theta=5e5)), "float16", None),
    "bge-heads": ("bert", encoder(vocab_size=1536, hidden_size=1024, intermediate_size=4096, num_attention_heads=16,
                                  layer_norm_eps=1e-12, type_vocab_size=2), "bfloat16", None),
}


def main():
    torch.set_num_threads(os.cpu_count() or 1)
    for number, (name, case) in enumerate(CASES.items()):
        make_dense.make_case(os.path.join(sys.argv[1], name), *case, seed=500 + number)
        print(name, flush=True)


if __name__ == "__main__":
    main()
