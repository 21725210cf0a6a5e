#!/usr/bin/env python3
"""Writes tests/data/moe/NAME: small checkpoints with random weights of the architectures with experts, latent and sparse
attention and layers that draft, and what transformers makes of them.

    python3 tests/reference/make_moe.py [OUT [NAME…]]

Needs what make_dense.py needs, of which this uses most.  Transformers has no layer that drafts: the reference for it is a
model of one layer of the same kind, whose input is made here of embedding and hidden state.  chain_tokens.K and
chain_logits.K are three drafts, one after the other, behind prompt K and the token that greedy choice puts after it.
"""
import copy
import json
import os
import re
import shutil
import sys

import torch
from make_dense import VOCAB, make_model, pack_words, reference, rope
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
CHAIN = 3
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def mixed(**more):
    return dict(dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
                     num_key_value_heads=2, head_dim=16, max_position_embeddings=512, tie_word_embeddings=False, bos_token_id=None,
                     eos_token_id=1, pad_token_id=0, n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1,
                     moe_intermediate_size=16, first_k_dense_replace=1, routed_scaling_factor=1.5, norm_topk_prob=True), **more)


def latent(**more):
    return mixed(**dict(dict(num_key_value_heads=4, head_dim=8, q_lora_rank=32, kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8,
                             v_head_dim=20, mlp_layer_types=["dense"] + ["sparse"] * (more.get("num_hidden_layers", 3) - 1)),
                        **more))


def sparse(**more):
    # With few heads many scores are exactly zero, and which of equal ones transformers chooses is nobody's promise.
    return latent(**dict(dict(index_n_heads=16, index_head_dim=16, index_topk=12), **more))


half = rope(theta=1e6, partial_rotary_factor=0.5)
# name: model_type, configuration, stored type, what is done to it, whether a layer drafts
CASES = {
    "glm4_moe": ("glm4_moe", mixed(attention_bias=True, use_qk_norm=True, n_group=1, topk_group=1, **half), "bfloat16", None, True),
    "glm4_moe-fused": ("glm4_moe", mixed(num_hidden_layers=2, n_routed_experts=6, num_experts_per_tok=3, **half), "bfloat16", "fuse",
                       False),
    "glm4_moe-int4": ("glm4_moe", mixed(num_hidden_layers=2, hidden_size=64, moe_intermediate_size=32, **half), "bfloat16", "pack",
                      False),
    "glm4_moe-nvfp4": ("glm4_moe", mixed(num_hidden_layers=2, hidden_size=64, moe_intermediate_size=32, **half), "bfloat16", "nvfp4",
                       False),
    "glm4_moe_lite": ("glm4_moe_lite", latent(num_hidden_layers=2, attention_bias=True, **rope(theta=1e6)), "bfloat16", None, False),
    "deepseek_v3": ("deepseek_v3", latent(q_lora_rank=None, n_group=4, topk_group=2, num_experts_per_tok=3, rope_interleave=True,
                                          **rope("yarn", factor=4.0, original_max_position_embeddings=128, mscale=1.0,
                                                 mscale_all_dim=1.0)), "bfloat16", None, True),
    "glm_moe_dsa": ("glm_moe_dsa", sparse(num_hidden_layers=4, indexer_types=["full", "shared", "full", "shared"],
                                          **rope(theta=8e6)), "bfloat16", None, True),
    "glm_moe_dsa-pattern": ("glm_moe_dsa", sparse(num_hidden_layers=3, indexer_types=["full", "shared", "shared"],
                                                  **rope(theta=1e6)), "float16", "pattern", False),
}
SEEDS = {}


def fill_bias(model, generator):
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.1 * torch.randn(buffer.shape, generator=generator))


def set_weight(model, name, values):
    """A tensor under its published name, where the modules have experts as one."""
    parts = re.match(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight", name)
    parameters = dict(model.named_parameters())
    if not parts:
        parameters[name].data.copy_(values)
        return
    base, expert, part = parts[1], int(parts[2]), parts[3]
    if part == "down":
        parameters[base + ".down_proj"].data[expert].copy_(values)
        return
    rows = values.shape[0]
    parameters[base + ".gate_up_proj"].data[expert][(part == "up") * rows:][:rows].copy_(values)


# ---- the layer that drafts ---------------------------------------------------------------------------------------------

def make_draft(model_type, config, generator):
    """A model of one layer, the last norm of which is the one before its logits, and what makes its input."""
    one = dict(copy.deepcopy(config), num_hidden_layers=1, first_k_dense_replace=0)
    if "mlp_layer_types" in one:
        one["mlp_layer_types"] = ["sparse"]
    if "indexer_types" in one:
        one["indexer_types"] = ["full"]
    model = make_model(model_type, one, generator)
    fill_bias(model, generator)
    width = config["hidden_size"]
    more = {name: 1 + 0.2 * torch.randn(width, generator=generator) for name in ("enorm", "hnorm")}
    more["eh_proj"] = 1.2 * torch.randn(width, 2 * width, generator=generator) / (2 * width) ** 0.5
    return model, more


def norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


@torch.no_grad()
def draft_inputs(model, draft, more, tokens, hidden):
    eps = model.config.rms_norm_eps
    pair = torch.cat([norm(model.model.embed_tokens(tokens), more["enorm"], eps), norm(hidden, more["hnorm"], eps)], -1)
    return pair @ more["eh_proj"].T


@torch.no_grad()
def run_draft(model, draft, inputs, shared_from=None):
    """Hidden states and logits; rows behind SHARED_FROM see what that row chose."""
    indexer = getattr(draft.model.layers[0].self_attn, "indexer", None)
    forward = indexer.forward if indexer is not None else None
    if indexer is not None and shared_from is not None:
        def follow(*arguments, **named):
            chosen = forward(*arguments, **named)
            chosen[:, shared_from + 1:] = chosen[:, shared_from:shared_from + 1]
            return chosen
        indexer.forward = follow
    hidden = draft.model(inputs_embeds=inputs[None], use_cache=False).last_hidden_state[0]
    if indexer is not None:
        indexer.forward = forward
    return hidden, model.lm_head(hidden)


@torch.no_grad()
def reference_drafts(model, draft, more, golden, share):
    for k in range(1, sum(name.startswith("ids.") for name in golden)):
        ids = golden[f"ids.{k}"].long()
        hidden = model.model(ids[None], use_cache=False).last_hidden_state[0]
        inputs = draft_inputs(model, draft, more, ids[1:], hidden[:-1])
        at = sorted({0, len(ids) // 3, len(ids) - 2})
        golden[f"mtp_at.{k}"] = torch.tensor(at, dtype=torch.int32)
        golden[f"mtp_logits.{k}"] = run_draft(model, draft, inputs)[1][at].contiguous()
        if share and len(ids) <= draft.config.index_topk:
            continue
        token = golden[f"greedy.{k}"][:1].long()
        tokens, logits, last = [token.item()], [], hidden[-1:]
        for _ in range(CHAIN):
            inputs = torch.cat([inputs, draft_inputs(model, draft, more, token, last)])
            states, scores = run_draft(model, draft, inputs, len(ids) - 1 if share else None)
            last, token = states[-1:], scores[-1].argmax()[None]
            logits.append(scores[-1])
            tokens.append(token.item())
        golden[f"chain_tokens.{k}"] = torch.tensor(tokens[:CHAIN], dtype=torch.int32)
        golden[f"chain_logits.{k}"] = torch.stack(logits)


def add_draft(tensors, saved, draft, more, dtype, directory):
    """The layer under its published names."""
    layer = saved["num_hidden_layers"]
    scratch = os.path.join(directory, "draft")
    copy.deepcopy(draft).to(dtype).save_pretrained(scratch)
    for name, value in load_file(os.path.join(scratch, "model.safetensors")).items():
        if name.startswith("model.layers.0."):
            tensors[f"model.layers.{layer}." + name[len("model.layers.0."):]] = value
        elif name == "model.norm.weight":
            tensors[f"model.layers.{layer}.shared_head.norm.weight"] = value
    shutil.rmtree(scratch)
    for name, value in more.items():
        tensors[f"model.layers.{layer}.{name}.weight"] = value.to(dtype)
    saved["num_nextn_predict_layers"] = 1


# ---- what is done to saved checkpoints ---------------------------------------------------------------------------------

def expert_names(tensors):
    return [n for n in tensors if re.search(r"\.experts\.\d+\.\w+_proj\.weight$", n)]


def fuse(tensors):
    """All experts of a layer as one tensor."""
    for name in sorted(n for n in tensors if n.endswith(".experts.0.down_proj.weight")):
        base = name[:-len("0.down_proj.weight")]
        count = sum(n.startswith(base) and n.endswith("down_proj.weight") for n in tensors)
        take = lambda e, part: tensors.pop(f"{base}{e}.{part}_proj.weight")
        experts = [(torch.cat([take(e, "gate"), take(e, "up")]), take(e, "down")) for e in range(count)]
        tensors[base + "gate_up_proj"] = torch.stack([e[0] for e in experts])
        tensors[base + "down_proj"] = torch.stack([e[1] for e in experts])


def quantise_pack(tensors, config):
    """Experts in compressed-tensors' four bits, 32 inputs to a group; the rest stays as it is."""
    group = 32
    for name in expert_names(tensors):
        w = tensors.pop(name).float()
        scale = (w.unflatten(1, (-1, group)).abs().amax(2) / 7).bfloat16()
        q = torch.round(w / scale.float().repeat_interleave(group, 1)).clamp(-8, 7)
        base = name[:-len("weight")]
        tensors[base + "weight_packed"] = pack_words(q + 8, 1)
        tensors[base + "weight_scale"] = scale
        tensors[base + "weight_shape"] = torch.tensor(w.shape)
        yield name, q * scale.float().repeat_interleave(group, 1)
    config["quantization_config"] = dict(
        quant_method="compressed-tensors", format="pack-quantized", ignore=["lm_head", "re:.*self_attn.*"],
        config_groups=dict(group_0=dict(targets=["Linear"], input_activations=None, weights=dict(
            num_bits=4, type="int", strategy="group", group_size=group, symmetric=True))))


def quantise_nvfp4(tensors, config):
    """Experts in four-bit floats, a scale in e4m3 for 16 inputs and one in float32 for all, as modelopt writes them."""
    for name in expert_names(tensors):
        w = tensors.pop(name).float()
        blocks = w.unflatten(1, (-1, 16))
        whole = w.abs().max() / (6 * 448)
        scale = (blocks.abs().amax(2, keepdim=True) / 6 / whole).to(torch.float8_e4m3fn)
        step = scale.float() * whole
        magnitude = (blocks / step).abs()
        code = (magnitude[..., None] - E2M1).abs().argmin(-1)
        values = (torch.where(blocks < 0, -E2M1[code], E2M1[code]) * step).flatten(1)
        code = (code | (blocks < 0).long() << 3).flatten(1)
        base = name[:-len("weight")]
        tensors[name] = (code[:, 0::2] | code[:, 1::2] << 4).to(torch.uint8)
        tensors[base + "weight_scale"] = scale.squeeze(2)
        tensors[base + "weight_scale_2"] = whole.clone()
        tensors[base + "input_scale"] = torch.tensor(1.0)
        yield name, values
    config["quantization_config"] = dict(quant_method="modelopt", quant_algo="NVFP4", ignore=["lm_head", "*self_attn*"])


def make_case(directory, model_type, config, dtype, kind, drafts, seed):
    generator = torch.Generator().manual_seed(seed)
    stored = getattr(torch, dtype)
    model = make_model(model_type, copy.deepcopy(config), generator)
    fill_bias(model, generator)
    draft, more = make_draft(model_type, config, generator) if drafts else (None, {})
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    for each in [model] + ([draft] if drafts else []):
        for value in list(each.parameters()) + [b for n, b in each.named_buffers() if n.endswith("correction_bias")]:
            value.data.copy_(value.data.to(stored))
    more = {name: value.to(stored).float() for name, value in more.items()}
    copy.deepcopy(model).to(stored).save_pretrained(directory)
    path = os.path.join(directory, "model.safetensors")
    tensors = load_file(path)
    with open(os.path.join(directory, "config.json")) as f:
        saved = json.load(f)
    if kind in ("pack", "nvfp4"):
        for name, values in (quantise_pack if kind == "pack" else quantise_nvfp4)(tensors, saved):
            set_weight(model, name, values)
    golden = reference(model, generator, None)
    if drafts:
        share = model_type == "glm_moe_dsa"
        reference_drafts(model, draft, more, golden, share)
        add_draft(tensors, saved, draft, more, stored, directory)
        if share:
            saved["index_share_for_mtp_iteration"] = True
    if kind == "fuse":
        fuse(tensors)
    if kind == "pattern":
        saved["index_topk_pattern"] = "".join(word[0].upper() for word in saved.pop("indexer_types"))
    save_file(tensors, path, metadata={"format": "pt"})
    save_file({n: t.contiguous() for n, t in golden.items()}, os.path.join(directory, "golden.safetensors"))
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(saved, f, indent=1)
        f.write("\n")
    generation = os.path.join(directory, "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)
    return golden


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "..", "data", "moe")
    for number, (name, case) in enumerate(CASES.items()):
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        golden = make_case(os.path.join(out, name), *case, seed=SEEDS.get(name, 300 + number))
        margins = [float(m) for k, v in golden.items() if k.startswith("margin") for m in v]
        print(name, f"smallest margin {min(margins):.4f}", flush=True)


if __name__ == "__main__":
    main()
