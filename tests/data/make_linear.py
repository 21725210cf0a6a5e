#!/usr/bin/env python3
"""Makes linear.safetensors: one small linear layer per way in which checkpoints store quantised weights.

usage: make_linear.py linear.safetensors        (needs numpy, torch and safetensors; the committed file came from torch 2.15)

Case C holds the format's own tensors as C.weight, C.qweight, C.scales …, with x = C.x F32 [rows, K], C.y F32 [rows, N] =
x · dequantised Wᵀ in float64, and where the scheme asks for rounded activations C.y_aq.  The file's metadata holds the
quantization_config of each case as JSON, by case.  Nothing here is shared with the code under test.
"""
import json
import sys

import numpy as np
import torch
from safetensors.torch import save_file

rng = np.random.default_rng(20260301)
tensors, schemes = {}, {}


def e4m3(x):
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)).to(torch.float8_e4m3fn)


def pack(q, axis, order=range(8)):
    """Eight 4-bit values along AXIS to an int32, element order[i] in nibble i; padded with zeros."""
    q = np.moveaxis(q, axis, -1)
    q = np.concatenate([q, np.zeros(q.shape[:-1] + (-q.shape[-1] % 8,), q.dtype)], -1)
    q = q.reshape(q.shape[:-1] + (-1, 8)).astype(np.uint32)
    words = sum(q[..., o] << np.uint32(4 * i) for i, o in enumerate(order))
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(words.astype(np.uint32), -1, axis)).view(np.int32))


def round_input(x, how, scale=None):
    kind, group = how
    out = np.empty_like(x)
    for a in range(0, x.shape[1], group or x.shape[1]):
        v = torch.from_numpy(x[:, a:a + (group or x.shape[1])].copy())
        largest = 448.0 if kind == "f8" else 127.0
        s = torch.full((len(x), 1), scale) if scale else (v.abs().amax(1, keepdim=True) / largest).clamp_min(1e-12)
        if kind == "f8":
            r = (v / s).clamp(-448, 448).to(torch.float8_e4m3fn).float() * s
        else:
            r = (v / s).round().clamp(-128, 127) * s
        out[:, a:a + v.shape[1]] = r.numpy()
    return out


def emit(case, scheme, w, own, how=None, scale=None):
    """W: the float64 weights as stored, OWN: the tensors, HOW: (f8 or i8, group) of the inputs."""
    n, k = w.shape
    x = rng.standard_normal((3, k)).astype(np.float32)
    x[1] *= 100
    x[2] *= 1e-3
    x[2, :7] = 0
    for name, t in own.items():
        tensors[f"{case}.{name}"] = t if isinstance(t, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(t))
    tensors[f"{case}.x"] = torch.from_numpy(x)
    tensors[f"{case}.y"] = torch.from_numpy((x.astype(np.float64) @ w.T).astype(np.float32))
    if how:
        xq = round_input(x, how, scale)
        tensors[f"{case}.y_aq"] = torch.from_numpy((xq.astype(np.float64) @ w.T).astype(np.float32))
    schemes[case] = json.dumps(scheme)


def normal(n, k):
    return (rng.standard_normal((n, k)) * 0.05).astype(np.float32)


def spread(small, n, k, block):
    return np.repeat(np.repeat(small, block[0], 0), block[1], 1)[:n, :k]


# ---- float8 ----
def fp8(case, scheme, n, k, block, name, dtype=torch.float32, how=None, input_scale=None, shape=None):
    """BLOCK (rows, columns) of a scale, 0 = all."""
    block = (block[0] or n, block[1] or k)
    small = (rng.random((-(-n // block[0]), -(-k // block[1]))) * 1e-3 + 1e-4).astype(np.float32)
    s = torch.from_numpy(small).to(dtype)
    q = e4m3(np.clip(normal(n, k) / spread(s.float().numpy(), n, k, block), -448, 448))
    raw = q.view(torch.uint8).numpy()
    raw[0, :4] = (0x00, 0x80, 0x01, 0x87)            # zeros and numbers below the normal ones
    raw[-1, -3:] = (0x7e, 0xfe, 0x08)                # the largest, the smallest normal one
    w = q.float().numpy().astype(np.float64) * spread(s.float().numpy(), n, k, block).astype(np.float64)
    own = {"weight": q}
    if name:
        own[name] = s.reshape(shape) if shape is not None else s
    else:
        w = q.float().numpy().astype(np.float64)
    if input_scale:
        own["input_scale"] = torch.tensor(input_scale)
    emit(case, scheme, w, own, how, input_scale)


def hf(**more):
    return dict(dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic"), **more)


def ct(kind, bits, strategy, group=None, act=None, block=None):
    weights = dict(type=kind, num_bits=bits, strategy=strategy, group_size=group, symmetric=True, dynamic=False)
    if block:
        weights["block_structure"] = block
    return dict(quant_method="compressed-tensors", quantization_status="compressed", ignore=["lm_head"],
                config_groups=dict(group_0=dict(targets=["Linear"], weights=weights, input_activations=act,
                                                output_activations=None)))


def act(kind, strategy="token", dynamic=True, **more):
    return dict(dict(type=kind, num_bits=8, strategy=strategy, dynamic=dynamic, symmetric=True), **more)


fp8("fp8-block", hf(weight_block_size=[128, 128]), 136, 200, (128, 128), "weight_scale_inv", how=("f8", 128))
fp8("fp8-block-small", hf(weight_block_size=[16, 32]), 40, 100, (16, 32), "weight_scale_inv")
fp8("fp8-block-odd", hf(weight_block_size=[16, 24]), 40, 100, (16, 24), "weight_scale_inv")
fp8("fp8-block-ct", ct("float", 8, "block", block=[128, 128], act=act("float", "group", group_size=128)), 70, 160,
    (128, 128), "weight_scale", dtype=torch.bfloat16, how=("f8", 128))
fp8("fp8-channel", ct("float", 8, "channel", act=act("float")), 41, 96, (1, 0), "weight_scale", dtype=torch.bfloat16,
    how=("f8", 0))
fp8("fp8-channel-flat", dict(quant_method="fbgemm_fp8"), 33, 77, (1, 0), "weight_scale", shape=(33,), how=("f8", 0))
fp8("fp8-tensor", hf(), 20, 64, (0, 0), "weight_scale", shape=(), how=("f8", 0))
fp8("fp8-tensor-static", ct("float", 8, "tensor", act=act("float", "tensor", False)), 20, 65, (0, 0), "weight_scale",
    shape=(1,), how=("f8", 0), input_scale=0.0625)
fp8("fp8-bare", hf(), 8, 40, (0, 0), None, how=("f8", 0))


# ---- int8 ----
def int8(case, scheme, n, k, group, dtype, how=None, input_scale=None):
    w = normal(n, k)
    g = group or k
    wg = np.pad(w, ((0, 0), (0, -k % g))).reshape(n, -1, g)
    s = torch.from_numpy(np.abs(wg).max(2) / 127).to(dtype)
    q = np.clip(np.rint(w / spread(s.float().numpy(), n, k, (1, g))), -128, 127).astype(np.int8)
    q[0, 0] = -128
    own = {"weight": q, "weight_scale": s}
    if input_scale:
        own["input_scale"] = torch.tensor([input_scale])
    emit(case, scheme, q.astype(np.float64) * spread(s.float().numpy(), n, k, (1, g)).astype(np.float64), own, how,
         input_scale)


int8("int8-channel", ct("int", 8, "channel", act=act("int")), 41, 96, 0, torch.bfloat16, ("i8", 0))
int8("int8-channel-odd", ct("int", 8, "channel", act=act("int")), 33, 77, 0, torch.float32, ("i8", 0))
int8("int8-static", ct("int", 8, "channel", act=act("int", "tensor", False)), 9, 64, 0, torch.float16, ("i8", 0), 0.03125)
int8("int8-group", ct("int", 8, "group", 32), 24, 100, 32, torch.float32)


# ---- int4 ----
AWQ = [0, 2, 4, 6, 1, 3, 5, 7]


def int4(n, k, index, dtype, symmetric):
    """q [n, k], zeros and scales [n, groups] as stored, float64 weights; INDEX[k] is the group of a column."""
    groups = int(index.max()) + 1
    s = torch.from_numpy((rng.random((n, groups)) * 0.01 + 0.001).astype(np.float32)).to(dtype)
    q = rng.integers(0, 16, (n, k))
    z = np.full((n, groups), 8) if symmetric else rng.integers(0, 16, (n, groups))
    w = (q - z[:, index]).astype(np.float64) * s.float().numpy().astype(np.float64)[:, index]
    return q, z, s, w


def plain(k, group):
    return np.arange(k) // (group or k)


def awq(case, n, k, group, dtype=torch.float16, **more):
    q, z, s, w = int4(n, k, plain(k, group), dtype, False)
    scheme = dict(dict(quant_method="awq", bits=4, group_size=group or -1, zero_point=True, version="gemm"), **more)
    emit(case, scheme, w, {"qweight": pack(q.T, 1, AWQ), "qzeros": pack(z.T, 1, AWQ), "scales": s.T.contiguous()})


def gptq(case, n, k, group, index=None, symmetric=False, dtype=torch.float16, version="gptq", with_index=True):
    actual = plain(k, group) if index is None else index
    q, z, s, w = int4(n, k, actual, dtype, symmetric)
    own = {"qweight": pack(q.T, 0), "qzeros": pack(((z - 1) % 16 if version == "gptq" else z).T, 1),
           "scales": s.T.contiguous()}
    if with_index:
        own["g_idx"] = actual.astype(np.int32)
    scheme = dict(quant_method="gptq", bits=4, group_size=group or -1, desc_act=index is not None, sym=symmetric,
                  checkpoint_format=version)
    emit(case, scheme, w, own)


def packed(case, n, k, group, symmetric, dtype=torch.bfloat16, zeros="words", index=None, inputs=None, how=None):
    actual = plain(k, group) if index is None else index
    q, z, s, w = int4(n, k, actual, dtype, symmetric)
    own = {"weight_packed": pack(q, 1), "weight_scale": s, "weight_shape": np.array([n, k], np.int64)}
    if not symmetric:
        own["weight_zero_point"] = pack(z, 0) if zeros == "words" else (z - 8).astype(np.int8)
    if index is not None:
        own["weight_g_idx"] = index.astype(np.int32)
    emit(case, ct("int", 4, "group" if group else "channel", group or None, inputs), w, own, how)


def shuffled(k, group):
    return plain(k, group)[rng.permutation(k)]


awq("awq-32", 40, 96, 32)
awq("awq-64", 24, 128, 64, version="GEMM")
awq("awq-128", 8, 256, 128, dtype=torch.bfloat16)
awq("awq-all", 16, 80, 0, dtype=torch.float32)
awq("awq-16", 16, 64, 16)
gptq("gptq-32", 33, 96, 32, symmetric=True)
gptq("gptq-128", 8, 256, 128, with_index=False)
gptq("gptq-short", 8, 160, 128)
gptq("gptq-all", 20, 72, 0, dtype=torch.float32)
gptq("gptq-v2", 40, 64, 32, version="gptq_v2")
gptq("gptq-actorder-32", 40, 96, 32, shuffled(96, 32))
gptq("gptq-actorder-128", 8, 256, 128, shuffled(256, 128), dtype=torch.bfloat16)
gptq("gptq-actorder-uneven", 12, 96, 32, rng.integers(0, 3, 96))
packed("ct-32", 33, 96, 32, True)
packed("ct-64-zeros", 33, 128, 64, False)
packed("ct-128-zeros", 20, 256, 128, False, dtype=torch.float16, zeros="bytes")
packed("ct-channel", 21, 68, 0, True, dtype=torch.float32)
packed("ct-channel-zeros", 21, 72, 0, False)
packed("ct-actorder", 17, 96, 32, False, index=shuffled(96, 32))
packed("ct-w4a8", 16, 64, 32, True, inputs=act("int"), how=("i8", 0))

save_file({k: v.contiguous() for k, v in tensors.items()}, sys.argv[1], metadata=schemes)
