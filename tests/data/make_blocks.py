#!/usr/bin/env python3
"""Makes blocks.safetensors: random blocks of GGUF's quantised formats and what the gguf package says they mean.

usage: make_blocks.py blocks.safetensors        (needs numpy, gguf and safetensors; the committed file came from gguf 0.19)

For each format F: F.blocks U8 [2, bytes of 512 weights], F.values F32 [2, 512].  All bytes are random but for the halves
that scale a block, which are finite; one is 0, one below the normal numbers.
"""
import sys

import numpy as np
from gguf import GGMLQuantizationType as T, GGML_QUANT_SIZES
from gguf.quants import dequantize
from safetensors.numpy import save_file

HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
          "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,)}
rng = np.random.default_rng(7)
out = {}
for name, halves in HALVES.items():
    size, length = GGML_QUANT_SIZES[T[name]]
    blocks = rng.integers(0, 256, (2 * 512 // size, length), dtype=np.uint8)
    for at in halves:
        d = rng.standard_normal(len(blocks)).astype(np.float16)
        d[1], d[-1] = 0, np.float16(3e-6)
        blocks[:, at:at + 2] = d.view(np.uint8).reshape(-1, 2)
    blocks = blocks.reshape(2, -1)
    out[f"{name}.blocks"] = blocks
    out[f"{name}.values"] = dequantize(blocks, T[name]).astype(np.float32)
save_file(out, sys.argv[1])
