#!/usr/bin/env python3
"""Writes tests/data/dense/NAME: small checkpoints with random weights of every dense architecture, and what transformers
makes of them.

    python3 tests/reference/make_dense.py [OUT [NAME…]]

Needs the packages transformers, torch and safetensors (made with 5.24, 2.15 and 0.8).  `penstock eval --golden` reads the
result; its head comment says what golden.safetensors holds.  The reference computes in float32 on the stored weights, with
eager attention and without a cache.  Quantised cases are quantised here, and the reference runs on what they decode to.
"""
import copy
import json
import os
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
GREEDY = 24
VOCAB = 96
torch.set_num_threads(1)


def decoder(**more):
    return dict(dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=16, max_position_embeddings=512, tie_word_embeddings=False,
                     bos_token_id=None, eos_token_id=1, pad_token_id=0), **more)


def encoder(**more):
    return dict(dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                     max_position_embeddings=320, bos_token_id=0, eos_token_id=2, pad_token_id=1), **more)


def rope(kind="default", theta=10000.0, **more):
    return dict(rope_parameters=dict(more, rope_type=kind, rope_theta=theta))


# name: model_type, configuration, stored type, what is done to the saved checkpoint
CASES = {
    "llama": ("llama", decoder(attention_bias=True, mlp_bias=True, rms_norm_eps=1e-5, **rope("linear", factor=4.0)),
              "bfloat16", None),
    "llama-tied": ("llama", decoder(num_attention_heads=6, num_key_value_heads=1, head_dim=20, tie_word_embeddings=True,
                                    **rope("llama3", 500000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                           original_max_position_embeddings=128)), "bfloat16", "shards"),
    "llama-yarn": ("llama", decoder(num_hidden_layers=1, **rope("yarn", factor=4.0, original_max_position_embeddings=128, beta_fast=16.0,
                                           attention_factor=1.25)), "float16", "old"),
    "llama-dynamic": ("llama", decoder(num_hidden_layers=1, num_key_value_heads=4, **rope("dynamic", factor=2.0)), "bfloat16", None),
    "llama-gptq": ("llama", decoder(hidden_size=64, **rope()), "bfloat16", "gptq"),
    "qwen2": ("qwen2", decoder(tie_word_embeddings=True, use_sliding_window=False, **rope(theta=1e6)), "bfloat16", None),
    "qwen3": ("qwen3", decoder(attention_bias=True, head_dim=24, use_sliding_window=False, **rope(theta=1e6)), "bfloat16",
              None),
    "qwen3-fp8": ("qwen3", decoder(head_dim=16, hidden_size=144, intermediate_size=136, num_hidden_layers=1,
                                   tie_word_embeddings=True, use_sliding_window=False, **rope(theta=1e6)), "bfloat16", "fp8"),
    "glm": ("glm", decoder(num_hidden_layers=1, attention_bias=True, **rope(theta=5e6, partial_rotary_factor=0.5)), "bfloat16", None),
    "chatglm": ("glm", decoder(attention_bias=True, rms_norm_eps=1e-5, **rope(theta=5e6, partial_rotary_factor=0.5)),
                "float16", "chatglm"),
    "glm4": ("glm4", decoder(attention_bias=True, head_dim=24, **rope(partial_rotary_factor=0.5)), "bfloat16", None),
    "glm4-mixed": ("glm4", decoder(hidden_size=64, attention_bias=False, **rope(partial_rotary_factor=0.5)), "bfloat16",
                   "pack"),
    "bert": ("bert", encoder(layer_norm_eps=1e-12, type_vocab_size=2), "bfloat16", None),
    "xlm_roberta": ("xlm-roberta", encoder(num_hidden_layers=1, layer_norm_eps=1e-5, type_vocab_size=1), "bfloat16", None),
    "qwen2-int8": ("qwen2", decoder(num_hidden_layers=1, use_sliding_window=False, **rope()), "float16", "int8"),
}
ENCODERS = ("bert", "xlm-roberta")


def fill(model, generator):
    """Weights that keep values of the size they have in trained models, biases and norms that are not 0 and 1."""
    for name, parameter in model.named_parameters():
        value = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            value = 0.1 * value
        elif parameter.dim() == 1:
            value = 1 + 0.2 * value
        elif "embed" in name:
            value = 0.2 * value
        else:
            value = value * (2.5 if "lm_head" in name else 1.2) / parameter.shape[-1] ** 0.5
        parameter.data.copy_(value)


def make_model(model_type, config, generator):
    config = transformers.AutoConfig.for_model(model_type, **config)
    loader = transformers.AutoModel if model_type in ENCODERS else transformers.AutoModelForCausalLM
    model = loader.from_config(config, attn_implementation="eager").float().eval()
    fill(model, generator)
    return model


@torch.no_grad()
def reference(model, generator, pad):
    """The golden tensors; one prompt is longer than a chunk of attention."""
    golden = {}
    is_encoder = model.config.model_type in ENCODERS
    for k, length in enumerate((1, 9, 40, 290)):
        ids = torch.randint(3, VOCAB, (length,), generator=generator)
        if is_encoder and pad is not None and length > 9:
            ids[5::11] = pad
        golden[f"ids.{k}"] = ids.int()
        if is_encoder:
            vector = model(ids[None], attention_mask=torch.ones_like(ids)[None]).last_hidden_state[0, 0]
            golden[f"embedding.{k}"] = (vector / vector.norm()).contiguous()
            continue
        at = sorted({0, length // 3, length - 1})
        golden[f"at.{k}"] = torch.tensor(at, dtype=torch.int32)
        golden[f"logits.{k}"] = model(ids[None], use_cache=False).logits[0, at].contiguous()
        chosen, margins = [], []
        for _ in range(GREEDY):
            best = model(ids[None], use_cache=False).logits[0, -1].topk(2)
            chosen.append(best.indices[0].item())
            margins.append((best.values[0] - best.values[1]).item())
            ids = torch.cat([ids, best.indices[:1]])
        golden[f"greedy.{k}"] = torch.tensor(chosen, dtype=torch.int32)
        golden[f"margin.{k}"] = torch.tensor(margins)
    return golden


def round_fp8(x):
    groups = torch.nn.functional.pad(x, (0, -x.shape[-1] % 128)).unflatten(-1, (-1, 128))
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    return ((groups / scale).to(torch.float8_e4m3fn).float() * scale).flatten(-2)[..., :x.shape[-1]]


def round_int8(x):
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return torch.round(x / scale).clamp(-128, 127) * scale


@torch.no_grad()
def reference_rounded(model, golden, names, rounding):
    """logits_aq.K: the inputs of the linear layers NAMES rounded as the checkpoint asks."""
    modules = dict(model.named_modules())
    hooks = [modules[name[:-len(".weight")]].register_forward_pre_hook(lambda _, inputs: (rounding(inputs[0]),))
             for name in names]
    for k in range(sum(name.startswith("ids.") for name in golden)):
        ids = golden[f"ids.{k}"].long()
        golden[f"logits_aq.{k}"] = model(ids[None], use_cache=False).logits[0, golden[f"at.{k}"].long()].contiguous()
    for hook in hooks:
        hook.remove()


# ---- what is done to saved checkpoints -----------------------------------------------------------------------------

def linear_names(tensors):
    return [n for n in tensors if n.endswith("proj.weight")]


def pack_words(values, dim):
    """Eight 4-bit values to a word along DIM, the first in the lowest bits."""
    values = values.long().movedim(dim, -1)
    values = torch.nn.functional.pad(values, (0, -values.shape[-1] % 8))
    shifts = 4 * torch.arange(8)
    words = (values.unflatten(-1, (-1, 8)) << shifts).sum(-1)
    return torch.where(words >= 2 ** 31, words - 2 ** 32, words).int().movedim(-1, dim).contiguous()


def quantise_gptq(tensors, config):
    """Asymmetric, 32 inputs to a group, groups in the order of a random permutation (act-order), zero points from 1 to 16."""
    group, generator = 32, torch.Generator().manual_seed(5)
    for name in linear_names(tensors):
        w = tensors.pop(name).float()
        outputs, inputs = w.shape
        index = torch.randperm(inputs, generator=generator) // group
        groups = int(index.max()) + 1
        low = torch.stack([w[:, index == g].amin(1) for g in range(groups)])
        high = torch.stack([w[:, index == g].amax(1) for g in range(groups)])
        scales = ((high - low) / 15).half()
        zeros = torch.round(-low / scales.float()).clamp(1, 16)
        q = torch.round(w.T / scales.float()[index] + zeros[index]).clamp(0, 15)
        base = name[:-len("weight")]
        tensors[base + "qweight"] = pack_words(q, 0)
        tensors[base + "qzeros"] = pack_words(zeros - 1, 1)
        tensors[base + "scales"] = scales
        tensors[base + "g_idx"] = index.int()
        yield name, ((q - zeros[index] % 16) * scales.float()[index]).T
    config["quantization_config"] = dict(quant_method="gptq", bits=4, group_size=group, desc_act=True, sym=False,
                                         checkpoint_format="gptq")


def quantise_fp8(tensors, config):
    """Blocks of 128 × 128, of which the last are cut."""
    for name in linear_names(tensors):
        w = tensors[name].float()
        scale = torch.zeros(-(-w.shape[0] // 128), -(-w.shape[1] // 128))
        for i in range(scale.shape[0]):
            for j in range(scale.shape[1]):
                scale[i, j] = w[128 * i:128 * (i + 1), 128 * j:128 * (j + 1)].abs().max() / 448
        spread = scale.repeat_interleave(128, 0)[:w.shape[0]].repeat_interleave(128, 1)[:, :w.shape[1]]
        tensors[name] = (w / spread).to(torch.float8_e4m3fn)
        tensors[name + "_scale_inv"] = scale
        yield name, tensors[name].float() * spread
    config["quantization_config"] = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
                                         weight_block_size=[128, 128])


def quantise_int8(tensors, config):
    """compressed-tensors, a scale for each output; inputs are to be rounded by token."""
    for name in linear_names(tensors):
        w = tensors[name].float()
        scale = (w.abs().amax(1, keepdim=True) / 127).bfloat16()
        tensors[name] = torch.round(w / scale.float()).clamp(-128, 127).to(torch.int8)
        tensors[name[:-len("weight")] + "weight_scale"] = scale
        yield name, tensors[name].float() * scale.float()
    config["quantization_config"] = dict(
        quant_method="compressed-tensors", format="int-quantized", ignore=["lm_head"],
        config_groups=dict(group_0=dict(
            targets=["Linear"],
            input_activations=dict(num_bits=8, type="int", strategy="token", dynamic=True, symmetric=True),
            weights=dict(num_bits=8, type="int", strategy="channel", dynamic=False, symmetric=True))))


def quantise_pack(tensors, config):
    """compressed-tensors, symmetric, 32 inputs to a group; one layer's MLP stays as it is."""
    group = 32
    for name in linear_names(tensors):
        if ".layers.1.mlp." in name:
            continue
        w = tensors.pop(name).float()
        pad = torch.nn.functional.pad(w, (0, -w.shape[1] % group)).unflatten(1, (-1, group))
        scale = (pad.abs().amax(2) / 7).bfloat16()
        q = torch.round(w / scale.float().repeat_interleave(group, 1)[:, :w.shape[1]]).clamp(-8, 7)
        base = name[:-len("weight")]
        tensors[base + "weight_packed"] = pack_words(q + 8, 1)
        tensors[base + "weight_scale"] = scale
        tensors[base + "weight_shape"] = torch.tensor(w.shape)
        yield name, q * scale.float().repeat_interleave(group, 1)[:, :w.shape[1]]
    config["quantization_config"] = dict(
        quant_method="compressed-tensors", format="pack-quantized", ignore=["lm_head", "re:.*layers.1.mlp.*"],
        config_groups=dict(group_0=dict(targets=["Linear"], input_activations=None, weights=dict(
            num_bits=4, type="int", strategy="group", group_size=group, symmetric=True))))


def chatglm(tensors, config):
    """The same weights under the names and keys of the original files."""
    old = dict(tensors)
    tensors.clear()
    names = {"model.embed_tokens": "transformer.embedding.word_embeddings", "lm_head": "transformer.output_layer",
             "model.norm": "transformer.encoder.final_layernorm"}
    parts = {"input_layernorm": "input_layernorm", "post_attention_layernorm": "post_attention_layernorm",
             "self_attn.o_proj": "self_attention.dense", "mlp.gate_up_proj": "mlp.dense_h_to_4h",
             "mlp.down_proj": "mlp.dense_4h_to_h"}
    for a, b in names.items():
        tensors[b + ".weight"] = old[a + ".weight"]
    for layer in range(config["num_hidden_layers"]):
        a, b = f"model.layers.{layer}.", f"transformer.encoder.layers.{layer}."
        for x, y in parts.items():
            tensors[b + y + ".weight"] = old[a + x + ".weight"]
        for end in ("weight", "bias"):
            tensors[f"{b}self_attention.query_key_value.{end}"] = torch.cat(
                [old[f"{a}self_attn.{x}_proj.{end}"] for x in "qkv"])
    rotated = config["head_dim"] // 2
    theta = config["rope_parameters"]["rope_theta"]
    tensors["transformer.rotary_pos_emb.inv_freq"] = (theta ** -(torch.arange(0, rotated, 2) / rotated)).half()
    new = dict(architectures=["ChatGLMModel"], model_type="chatglm", num_layers=config["num_hidden_layers"],
               padded_vocab_size=config["vocab_size"], hidden_size=config["hidden_size"],
               ffn_hidden_size=config["intermediate_size"], kv_channels=config["head_dim"],
               num_attention_heads=config["num_attention_heads"], multi_query_attention=True,
               multi_query_group_num=config["num_key_value_heads"], layernorm_epsilon=config["rms_norm_eps"],
               seq_length=config["max_position_embeddings"], add_qkv_bias=True, add_bias_linear=False, original_rope=True,
               rope_ratio=theta / 10000, post_layer_norm=True, rmsnorm=True, torch_dtype="float16",
               apply_residual_connection_post_layernorm=False, tie_word_embeddings=False, eos_token_id=2)
    config.clear()
    config.update(new)


def old_spelling(config):
    """config.json as transformers 4 wrote it."""
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    parameters["type"] = parameters.pop("rope_type")
    config["rope_scaling"] = parameters
    config["torch_dtype"] = config.pop("dtype")


def write_shards(directory, tensors, count):
    names = sorted(tensors)
    weight_map = {}
    for shard in range(count):
        file = f"model-{shard + 1:05d}-of-{count:05d}.safetensors"
        part = names[shard::count]
        save_file({n: tensors[n] for n in part}, os.path.join(directory, file), metadata={"format": "pt"})
        weight_map.update({n: file for n in part})
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": weight_map}, f, indent=1)


def make_case(directory, model_type, config, dtype, kind, seed):
    generator = torch.Generator().manual_seed(seed)
    model = make_model(model_type, copy.deepcopy(config), generator)
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data.to(getattr(torch, dtype)))
    copy.deepcopy(model).to(getattr(torch, dtype)).save_pretrained(directory)  # a copy: frequencies are rounded, too
    path = os.path.join(directory, "model.safetensors")
    tensors = load_file(path)
    with open(os.path.join(directory, "config.json")) as f:
        saved = json.load(f)
    quantised = []
    if kind in ("gptq", "fp8", "int8", "pack"):
        decode = {"gptq": quantise_gptq, "fp8": quantise_fp8, "int8": quantise_int8, "pack": quantise_pack}[kind]
        parameters = dict(model.named_parameters())
        for name, values in decode(tensors, saved):
            parameters[name].data.copy_(values)
            quantised.append(name)
    golden = reference(model, generator, saved.get("pad_token_id") if model_type == "xlm-roberta" else None)
    if kind in ("fp8", "int8"):
        reference_rounded(model, golden, quantised, round_fp8 if kind == "fp8" else round_int8)
    if kind == "chatglm":
        chatglm(tensors, saved)
    if kind == "old":
        old_spelling(saved)
    if kind == "shards":
        os.remove(path)
        write_shards(directory, tensors, 2)
    else:
        save_file(tensors, path, metadata={"format": "pt"})
    save_file(golden, os.path.join(directory, "golden.safetensors"))
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(saved, f, indent=1)
        f.write("\n")
    generation = os.path.join(directory, "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)
    return golden


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "..", "data", "dense")
    for number, (name, case) in enumerate(CASES.items()):
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        golden = make_case(os.path.join(out, name), *case, seed=100 + number)
        margins = [float(m) for k, v in golden.items() if k.startswith("margin") for m in v]
        print(name, f"smallest margin {min(margins):.4f}" if margins else "", flush=True)


if __name__ == "__main__":
    main()
