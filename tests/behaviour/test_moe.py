"""Checkpoints with experts, latent and sparse attention and layers that draft through the tool: every small case of
tests/data/moe against its reference, on one rank and on two; what inspect says of them, what is refused; a checkpoint in the
shape of a 106B model, of which one token reads little.  Standard library only."""
import json
import os
import shutil
import struct
import subprocess
import tempfile

import harness
from harness import check, equal

DATA = os.path.join(harness.SOURCE, "tests", "data", "moe")
CASES = ["glm4_moe", "glm4_moe-fused", "glm4_moe-int4", "glm4_moe-nvfp4", "glm4_moe_lite", "deepseek_v3", "glm_moe_dsa",
         "glm_moe_dsa-pattern"]
DRAFTING = ["glm4_moe", "deepseek_v3", "glm_moe_dsa"]


def tool(*arguments):
    return subprocess.run([harness.program("penstock"), *arguments], capture_output=True, text=True, timeout=harness.DEADLINE)


def test_every_case():
    equal(sorted(CASES), sorted(os.listdir(DATA)), "every case is listed here")
    for name in CASES:
        done = tool("eval", "--golden", os.path.join(DATA, name))
        equal(done.returncode, 0, name + ": " + done.stdout + done.stderr)
        equal("of drafts" in done.stdout, name in DRAFTING, done.stdout)


def test_two_ranks():
    for name in CASES:
        done = tool("eval", "--ranks", "2", "--golden", os.path.join(DATA, name))
        equal(done.returncode, 0, name + ": " + done.stdout + done.stderr)


def test_weights_in_their_files():
    for name in CASES:
        done = tool("eval", "--map-weights", "--golden", os.path.join(DATA, name))
        equal(done.returncode, 0, name + ": " + done.stdout + done.stderr)


def copy_case(name, directory):
    path = os.path.join(directory, name)
    shutil.copytree(os.path.join(DATA, name), path)
    os.chmod(path, 0o755)
    return path


def edit_config(path, **changes):
    name = os.path.join(path, "config.json")
    with open(name) as f:
        config = json.load(f)
    config.update(changes)
    os.remove(name)
    with open(name, "w") as f:
        json.dump({key: value for key, value in config.items() if value is not None}, f)


def test_inspect():
    said = tool("inspect", os.path.join(DATA, "glm_moe_dsa")).stdout
    for words in ("glm_moe_dsa: 4 layers", "4 layers, a row of 32 values for all heads", "1 layers, a row of 32 values",
                  "2 layers, a row of 16 values", "1 layers, a row of 16 values",
                  "KV cache      832 bytes per token on the CPU, 416 in 16 bits", "loads         yes"):
        check(words in said, f"{words} in {said}")
    said = tool("inspect", os.path.join(DATA, "glm4_moe-nvfp4")).stdout
    check("F4_E2M1" in said and "loads         yes" in said, said)


def test_spellings_of_shared_layers():
    """The same pattern as a list of letters, and as a frequency; a wrong one changes what comes out."""
    with tempfile.TemporaryDirectory() as directory:
        path = copy_case("glm_moe_dsa-pattern", directory)
        for changes in (dict(index_topk_pattern=["F", "S", "S"]), dict(index_topk_pattern=None, index_topk_freq=8,
                                                                      index_skip_topk_offset=1),
                        dict(indexer_types=["full", "shared", "shared"])):
            edit_config(path, **changes)
            done = tool("eval", "--golden", path)
            equal(done.returncode, 0, f"{changes}: {done.stdout}{done.stderr}")
        edit_config(path, indexer_types=["full", "full", "shared"])
        done = tool("eval", "--golden", path)
        check(done.returncode == 1 and "indexer" in done.stderr, "a layer without an indexer: " + done.stderr)
        for changes, words in ((dict(indexer_types=["shared", "full", "full"]), "layer 0 has no indexer"),
                               (dict(indexer_types=["full", "some", "full"]), "indexer_types[1] = \"some\""),
                               (dict(indexer_types=["full"]), "indexer_types has 1 entries for 3 layers"),
                               (dict(indexer_types=None, index_topk_pattern="FX"), "F or S for each of 3 layers")):
            edit_config(path, **changes)
            done = tool("eval", "--golden", path)
            check(done.returncode != 0 and words in done.stderr, f"{words} in {done.stderr}")


def test_refused():
    for name, changes, words in (
            ("glm4_moe", dict(scoring_func="softmax"), "scoring_func = \"softmax\""),
            ("glm4_moe", dict(num_experts_per_tok=9), "num_experts_per_tok"),
            ("glm4_moe", dict(n_group=3), "8 experts in 3 groups"),
            ("glm4_moe", dict(mlp_layer_types=["dense"]), "mlp_layer_types has 1 entries for 3 layers"),
            ("glm4_moe", dict(mlp_layer_types=["dense", "odd", "sparse"]), "mlp_layer_types[1] = \"odd\""),
            ("deepseek_v3", dict(topk_group=1), "3 of a token from 1 of these"),
            ("glm_moe_dsa", dict(layer_types=["sliding_attention"] * 4), "only \"deepseek_sparse_attention\" is supported"),
            ("glm_moe_dsa", dict(kv_lora_rank=0), "kv_lora_rank")):
        with tempfile.TemporaryDirectory() as directory:
            path = copy_case(name, directory)
            edit_config(path, **changes)
            done = tool("eval", "--golden", path)
            check(done.returncode != 0 and words in done.stderr, f"{name} {changes}: {done.stderr}")


def write_gptq(path, name, groups):
    """Makes of the weight NAME one of GPTQ, all zeros, whose columns are of GROUPS."""
    file = os.path.join(path, "model.safetensors")
    with open(file, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    rows, columns = header[name]["shape"]
    parts = {key: (value["dtype"], value["shape"], data[slice(*value["data_offsets"])])
             for key, value in header.items() if key not in (name, "__metadata__")}
    base, count = name.removesuffix("weight"), max(groups) + 1
    parts.update({base + "qweight": ("I32", [columns // 8, rows], bytes(columns * rows // 2)),
                  base + "scales": ("F16", [count, rows], bytes(2 * count * rows)),
                  base + "qzeros": ("I32", [count, rows // 8], bytes(count * rows // 2)),
                  base + "g_idx": ("I32", [columns], struct.pack(f"<{columns}i", *groups))})
    header, at = {}, 0
    for key, (dtype, shape, value) in parts.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(value)]}
        at += len(value)
    text = json.dumps(header).encode()
    os.remove(file)
    with open(file, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(value for _, _, value in parts.values()))
    edit_config(path, quantization_config=dict(quant_method="gptq", bits=4, group_size=columns // count, desc_act=True, sym=True))


def test_act_order_of_kv_b_proj_is_refused_at_load():
    """Latent attention wants single rows of it; before it was refused by name, it was by the first step, as "invalid"."""
    name = "model.layers.1.self_attn.kv_b_proj.weight"
    with tempfile.TemporaryDirectory() as directory:
        path = copy_case("glm4_moe_lite", directory)
        write_gptq(path, name, [k % 3 for k in range(24)])
        for arguments in ((), ("--ranks", "2"), ("--map-weights",)):
            done = tool("eval", *arguments, "--golden", path)
            check(done.returncode != 0 and "tensor model.layers.1.self_attn.kv_b_proj.qweight has groups of columns in an order "
                  "of their own (act-order, g_idx)" in done.stderr, done.stdout + done.stderr)
        said = tool("inspect", path).stdout
        check("kv_b_proj.qweight has groups" in said, said)
    with tempfile.TemporaryDirectory() as directory:
        path = copy_case("glm4_moe_lite", directory)
        write_gptq(path, name, [k // 8 for k in range(24)])
        done = tool("eval", "--golden", path)
        check("prompt 0" in done.stdout, "groups in their order are read: " + done.stdout + done.stderr)


# ---- a shape of 106B ------------------------------------------------------------------------------------------------------

LAYERS, EXPERTS, WIDTH, INNER, VOCAB, CONTEXT = 46, 128, 256, 1408, 1024, 4096


def write_sparse(directory):
    """GLM-4.5-Air but for the width: 128 experts in 45 of 46 layers, all zeros, which take no room on the disk."""
    tensors = {"model.embed_tokens.weight": [VOCAB, WIDTH], "lm_head.weight": [VOCAB, WIDTH], "model.norm.weight": [WIDTH]}
    for layer in range(LAYERS):
        p = f"model.layers.{layer}."
        tensors.update({p + "input_layernorm.weight": [WIDTH], p + "post_attention_layernorm.weight": [WIDTH],
                        p + "self_attn.q_proj.weight": [4 * 64, WIDTH], p + "self_attn.k_proj.weight": [64, WIDTH],
                        p + "self_attn.v_proj.weight": [64, WIDTH], p + "self_attn.o_proj.weight": [WIDTH, 4 * 64]})
        if layer == 0:
            mlps = [("mlp.", INNER)]
        else:
            mlps = [("mlp.shared_experts.", INNER)] + [(f"mlp.experts.{e}.", INNER) for e in range(EXPERTS)]
            tensors.update({p + "mlp.gate.weight": [EXPERTS, WIDTH], p + "mlp.gate.e_score_correction_bias": [EXPERTS]})
        for name, inner in mlps:
            tensors.update({p + name + "gate_proj.weight": [inner, WIDTH], p + name + "up_proj.weight": [inner, WIDTH],
                            p + name + "down_proj.weight": [WIDTH, inner]})
    header, at = {}, 0
    for name, shape in tensors.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path = os.path.join(directory, "model.safetensors")
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(dict(model_type="glm4_moe", hidden_size=WIDTH, intermediate_size=INNER, moe_intermediate_size=INNER,
                       num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=1, head_dim=64,
                       n_routed_experts=EXPERTS, num_experts_per_tok=8, n_shared_experts=1, first_k_dense_replace=1,
                       norm_topk_prob=True, routed_scaling_factor=1.0, rms_norm_eps=1e-5, vocab_size=VOCAB,
                       max_position_embeddings=CONTEXT, rope_parameters=dict(rope_theta=1e6, rope_type="default"),
                       partial_rotary_factor=0.5, tie_word_embeddings=False), f)
    header = json.dumps({"ids.0": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]},
                         "at.0": {"dtype": "I32", "shape": [1], "data_offsets": [4, 8]},
                         "logits.0": {"dtype": "F32", "shape": [1, VOCAB], "data_offsets": [8, 8 + 4 * VOCAB]}}).encode()
    with open(os.path.join(directory, "golden.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + struct.pack("<ii", 5, 0) + bytes(4 * VOCAB))
    return at


def test_one_token_of_many_experts():
    with tempfile.TemporaryDirectory() as directory:
        size = write_sparse(directory)
        routed = 3 * 2 * WIDTH * INNER * 8 * (LAYERS - 1)
        check(size > 12e9 and routed < size / 15, f"{size} bytes, {routed} of them for a token")
        child = subprocess.Popen([harness.program("penstock"), "eval", "--map-weights", "--golden", directory, "--threads", "2"],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        equal(child.returncode, 0, said)
        # All experts are equal, so the token goes to the first eight, in every layer.  Sanitizers' own memory counts as resident.
        check(os.environ.get("PENSTOCK_SANITIZER") or usage.ru_maxrss * 1024 < size / 8, f"{usage.ru_maxrss} KiB resident of {size} bytes: {said}")


if __name__ == "__main__":
    harness.main(globals())
