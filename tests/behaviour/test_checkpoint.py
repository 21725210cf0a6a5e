"""Checkpoints of the hub through the tool: every small case of tests/data/dense against its reference, what is refused and
in which words, and the commands eval, inspect and plan.  No daemon runs here; standard library only."""
import json
import os
import re
import shutil
import struct
import subprocess
import tempfile

import harness
from harness import check, equal

DATA = os.path.join(harness.SOURCE, "tests", "data", "dense")
CASES = ["llama", "llama-tied", "llama-yarn", "llama-dynamic", "llama-gptq", "qwen2", "qwen2-int8", "qwen3", "qwen3-fp8", "glm",
         "chatglm", "glm4", "glm4-mixed", "bert", "xlm_roberta"]


def tool(*arguments):
    return subprocess.run([harness.program("penstock"), *arguments], capture_output=True, text=True, timeout=harness.DEADLINE)


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}"""
    data = open(path, "rb").read()
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    body = data[8 + size:]
    return {n: (t["dtype"], t["shape"], body[t["data_offsets"][0]:t["data_offsets"][1]]) for n, t in header.items()}


def write_safetensors(path, tensors):
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)


# ---- the same cases as GGUF ---------------------------------------------------------------------------------------

GGUF_TYPES = {"F32": 0, "F16": 1, "BF16": 30}
GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm",
    # chatglm's own names
    "transformer.embedding.word_embeddings": "token_embd", "transformer.encoder.final_layernorm": "output_norm",
    "transformer.output_layer": "output", "self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
    # bert's
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm"}


def interleave(tensor, heads):
    """Rows of each head's two halves side by side, as llama's GGUF files have them."""
    dtype, shape, data = tensor
    size, half = len(data) // shape[0], shape[0] // heads // 2
    rows = [data[i * size:(i + 1) * size] for i in range(shape[0])]
    order = [h * 2 * half + part * half + i for h in range(heads) for i in range(half) for part in (0, 1)]
    return dtype, shape, b"".join(rows[i] for i in order)


def gguf_tensors(case, architecture):
    config, tensors = case.config, {}
    for name, tensor in case.tensors.items():
        layer = re.match(r"(?:model\.layers|transformer\.encoder\.layers|encoder\.layer)\.(\d+)\.", name)
        base, end = (name[layer.end():] if layer else name).rsplit(".", 1)
        if "inv_freq" in name or "pooler" in name:
            continue
        if architecture == "llama" and base[-6:] in ("q_proj", "k_proj"):
            tensor = interleave(tensor, config["num_attention_heads" if base[-6] == "q" else "num_key_value_heads"])
        tensors[(f"blk.{layer.group(1)}." if layer else "") + f"{GGUF_NAMES[base]}.{end}"] = tensor
    return tensors


def gguf_keys(case, architecture):
    c = case.config
    keys = {"general.architecture": architecture, "block_count": c.get("num_hidden_layers", c.get("num_layers")),
            "context_length": c.get("max_position_embeddings", c.get("seq_length")), "embedding_length": c["hidden_size"],
            "feed_forward_length": c.get("intermediate_size", c.get("ffn_hidden_size")),
            "attention.head_count": c["num_attention_heads"]}
    if architecture == "bert":
        keys.update({"attention.layer_norm_epsilon": c["layer_norm_eps"], "attention.causal": False, "pooling_type": 2})
        return keys
    head = c.get("head_dim", c.get("kv_channels"))
    rope = c.get("rope_parameters", {"rope_theta": 10000.0 * c.get("rope_ratio", 1.0), "partial_rotary_factor": 0.5})
    keys.update({"attention.head_count_kv": c.get("num_key_value_heads", c.get("multi_query_group_num")),
                 "attention.key_length": head, "attention.value_length": head,
                 "attention.layer_norm_rms_epsilon": c.get("rms_norm_eps", c.get("layernorm_epsilon")),
                 "rope.freq_base": rope["rope_theta"], "rope.dimension_count": int(head * rope.get("partial_rotary_factor", 1))})
    if rope.get("rope_type", "default") != "default":
        keys.update({"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]})
    return keys


def write_gguf(path, keys, tensors):
    def string(text):
        return struct.pack("<Q", len(text.encode())) + text.encode()

    def value(v):
        if isinstance(v, bool):
            return struct.pack("<IB", 7, v)
        if isinstance(v, str):
            return struct.pack("<I", 8) + string(v)
        return struct.pack("<If", 6, v) if isinstance(v, float) else struct.pack("<II", 4, v)

    architecture = keys["general.architecture"]
    head = b"".join(string(k if "general" in k else f"{architecture}.{k}") + value(v) for k, v in keys.items())
    body = b""
    for name, (dtype, shape, data) in tensors.items():
        body += b"\0" * (-len(body) % 32)
        head += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), GGUF_TYPES[dtype], len(body))
        body += data
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + head
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32) + body)


def test_gguf_spelling():
    # glm's checkpoints become chatglm in GGUF, with q, k and v apart
    for name, architecture in (("llama", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3"), ("chatglm", "chatglm"),
                               ("glm", "chatglm"), ("glm4", "glm4"), ("bert", "bert")):
        with Copy(name) as case:
            path = case.file("model.gguf")
            write_gguf(path, gguf_keys(case, architecture), gguf_tensors(case, architecture))
            done = tool("eval", "--golden", os.path.join(DATA, name), "--model", path)
            equal(done.returncode, 0, f"{name}: {done.stdout}{done.stderr}")
            check(done.stdout.startswith(architecture + ":"), done.stdout)
            equal(tool("inspect", path).returncode, 0, name)
    with Copy("bert") as case:
        path = case.file("model.gguf")
        write_gguf(path, dict(gguf_keys(case, "bert"), pooling_type=1), gguf_tensors(case, "bert"))
        done = tool("eval", "--golden", os.path.join(DATA, "bert"), "--model", path)
        equal(done.returncode, 1)
        check("bert.pooling_type = 1: only 2, the first token, is supported" in done.stderr, done.stderr)


class Copy:
    """A case copied, to be changed: .config (a dict), .tensors, .golden; save() writes what was read."""

    def __init__(self, name):
        self.directory = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.directory.name, os.path.basename(name))
        shutil.copytree(os.path.join(DATA, name), self.path)
        os.chmod(self.path, 0o755)
        with open(self.file("config.json")) as f:
            self.config = json.load(f)
        self.golden = read_safetensors(self.file("golden.safetensors"))
        self.tensors = None
        if os.path.exists(self.file("model.safetensors")):
            self.tensors = read_safetensors(self.file("model.safetensors"))

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.directory.cleanup()

    def file(self, name):
        return os.path.join(self.path, name)

    def save(self):
        for name in ("config.json", "golden.safetensors", "model.safetensors"):
            if os.path.exists(self.file(name)):
                os.remove(self.file(name))
        with open(self.file("config.json"), "w") as f:
            json.dump(self.config, f)
        write_safetensors(self.file("golden.safetensors"), self.golden)
        if self.tensors:
            write_safetensors(self.file("model.safetensors"), self.tensors)

    def eval(self, *options):
        self.save()
        return tool("eval", "--golden", self.path, *options)

    def refused(self, *words):
        done = self.eval()
        equal(done.returncode, 1, done.stdout + done.stderr)
        for word in words:
            check(word in done.stderr, word, done.stderr)


def test_every_case():
    for name in CASES:
        done = tool("eval", "--golden", os.path.join(DATA, name))
        equal(done.returncode, 0, f"{name}: {done.stdout}{done.stderr}")
        check("\npassed: " in done.stdout, name, done.stdout)
        equal(len(re.findall(r"^prompt \d+: ", done.stdout, re.M)), 4, name)
    equal(sorted(CASES), sorted(os.listdir(DATA)), "every case is listed here")


def test_kernels_are_of_cuda():
    path = os.path.join(DATA, "qwen2")
    equal(tool("eval", "--golden", path, "--kernels", "auto").returncode, 0)
    done = tool("eval", "--golden", path, "--kernels", "own")
    equal(done.returncode, 1, done.stdout)
    check("kernels own is for cuda" in done.stderr, done.stderr)
    done = tool("plan", "--memory", "1G", "--backend", "cuda", "--kernels", "fast", path)
    equal((done.returncode, done.stdout), (2, ""))
    check("--kernels fast: auto, library, own or portable is needed" in done.stderr, done.stderr)


def test_two_ranks():
    for name in CASES:
        done = tool("eval", "--golden", os.path.join(DATA, name), "--ranks", "2")
        equal(done.returncode, 0, f"{name}: {done.stdout}{done.stderr}")
        check(" on each of 2 ranks\n" in done.stdout and "\npassed: " in done.stdout, name, done.stdout)
    done = tool("eval", "--golden", os.path.join(DATA, "qwen2"), "--ranks", "3")
    equal(done.returncode, 1, done.stdout)
    check("4 heads over 2 KV heads cannot be shared out to 3 ranks" in done.stderr, done.stderr)
    done = tool("eval", "--golden", os.path.join(DATA, "qwen2"), "--model", harness.TINY_MODEL, "--ranks", "2")
    equal(done.returncode, 1, done.stdout)
    check("tensor blk.0.ffn_down.weight: 256 columns in blocks of 256 cannot be shared out to 2 ranks" in done.stderr, done.stderr)
    equal(tool("eval", "--golden", os.path.join(DATA, "qwen2"), "--ranks", "17").returncode, 2)


def test_ranks_of_blocks():
    """GGUF blocks of 256 columns are not cut: KV heads of 64 go in pairs, and 1280 columns are three and two blocks."""
    types = {"Q4_K": (12, 144), "Q6_K": (14, 210), "Q3_K": (11, 110), "Q5_K": (13, 176), "Q2_K": (10, 84), "IQ4_XS": (23, 136),
             "Q8_0": (8, 34)}
    blocks = read_safetensors(os.path.join(harness.SOURCE, "tests", "data", "blocks.safetensors"))
    width, ffn, vocab = 512, 1280, 96
    state = [1]

    def weight(kind, rows, columns):
        size, data = types[kind][1], blocks[f"{kind}.blocks"][2]
        out, per = [], 32 if kind == "Q8_0" else 256
        for _ in range(rows * columns // per):
            state[0] = (state[0] * 6364136223846793005 + 1442695040888963407) % 2 ** 64
            at = (state[0] >> 33) % (len(data) // size) * size
            out.append(data[at:at + size])
        return kind, [rows, columns], b"".join(out)

    GGUF_TYPES.update({kind: number for kind, (number, _) in types.items()})
    ones = ("F32", [width], struct.pack(f"<{width}f", *[0.01] * width))  # the blocks' values are large
    tensors = {"token_embd.weight": weight("Q8_0", vocab, width), "output_norm.weight": ones,
               "output.weight": weight("Q8_0", vocab, width)}
    for layer, (first, second) in enumerate((("Q4_K", "Q6_K"), ("Q3_K", "Q5_K"), ("Q2_K", "IQ4_XS"))):
        tensors.update({f"blk.{layer}.{name}.weight": tensor for name, tensor in {
            "attn_norm": ones, "ffn_norm": ones, "attn_q": weight(second, width, width), "attn_k": weight(first, 256, width),
            "attn_v": weight(second, 256, width), "attn_output": weight(first, width, width),
            "ffn_gate": weight(first, ffn, width), "ffn_up": weight(second, ffn, width), "ffn_down": weight(second, width, ffn)}.items()})
    keys = {"general.architecture": "llama", "block_count": 3, "context_length": 512, "embedding_length": width,
            "feed_forward_length": ffn, "attention.head_count": 8, "attention.head_count_kv": 4,
            "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0, "rope.dimension_count": 64}
    with tempfile.TemporaryDirectory() as directory:
        path, golden = os.path.join(directory, "model.gguf"), os.path.join(directory, "golden.safetensors")
        write_gguf(path, keys, tensors)
        equal(tool("eval", "--golden", directory, "--model", path, "--dump", golden).returncode, 0)
        done = tool("eval", "--golden", directory, "--model", path, "--ranks", "2")
        equal(done.returncode, 0, done.stdout + done.stderr)
        done = tool("eval", "--golden", directory, "--model", path, "--ranks", "4")
        equal(done.returncode, 1)
        check("tensor blk.0.attn_output.weight: 512 columns in blocks of 256, which are 8 heads over 4 KV heads" in done.stderr,
              done.stderr)


def test_dump():
    for name in ("qwen2", "bert"):
        with Copy(name) as case:
            full = dict(case.golden)
            out = case.file("out.safetensors")
            case.golden = {n: t for n, t in full.items() if n.split(".")[0] in ("ids", "at")}
            case.golden["mtp_at.1"] = ("I32", [1], struct.pack("<i", 3))  # for models that predict several tokens
            done = case.eval("--dump", out)
            equal(done.returncode, 0, done.stderr)
            check("nothing to compare" in done.stdout, done.stdout)
            own = read_safetensors(out)
            equal(set(own), {n for n in full if n.split(".")[0] in ("logits", "greedy", "embedding")})
            for tensor, (dtype, shape, data) in own.items():
                equal((dtype, shape), full[tensor][:2], tensor)
                if tensor.startswith("greedy"):
                    equal(shape, [24])
                    equal(data, full[tensor][2], tensor)
            # Without something to write or to compare there was no point in running.
            equal(case.eval().returncode, 1)


def test_dump_without_golden():
    for name in ("glm", "bert"):
        with Copy(name) as case:
            full, golden = dict(case.golden), case.file("golden.safetensors")
            os.remove(golden)
            done = tool("eval", "--golden", case.path)
            equal(done.returncode, 1)
            check("golden.safetensors" in done.stderr, done.stderr)
            equal(tool("eval", "--golden", case.path, "--dump", golden).returncode, 0)
            own = read_safetensors(golden)  # a whole golden file, which agrees with itself
            equal(set(own), set(full))
            done = tool("eval", "--golden", case.path)
            equal(done.returncode, 0, done.stderr)
            check("\npassed: largest error 0.00e+00" in done.stdout, done.stdout)
            own = {n: t for n, t in own.items() if n.split(".")[0] not in ("margin", "greedy")}
            case.golden = own
            equal(case.eval("--ranks", "2").returncode, 0)


def test_failure_is_told_and_dumped():
    with Copy("qwen2") as case:
        dtype, shape, data = case.golden["logits.1"]
        values = list(struct.unpack(f"<{len(data) // 4}f", data))
        values[5] += 0.01
        case.golden["logits.1"] = (dtype, shape, struct.pack(f"<{len(values)}f", *values))
        out = case.file("out.safetensors")
        done = case.eval("--dump", out)
        equal(done.returncode, 1)
        check("\nFAILED: " in done.stdout, done.stdout)
        equal(read_safetensors(out)["logits.1"][1], shape)
    with Copy("glm4") as case:  # a wrong greedy token at a clear margin
        dtype, shape, data = case.golden["greedy.2"]
        chosen = list(struct.unpack("<24i", data))
        chosen[23] = (chosen[23] + 1) % 96
        case.golden["greedy.2"] = (dtype, shape, struct.pack("<24i", *chosen))
        done = case.eval()
        equal(done.returncode, 1)
        check("greedy 95 of 96" in done.stdout, done.stdout)


def test_rounded_inputs():
    for name in ("qwen2-int8", "qwen3-fp8"):
        done = tool("eval", "--golden", os.path.join(DATA, name))
        equal(len(re.findall(r"^prompt \d, inputs rounded: ", done.stdout, re.M)), 4, done.stdout)
        check(re.search(r"inputs rounded, (\d+) of 10 positions within 1e-04$", done.stdout, re.M), done.stdout)
        with Copy(name) as case:  # what they would be without: six positions and more are out of bounds
            for k in range(4):
                case.golden[f"logits_aq.{k}"] = case.golden[f"logits.{k}"]
            out = case.file("out.safetensors")
            done = case.eval("--dump", out)
            equal(done.returncode, 1, done.stdout)
            check("\nFAILED: " in done.stdout, done.stdout)
            for k in range(4):  # the dump is of float inputs
                own, wanted = (struct.unpack(f"<{len(t[2]) // 4}f", t[2])
                               for t in (read_safetensors(out)[f"logits.{k}"], case.golden[f"logits.{k}"]))
                check(max(abs(a - b) for a, b in zip(own, wanted)) < 1e-4 * max(map(abs, wanted)), name, k)


def test_golden_refused():
    with Copy("qwen2") as case:
        case.golden["ids.1"] = ("I32", [2], struct.pack("<2i", 5, 96))
        case.refused("ids.1[1] = 96 is outside 0…95")
    with Copy("qwen2") as case:
        case.golden["at.1"] = ("I32", [1], struct.pack("<i", 9))
        case.refused("at.1[0] = 9 is outside 0…8")
    with Copy("qwen2") as case:
        case.golden["logits.1"] = ("F32", [3, 95], case.golden["logits.1"][2][:3 * 95 * 4])
        case.refused("logits.1 is F32 [3, 95]")
    with Copy("qwen2") as case:
        case.config["max_position_embeddings"] = 300
        case.refused("prompt 3 has 313 tokens with its continuation, the model's context 300")
    with Copy("qwen2") as case:  # 290 tokens fit when nobody wants to know how they go on
        case.config["max_position_embeddings"] = 290
        case.golden = {n: t for n, t in case.golden.items() if n.split(".")[0] not in ("greedy", "margin")}
        equal(case.eval().returncode, 0)
        done = case.eval("--dump", case.file("out.safetensors"))
        equal(done.returncode, 1)
        check("prompt 3 has 313 tokens with its continuation, the model's context 290" in done.stderr, done.stderr)
    with Copy("qwen2") as case:
        case.golden = {"x": ("I32", [0], b"")}
        case.refused("no ids.0")


def test_tensors_refused():
    with Copy("llama") as case:
        case.tensors["model.layers.1.mlp.stray.weight"] = ("F32", [1], b"\0" * 4)
        case.refused('tensor "model.layers.1.mlp.stray.weight" (F32) is not part of this architecture')
    with Copy("llama") as case:
        case.tensors["model.layers.2.input_layernorm.weight"] = case.tensors["model.layers.1.input_layernorm.weight"]
        case.refused("model.layers.2.input_layernorm.weight")
    for tensor in ("model.norm.weight", "model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.o_proj.bias", "lm_head.weight"):
        with Copy("llama") as case:
            del case.tensors[tensor]
            case.refused(f"tensor {tensor} is missing")
    with Copy("llama") as case:
        case.config["intermediate_size"] = 63
        case.refused('gate_proj.weight" has the shape [64, 48], [63, 48] is needed')
    with Copy("llama") as case:
        case.config["vocab_size"] = 95
        case.refused('embed_tokens.weight" has the shape [96, 48], [95, 48] is needed')
    with Copy("llama") as case:
        dtype, shape, data = case.tensors["model.norm.weight"]
        case.tensors["model.norm.weight"] = ("I8", shape, data[:48])
        case.refused("model.norm.weight is I8")
    with Copy("llama-gptq") as case:
        del case.tensors["model.layers.0.mlp.up_proj.scales"]
        case.refused("model.layers.0.mlp.up_proj.scales is missing")


def test_biases_of_gptq_writers():
    """They write a bias of zeros beside every layer they quantise, also where the architecture has none."""
    with Copy("llama-gptq") as case:
        bias = "model.layers.1.mlp.down_proj.bias"
        case.tensors[bias] = ("F16", [64], b"\0" * 128)
        case.config["mlp_bias"] = False
        case.save()
        equal(tool("eval", "--golden", case.path).returncode, 0, "llama has a place for it")
    with Copy("llama-gptq") as case:  # as a qwen3 it has none
        for layer in (0, 1):
            for which in "qk":
                case.tensors[f"model.layers.{layer}.self_attn.{which}_norm.weight"] = ("F32", [16], struct.pack("<16f", *[1] * 16))
            case.tensors[f"model.layers.{layer}.mlp.down_proj.bias"] = ("F16", [64], b"\0" * 128)
        case.config["model_type"] = "qwen3"
        case.save()
        done = tool("inspect", case.path)
        equal(done.returncode, 0, done.stdout)
        case.tensors["model.layers.1.mlp.down_proj.bias"] = ("F16", [64], b"\0" * 126 + b"\1\0")
        case.save()
        done = tool("inspect", case.path)
        equal(done.returncode, 1)
        equal(re.findall(r"^problem +(.*)$", done.stdout, re.M),
              ["tensor model.layers.1.mlp.down_proj.bias is not part of a qwen3 of 2 layers"])


def test_shards_refused():
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    with Copy("llama-tied") as case:
        os.remove(case.file(second))
        case.refused(second, "missing")
    with Copy("llama-tied") as case:
        with open(case.file(first), "r+b") as f:
            f.truncate(os.path.getsize(case.file(first)) - 1)
        case.refused(first)
    with Copy("llama-tied") as case:
        os.remove(case.file("model.safetensors.index.json"))
        case.refused("model.safetensors.index.json is missing")


def test_tied():
    with Copy("qwen2") as case:
        check("lm_head.weight" not in case.tensors)
        case.config["tie_word_embeddings"] = False
        case.refused("tensor lm_head.weight is missing")
    with Copy("qwen2") as case:  # a copy that is stored all the same
        case.tensors["lm_head.weight"] = case.tensors["model.embed_tokens.weight"]
        equal(case.eval().returncode, 0)


def test_config_refused():
    for name, changes, words in (
            ("llama", {"model_type": "mamba"}, ['model_type = "mamba" is not known', "llama, qwen2, qwen3, chatglm"]),
            ("llama", {"hidden_act": "gelu"}, ['hidden_act = "gelu": only "silu" is supported']),
            ("llama", {"num_attention_heads": 3}, ["3 heads over 2 KV heads of 16 dimensions"]),
            ("llama", {"num_hidden_layers": 0}, ["num_hidden_layers = 0"]),
            ("llama", {"num_hidden_layers": None}, ["num_hidden_layers is missing"]),
            ("llama", {"rope_parameters": {"rope_type": "longrope"}}, ["longrope"]),
            ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, ["layer_types[1]", "sliding_attention"]),
            ("qwen2", {"layer_types": None, "use_sliding_window": True, "sliding_window": 128, "max_window_layers": 1},
             ["sliding_window = 128"]),
            ("chatglm", {"rmsnorm": False}, ["rmsnorm = false is not supported"]),
            ("chatglm", {"add_bias_linear": True}, ["add_bias_linear"]),
            ("bert", {"hidden_act": "relu"}, ["hidden_act", "relu"]),
            ("bert", {"position_embedding_type": "relative_key"}, ["position_embedding_type"]),
            ("glm4-mixed", {"quantization_config": {"quant_method": "bitsandbytes"}}, ["bitsandbytes"]),
            ("llama-gptq", {"quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": 32}},
             ["quantization_config.bits = 8: gptq weights of 4 bits are known"]),
            ("xlm_roberta", {"pad_token_id": 400}, ["320 positions"])):
        with Copy(name) as case:
            case.config.update(changes)
            case.refused(*words)
    with Copy("llama") as case:
        case.save()
        os.remove(case.file("config.json"))
        done = tool("eval", "--golden", case.path)
        equal(done.returncode, 1)
        check("config.json is missing" in done.stderr, done.stderr)


def test_inspect():
    done = tool("inspect", os.path.join(DATA, "glm4-mixed"))
    equal(done.returncode, 0, done.stdout + done.stderr)
    for word in ("architecture  glm4: 2 layers of width 64, vocabulary 96, context 512", "weights in    BF16", "weights in    I4",
                 "KV group      2 layers, 2 KV heads of 16 dimensions", "KV cache      512 bytes per token on the CPU, 256 in 16 bits",
                 "loads         yes"):
        check(word in done.stdout, word, done.stdout)
    equal(tool("inspect", os.path.join(DATA, "bert")).returncode, 0)
    done = tool("inspect", "--tensors", harness.TINY_MODEL)
    equal(done.returncode, 0, done.stdout)
    check("tensor        token_embd.weight" in done.stdout, done.stdout)
    with Copy("llama") as case:  # everything that is wrong is told, not the first only
        del case.tensors["model.layers.1.mlp.up_proj.weight"]
        case.tensors["model.layers.0.mlp.stray.weight"] = ("F32", [1], b"\0" * 4)
        dtype, shape, data = case.tensors["model.norm.weight"]
        case.tensors["model.norm.weight"] = (dtype, [24], data[:48])
        case.save()
        done = tool("inspect", case.path)
        equal(done.returncode, 1)
        problems = re.findall(r"^problem +(.*)$", done.stdout, re.M)
        check(any("up_proj.weight is missing" in p for p in problems), problems)
        check(any("stray" in p for p in problems), problems)
        check(any("model.norm.weight" in p and "[24], [48] is needed" in p for p in problems), problems)
        check("loads         no" in done.stdout, done.stdout)


def test_plan():
    path = os.path.join(DATA, "qwen3")
    done = tool("plan", path, "--memory", "64M", "--max-running", "4", "--step-tokens", "32")
    equal(done.returncode, 0, done.stdout + done.stderr)
    check("memory        64.00 MiB" in done.stdout, done.stdout)
    tokens = int(re.search(r"KV cache .*: (\d+) tokens of 768 bytes", done.stdout).group(1))
    check(10000 < tokens < 64 * 2 ** 20 // 768, tokens)
    check("context       512 tokens at most, the model's is 512" in done.stdout, done.stdout)
    head = re.search(r"^head          (\S+) in the file, (.*)$", done.stdout, re.M)
    equal(head and head.group(1), "BF16", done.stdout)
    tied = tool("plan", os.path.join(DATA, "llama-tied"), "--memory", "64M")
    check(": the embedding is used for it" in tied.stdout and ": the embedding" not in done.stdout, tied.stdout + done.stdout)
    equal(tool("plan", path, "--memory", "64M", "--kernels", "own").returncode, 1)
    equal(tool("plan", path, "--memory", "1M").returncode, 1)
    check("does not fit" in tool("plan", path, "--memory", "1M").stdout)
    done = tool("plan", path, "--memory", "64M", "--context", "1024")
    equal(done.returncode, 1)
    check("--context 1024: the model was trained for 512 tokens" in done.stderr, done.stderr)
    done = tool("plan", path, "--memory", "64M", "--backend", "cuda", "--backend-dir", "/nonexistent")
    equal(done.returncode, 0, done.stderr)
    check("estimate" in done.stdout and "of 384 bytes" in done.stdout, done.stdout)
    check("arithmetic    bfloat16, because no config.json says float16" in done.stdout, done.stdout)
    done = tool("plan", os.path.join(DATA, "llama-yarn"), "--memory", "64M", "--backend", "cuda", "--backend-dir", "/nonexistent")
    check("arithmetic    float16, because config.json says float16" in done.stdout, done.stdout + done.stderr)
    for wrong in ("0", "12X", "", "-1G"):
        equal(tool("plan", path, "--memory", wrong).returncode, 2, wrong)


# ---- NaN and infinity ---------------------------------------------------------------------------------------------

def spoil(case, tensor, at, data):
    dtype, shape, old = case.tensors[tensor]
    case.tensors[tensor] = (dtype, shape, old[:at] + data + old[at + len(data):])


def test_check_weights():
    for name in CASES:
        equal(tool("inspect", "--check-weights", os.path.join(DATA, name)).returncode, 0, name)
    equal(tool("eval", "--check-weights", "--golden", os.path.join(DATA, "glm4-mixed")).returncode, 0)
    nan, infinity = struct.pack("<f", float("nan")), struct.pack("<e", float("-inf"))
    with Copy("llama") as case:
        width = {"F32": 4, "F16": 2, "BF16": 2}
        up, norm = "model.layers.1.mlp.up_proj.weight", "model.norm.weight"
        for tensor, value in ((up, 3 * 48 + 17), (norm, 7)):
            size = width[case.tensors[tensor][0]]
            spoil(case, tensor, value * size, {4: nan, 2: b"\xff\x7f"}[size])
        done = case.eval("--check-weights")
        equal(done.returncode, 1)
        check(f"tensor {norm}: NaN as the value at row 0, column 7 (1 of 48 values are NaN or infinite)" in done.stderr, done.stderr)
        equal(case.eval("--check-weights", "--ranks", "2").returncode, 1)
        done = tool("inspect", "--check-weights", case.path)
        equal(done.returncode, 1)
        problems = re.findall(r"^problem +tensor (.*?): NaN as the value at row (\d+), column (\d+)", done.stdout, re.M)
        equal(sorted(problems), sorted([(norm, "0", "7"), (up, "3", "17")]))
        check("loads         no" in done.stdout, done.stdout)
        equal(tool("inspect", case.path).returncode, 0, "values are looked at on demand only")
    with Copy("llama-gptq") as case:  # a scale: [groups, outputs]
        scales = "model.layers.0.mlp.down_proj.scales"
        dtype, shape, _ = case.tensors[scales]
        equal(dtype, "F16")
        spoil(case, scales, 2 * (shape[1] + 5), infinity)
        case.save()
        done = tool("inspect", "--check-weights", case.path)
        equal(done.returncode, 1)
        group = case.config["quantization_config"]["group_size"]
        found = re.search(r"^problem +tensor model.layers.0.mlp.down_proj.qweight: infinity as the scale at row 5, column (\d+) "
                          rf"\({group} of ", done.stdout, re.M)
        check(found, done.stdout)
    with Copy("qwen3-fp8") as case:  # 0x7f is a NaN of e4m3
        tensor = next(n for n, t in case.tensors.items() if t[0] == "F8_E4M3" and "k_proj" in n)
        spoil(case, tensor, case.tensors[tensor][1][1] * 4 + 9, b"\x7f")
        case.save()
        done = tool("inspect", "--check-weights", case.path)
        equal(done.returncode, 1)
        check(f"tensor {tensor}: NaN as the value at row 4, column 9 (1 of " in done.stdout, done.stdout)


def daemon(*arguments):
    """penstockd, which is expected not to start."""
    with tempfile.TemporaryDirectory() as directory:
        conf = os.path.join(directory, "penstock.conf")
        with open(conf, "w") as f:
            f.write(f"[service]\nrun_dir = {directory}\ninstance = check{os.getpid()}\n[batcher]\nthreads = 1\n")
        return subprocess.run([harness.program("penstockd"), "--config", conf, *arguments], capture_output=True, text=True,
                              timeout=harness.DEADLINE)


def test_check_weights_of_the_daemon():
    with tempfile.NamedTemporaryFile(suffix=".gguf") as broken:
        with open(harness.TINY_MODEL, "rb") as f:
            broken.write(f.read()[:-300] + b"\xff" * 300)  # longer than any block: NaN in the last tensor, whatever its format
        broken.flush()
        done = tool("inspect", "--check-weights", broken.name)
        equal(done.returncode, 1)
        tensor = re.search(r"^problem +tensor (\S+): NaN as the ", done.stdout, re.M).group(1)
        for arguments in (["--check-weights"], ["--set", "model.check_weights=on"]):
            done = daemon("--set", f"model.path={broken.name}", *arguments)
            equal(done.returncode, 1, done.stderr)
            check(f"tensor {tensor}: NaN as the " in done.stderr, done.stderr)


def test_round_inputs_of_the_daemon():
    """Inputs are rounded as the checkpoint asks only where that is wanted; what cannot be done is refused then, by name."""
    with Copy("qwen2-int8") as case:
        group = next(iter(case.config["quantization_config"]["config_groups"].values()))
        group["input_activations"].update(num_bits=4)
        case.save()
        with open(os.path.join(harness.SOURCE, "tests", "data", "tokenizers", "byte_level.json"), encoding="ascii") as f:
            tokenizer = json.load(f)["tokenizer"]
        with open(os.path.join(case.path, "tokenizer.json"), "w") as f:
            json.dump(tokenizer, f)
        for value, words in (("off", "rows for them"), ("on", "activations can be rounded to symmetric float8 or int8")):
            done = daemon("--set", f"model.path={case.path}", "--set", f"model.round_inputs={value}")
            equal(done.returncode, 1, done.stderr)
            check(words in done.stderr, done.stderr)


def test_kv_dtype_of_the_daemon():
    """Keys and values of one byte: less memory; answers are the same with a prefix that is in the cache, with guesses, in copies."""
    prompt = "one two three one two three one two three. " * 4
    room = {}
    for kind in ("auto", "fp8", "int8"):
        found = []
        for speculation in ("off", "ngram"):
            conf = {"batcher.kv_dtype": kind, "batcher.speculation": speculation}
            with harness.Stack(conf=conf) as stack:
                for fields in ({}, {}, {"n": 2}):
                    reply = stack.chat(prompt, max_tokens=24, temperature=0, **fields)
                    equal(reply.status, 200, reply.body)
                    found += [choice["message"]["content"] for choice in reply.json()["choices"]]
                room[kind] = re.search(r"KV cache (\d+) MiB \(256 blocks", stack.daemon.log_text()).group(1)
        equal(len(set(found)), 1, kind)
    equal(room, {"auto": "8", "fp8": "2", "int8": "2"})  # 512 and 160 bytes a token
    with Copy("../moe/deepseek_v3") as case:
        with open(os.path.join(harness.SOURCE, "tests", "data", "tokenizers", "byte_level.json"), encoding="ascii") as f:
            tokenizer = json.load(f)["tokenizer"]
        with open(os.path.join(case.path, "tokenizer.json"), "w") as f:
            json.dump(tokenizer, f)
        done = daemon("--set", f"model.path={case.path}", "--set", "batcher.kv_dtype=fp8")
        equal(done.returncode, 1, done.stderr)
        check("kv_dtype = fp8: the cache of deepseek_v3 holds latents, which stay in float" in done.stderr, done.stderr)
    done = daemon("--set", f"model.path={harness.TINY_MODEL}", "--set", "batcher.kv_dtype=int4")
    check(done.returncode and "int4" in done.stderr and "auto|fp8|int8" in done.stderr.replace(", ", "|").replace(" or ", "|"), done.stderr)


def test_context_beyond_the_models():
    done = daemon("--set", f"model.path={harness.TINY_MODEL}", "--set", "model.max_context=2049")
    equal(done.returncode, 1, done.stderr)
    check("max_context = 2049: the model was trained for 2048 tokens" in done.stderr, done.stderr)
    for prompt, words in ((2000, "prompt of 2000 tokens + max_tokens = 49 is 2049, but prompt and answer together may have 2048"),
                          (2048, "the prompt has 2048 tokens, but prompt and answer together may have 2048")):
        done = tool("generate", "--model", harness.TINY_MODEL, "--ids", ",".join(["5"] * prompt), "--max-tokens", "49")
        equal(done.returncode, 1, done.stderr)
        check(words in done.stderr, done.stderr)


def test_logits_not_finite():
    """A row of logits with a NaN ends its request with 500, which names the step, and is counted; the server goes on."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as broken:
        with open(harness.TINY_MODEL, "rb") as f:
            broken.write(f.read()[:-300] + b"\xff" * 300)  # longer than any block: NaN in the last tensor, whatever its format
        broken.flush()
        with harness.Stack(model=broken.name) as stack:
            for number in (1, 2):
                reply = stack.chat("hello", max_tokens=5, temperature=0)
                equal(reply.status, 500, reply.body)
                check(re.search(rb"the logits of step \d+ were not finite", reply.body), reply.body)
                equal(stack.metrics()["penstock_logits_not_finite_total"], number)
            equal(stack.fcgi("GET", "/readyz").status, 200)
            check("are not finite" in stack.daemon.log_text(), stack.daemon.log_text())


def test_dummy_weights():
    """load_format = dummy: config.json and a tokenizer are enough; the ready line says what the start took."""
    with tempfile.TemporaryDirectory() as directory:
        with open(os.path.join(DATA, "llama", "config.json")) as f:
            config = json.load(f)
        with open(os.path.join(directory, "config.json"), "w") as f:
            json.dump(dict(config, vocab_size=2000), f)
        done = daemon("--set", f"model.path={directory}", "--set", "model.load_format=dummy")
        equal(done.returncode, 1, done.stderr)
        check("tokenizer" in done.stderr, done.stderr)
        with open(os.path.join(harness.SOURCE, "tests", "data", "tokenizers", "byte_level.json"), encoding="ascii") as f:
            tokenizer = json.load(f)["tokenizer"]
        with open(os.path.join(directory, "tokenizer.json"), "w") as f:
            json.dump(tokenizer, f)
        with open(os.path.join(directory, "tokenizer_config.json"), "w") as f:
            json.dump({"chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}"}, f)
        done = daemon("--set", f"model.path={directory}")
        equal(done.returncode, 1, "without the option weights are wanted")
        with harness.Stack(model=directory, conf={"model.load_format": "dummy"}) as stack:
            reply = stack.chat("hello", max_tokens=5, temperature=0)
            equal(reply.status, 200, reply.body)
            check(0 < reply.json()["usage"]["completion_tokens"] <= 5, reply.body)
            check(re.search(r"ready: .*; seconds for files and vocabulary \d+\.\d\d, backend .*, weights .*, plan and rehearsal ",
                            stack.daemon.log_text()), stack.daemon.log_text())


if __name__ == "__main__":
    harness.main(globals())
