"""`penstock quantise`: every format against rounding in plain Python, byte by byte; GGUF files as directories of the hub; what
is kept in float; what is refused, and that nothing is left behind then.  Standard library only."""
import errno
import json
import math
import os
import resource
import shutil
import signal
import struct
import subprocess
import tempfile

import harness
from harness import TINY_MODEL, check, equal
from test_checkpoint import DATA, read_safetensors, tool, write_safetensors


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bf16(x):
    """(bits, value)"""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16
    return bits, struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def half(x):
    data = struct.pack("<e", x)
    return struct.unpack("<H", data)[0], struct.unpack("<e", data)[0]


E4M3 = [(8 + (b & 7)) * 2.0 ** ((b >> 3) - 10) if b >> 3 else (b & 7) * 2.0 ** -9 for b in range(127)]


def e4m3(x):
    """The bits of the nearest one, ties to even bits, at most 448."""
    at = min(range(127), key=lambda b: (abs(E4M3[b] - abs(x)), b & 1))
    return at | (0x80 if math.copysign(1, x) < 0 else 0)


def values_of(tensor):
    dtype, shape, data = tensor
    if dtype == "F32":
        flat = struct.unpack(f"<{len(data) // 4}f", data)
    elif dtype == "BF16":
        flat = [struct.unpack("<f", struct.pack("<I", b << 16))[0] for b in struct.unpack(f"<{len(data) // 2}H", data)]
    else:
        flat = struct.unpack(f"<{len(data) // 2}e", data)
    width = shape[-1]
    return [list(flat[i:i + width]) for i in range(0, len(flat), width)]


def words(rows):
    return struct.pack(f"<{sum(map(len, rows))}I", *(w for row in rows for w in row))


def four_bits(rows, group, asymmetric, rounded):
    """q, scale bits and zero points, [rows][…] each."""
    q, scales, zeros = [], [], []
    for row in rows:
        for numbers in (q, scales, zeros):
            numbers.append([])
        for at in range(0, len(row), group):
            part = row[at:at + group]
            low, high = min(0, *part), max(0, *part)
            bits, scale = rounded(f32(f32(high - low) / 15) if asymmetric else f32(max(high, -low) / 7.5))
            bits, scale = (bits, scale) if scale else rounded(1.0)
            zero = min(15, max(0, round(f32(-low / scale)))) if asymmetric else 8
            scales[-1].append(bits)
            zeros[-1].append(zero)
            q[-1] += [min(15, max(0, round(f32(x / scale)) + zero)) for x in part]
    return q, scales, zeros


def transposed(rows):
    return [list(column) for column in zip(*rows)]


def packed(row, order=range(8)):
    """Eight to a word, the value at i in nibble order[i]."""
    row = row + [0] * (-len(row) % 8)
    return [sum(row[at + i] << 4 * order[i] for i in range(8)) for at in range(0, len(row), 8)]


AWQ = [0, 4, 1, 5, 2, 6, 3, 7]


def halves(rows):
    return struct.pack(f"<{sum(map(len, rows))}H", *(b for row in rows for b in row))


def expected(kind, rows, group=0, asymmetric=False):
    """{suffix: (dtype, shape, bytes)}"""
    n, k = len(rows), len(rows[0])
    if kind == "int4":
        q, scales, zeros = four_bits(rows, group, asymmetric, bf16)
        found = {".weight_packed": ("I32", [n, k // 8], words([packed(row) for row in q])),
                 ".weight_scale": ("BF16", [n, k // group], halves(scales)),
                 ".weight_shape": ("I64", [2], struct.pack("<2q", n, k))}
        if asymmetric:
            found[".weight_zero_point"] = ("I32", [-(-n // 8), k // group], words(transposed([packed(z) for z in transposed(zeros)])))
        return found
    if kind == "gptq":
        q, scales, zeros = four_bits(rows, group, False, half)
        return {".qweight": ("I32", [k // 8, n], words(transposed([packed(row) for row in q]))),
                ".scales": ("F16", [k // group, n], halves(transposed(scales))),
                ".g_idx": ("I32", [k], struct.pack(f"<{k}i", *(i // group for i in range(k)))),
                ".qzeros": ("I32", [k // group, n // 8], words([packed([z - 1 for z in row]) for row in transposed(zeros)]))}
    if kind == "awq":
        q, scales, zeros = four_bits(rows, group, True, half)
        return {".qweight": ("I32", [k, n // 8], words([packed(row, AWQ) for row in transposed(q)])),
                ".scales": ("F16", [k // group, n], halves(transposed(scales))),
                ".qzeros": ("I32", [k // group, n // 8], words([packed(row, AWQ) for row in transposed(zeros)]))}
    largest = [max(map(abs, row)) for row in rows]
    if kind == "int8":
        scales = [f32(x / 127) or 1.0 for x in largest]
        q = [struct.pack(f"<{k}b", *(min(127, max(-127, round(f32(x / s)))) for x in row)) for row, s in zip(rows, scales)]
        return {".weight": ("I8", [n, k], b"".join(q)), ".weight_scale": ("F32", [n, 1], struct.pack(f"<{n}f", *scales))}
    if kind == "fp8":
        scales = [f32(x / 448) or 1.0 for x in largest]
        q = [bytes(e4m3(f32(x / s)) for x in row) for row, s in zip(rows, scales)]
        return {".weight": ("F8_E4M3", [n, k], b"".join(q)), ".weight_scale": ("F32", [n, 1], struct.pack(f"<{n}f", *scales))}
    across = -(-k // 128)
    scales = [[f32(max(abs(x) for row in rows[i:i + 128] for x in row[j * 128:j * 128 + 128]) / 448) or 1.0 for j in range(across)]
              for i in range(0, n, 128)]
    q = [bytes(e4m3(f32(x / scales[i // 128][j // 128])) for j, x in enumerate(row)) for i, row in enumerate(rows)]
    return {".weight": ("F8_E4M3", [n, k], b"".join(q)),
            ".weight_scale_inv": ("F32", [len(scales), across], struct.pack(f"<{len(scales) * across}f", *sum(scales, [])))}


def quantise(source, out, *arguments):
    done = tool("quantise", "--quiet", *arguments, "--out", out, source)
    equal((done.returncode, done.stderr), (0, ""), done.stderr)
    return done.stdout


def config_of(directory):
    with open(os.path.join(directory, "config.json")) as f:
        return json.load(f)


def test_formats():
    with tempfile.TemporaryDirectory() as work:
        source = os.path.join(work, "f32")
        quantise(TINY_MODEL, source, "--format", "f32")
        floats = read_safetensors(os.path.join(source, "model.safetensors"))
        # numbers that are hard: a row of zeros, a zero block, one large value, tiny ones, only one sign
        name = "model.layers.0.mlp.down_proj.weight"
        rows = values_of(floats[name])
        rows[0] = [0.0] * len(rows[0])
        rows[1][:128] = [0.0] * 128
        rows[2][5] = 3e4
        rows[3] = [f32(x * 1e-30) for x in rows[3]]
        rows[4] = [abs(x) for x in rows[4]]
        rows[5] = [-abs(x) for x in rows[5]]
        floats[name] = ("F32", floats[name][1], b"".join(struct.pack(f"<{len(r)}f", *r) for r in rows))
        write_safetensors(os.path.join(source, "model.safetensors"), floats)
        layers = ["model.layers.0.mlp.down_proj", "model.layers.1.self_attn.k_proj", "model.layers.0.mlp.up_proj"]
        for arguments, method in ((("int4", "--group", "32"), "compressed-tensors"), (("int4", "--group", "64", "--asymmetric"),
                                  "compressed-tensors"), (("gptq", "--group", "64"), "gptq"), (("awq", "--group", "32"), "awq"),
                                  (("int8",), "compressed-tensors"), (("fp8",), "compressed-tensors"), (("fp8-block",), "fp8")):
            kind, group = arguments[0], int(arguments[2]) if len(arguments) > 1 else 0
            out = os.path.join(work, "-".join(arguments))
            equal(quantise(source, out, "--format", *arguments), f"{out}: llama, 14 of 21 tensors rounded to {kind}\n")
            got = read_safetensors(os.path.join(out, "model.safetensors"))
            for layer in layers:
                rows = values_of(floats[layer + ".weight"])
                for suffix, wanted in expected(kind, rows, group, "--asymmetric" in arguments).items():
                    equal(got[layer + suffix][:2], wanted[:2], layer + suffix)
                    check(got[layer + suffix][2] == wanted[2], arguments, layer + suffix)
            kept = {n: t for n, t in floats.items() if "proj" not in n}
            equal({n: t for n, t in got.items() if "proj" not in n}, kept, "what is kept has the same bytes")
            check(len(kept) == 7 and len(got) == 7 + 14 * len(expected(kind, [[1.0] * 128] * 128, group, "--asymmetric" in arguments)))
            config = config_of(out)
            equal(config["quantization_config"]["quant_method"], method)
            equal({k: v for k, v in config.items() if k != "quantization_config"}, config_of(source))
            # what is read back: within half a step of what went in
            back = os.path.join(work, "back")
            quantise(out, back, "--format", "f32")
            read = values_of(read_safetensors(os.path.join(back, "model.safetensors"))[name])
            for i, (row, wanted) in enumerate(zip(read, values_of(floats[name]))):
                if kind != "fp8-block":  # a scale of 128 rows, one of which has the large value
                    check_row(kind, group, i, row, wanted)
            check("quantization_config" not in config_of(back))
            equal(sorted(os.listdir(back)), ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
            shutil.rmtree(back)


def check_row(kind, group, i, got, wanted):
    width = group if group else len(wanted)
    for at in range(0, len(wanted), width):
        g, w = got[at:at + width], wanted[at:at + width]
        largest, spread = max(map(abs, w)), max(0, *w) - min(0, *w)
        if kind == "fp8":
            bounds = [max(abs(x) / 16, largest / 448 / 512) * 1.001 for x in w]
        else:
            step = largest / 127 if kind == "int8" else spread / 15 if kind == "awq" else 2 * largest / 15
            bounds = [step * (0.502 if kind == "int8" else 1.02)] * len(w)
        small = 1e-7 if kind in ("gptq", "awq") else 1e-37  # what a float16 scale cannot say
        for x, y, bound in zip(g, w, bounds):
            check(abs(x - y) <= bound + small, kind, i, at, x, y, bound)
        if largest == 0:
            check(not any(g), kind, i, at)


def test_gguf_to_hub():
    with tempfile.TemporaryDirectory() as work:
        out = os.path.join(work, "out")
        quantise(TINY_MODEL, out, "--format", "f32")
        config = config_of(out)
        equal((config["model_type"], config["hidden_size"], config["num_key_value_heads"], config["vocab_size"]), ("llama", 64, 2, 640))
        # the same logits, greedy tokens and ids
        dump = os.path.join(work, "golden.safetensors")
        equal(tool("eval", "--golden", work, "--model", TINY_MODEL, "--dump", dump).returncode, 0)
        done = tool("eval", "--golden", work, "--model", out)
        equal(done.returncode, 0, done.stdout + done.stderr)
        lines = "".join(json.dumps(t) + "\n" for t in ("Hello, world! It's 2026.\n\n\ttabs", "水从河里 größer <|im_end|>", "", " a  b")) + \
            json.dumps({"text": "<|im_start|>user\nx<|im_end|>"}) + "\n" + json.dumps({"messages": [{"role": "user", "content": "Hi"}]}) + "\n"
        ids = [subprocess.run([harness.program("penstock"), "tokenize", "--tokenizer", path], input=lines, capture_output=True, text=True,
                              timeout=harness.DEADLINE).stdout for path in (TINY_MODEL, out)]
        equal(ids[0], ids[1])
        check(ids[0].count("\n") == 6, ids)
        equal([os.stat(os.path.join(work, "out")).st_mode & 0o777, os.listdir(work).count("out")], [0o755, 1])


def packed_text(text):
    return struct.pack("<Q", len(text)) + text.encode()


def test_gguf_with_more_ends_keeps_them():
    with tempfile.TemporaryDirectory() as work:
        with open(TINY_MODEL, "rb") as f:
            data = f.read()
        for end, wanted in ((5, [2, 5]), (2, 2)):
            made, out = os.path.join(work, "made.gguf"), os.path.join(work, "out")
            changed = data
            for old, new in ((packed_text("tokenizer.ggml.padding_token_id") + struct.pack("<II", 4, 2),
                              packed_text("tokenizer.ggml.eot_token_id") + struct.pack("<II", 4, end)),
                             (packed_text("penstock tiny"), packed_text("penstock tiny    "))):  # the data stay where they are
                equal(changed.count(old), 1)
                changed = changed.replace(old, new)
            equal(len(changed), len(data))
            with open(made, "wb") as f:
                f.write(changed)
            quantise(made, out, "--format", "int8")
            equal(config_of(out)["eos_token_id"], wanted)
            shutil.rmtree(out)


def test_kept_layers():
    with tempfile.TemporaryDirectory() as work:
        out = os.path.join(work, "out")
        text = quantise(os.path.join(DATA, "qwen3"), out, "--format", "int8", "--keep", "layers.1.", "--keep", "o_proj")
        check("tensors rounded to int8" in text, text)
        got, source = (read_safetensors(os.path.join(d, "model.safetensors")) for d in (out, os.path.join(DATA, "qwen3")))
        for name, tensor in source.items():
            rounded = "layers.0." in name and name.endswith("proj.weight") and "o_proj" not in name
            equal(got[name][0] if rounded else got[name], "I8" if rounded else tensor, name)
        ignored = config_of(out)["quantization_config"]["ignore"]
        check({"model.layers.1.mlp.up_proj", "model.layers.0.self_attn.o_proj", "model.embed_tokens"} <= set(ignored), ignored)
        check("model.layers.0.mlp.up_proj" not in ignored, ignored)
        equal(tool("inspect", out).returncode, 0)
        for kind, key, wanted in (("fp8-block", "modules_to_not_convert", "model.layers.1.mlp.up_proj"), ("gptq", "dynamic",
                                  "-:model.layers.1.mlp.up_proj"), ("awq", "modules_to_not_convert", "model.layers.1.mlp.up_proj")):
            out = os.path.join(work, kind)
            quantise(TINY_MODEL, out, "--format", kind, "--keep", "layers.1.", *([] if kind == "fp8-block" else ["--group", "64"]))
            check(wanted in config_of(out)["quantization_config"][key], config_of(out))
        # other architectures, quantised ones among them; every result loads
        for name, arguments in (("qwen3-fp8", ["int8"]), ("llama-gptq", ["fp8"]), ("chatglm", ["fp8-block"]), ("glm4-mixed", ["int8"]),
                                ("bert", ["int8"]), ("qwen2", ["bf16"])):
            out = os.path.join(work, name)
            quantise(os.path.join(DATA, name), out, "--format", *arguments)
            done = tool("inspect", out)
            equal(done.returncode, 0, done.stdout)
        out = os.path.join(work, "experts")
        quantise(os.path.join(DATA, "..", "moe", "deepseek_v3"), out, "--format", "int8")
        equal(tool("inspect", out).returncode, 0)
        router = [n for n in read_safetensors(os.path.join(out, "model.safetensors")) if n.endswith("mlp.gate.weight")]
        check(router and "I8" not in {read_safetensors(os.path.join(out, "model.safetensors"))[n][0] for n in router}, router)


def test_matrix_of_one_row_keeps_its_shape():
    with tempfile.TemporaryDirectory() as work:
        source, out = os.path.join(DATA, "xlm_roberta"), os.path.join(work, "out")
        for kind in ("f32", "int8"):
            quantise(source, out, "--format", kind)
            name = "embeddings.token_type_embeddings.weight"
            equal(read_safetensors(os.path.join(out, "model.safetensors"))[name][1], [1, 48])
            equal(tool("inspect", out).returncode, 0)
            ignored = config_of(out).get("quantization_config", {}).get("ignore")
            check(kind == "f32" or "embeddings.token_type_embeddings" in ignored, ignored)
            shutil.rmtree(out)


def test_rank_files_are_copied():
    with tempfile.TemporaryDirectory() as work:
        source, out = os.path.join(work, "source"), os.path.join(work, "out")
        shutil.copytree(os.path.join(DATA, "qwen3"), source)
        for name in ("tiktoken.model", "qwen.tiktoken"):
            with open(os.path.join(source, name), "w") as f:
                f.write(name)
        quantise(source, out, "--format", "int8")
        for name in ("tiktoken.model", "qwen.tiktoken"):
            equal(open(os.path.join(out, name)).read(), name)


def test_neighbours_of_a_long_path_are_copied():
    with tempfile.TemporaryDirectory() as work:
        source, out = os.path.join(work, *["d" * 240] * 14), os.path.join(work, "out")
        shutil.copytree(os.path.join(DATA, "qwen3"), source)
        with open(os.path.join(source, "tokenizer.json"), "w") as f:
            f.write("{}")
        quantise(source, out, "--format", "int8")
        check(os.path.exists(os.path.join(out, "tokenizer.json")), os.listdir(out))


def test_config_says_the_floats_that_were_asked_for():
    with tempfile.TemporaryDirectory() as work:
        nested = os.path.join(work, "nested")
        shutil.copytree(os.path.join(DATA, "qwen3"), nested)
        config = config_of(nested)
        with open(os.path.join(nested, "config.json"), "w") as f:
            json.dump({**config, "dtype": "float32", "text_config": {**config, "dtype": "float32", "torch_dtype": "float32"}}, f)
        for i, (source, arguments, wanted) in enumerate(((TINY_MODEL, ["f16"], "float16"), (TINY_MODEL, ["f32"], "float32"),
                (TINY_MODEL, ["int8", "--float", "f16"], "float16"), (TINY_MODEL, ["int8"], "bfloat16"), (nested, ["f16"], None))):
            out = os.path.join(work, str(i))
            quantise(source, out, "--format", *arguments)
            config = config_of(out)
            if wanted:
                equal((config["torch_dtype"], "dtype" in config), (wanted, False), arguments)
            else:
                equal({config["dtype"], config["text_config"]["dtype"], config["text_config"]["torch_dtype"]}, {"float16"})


def open_for_writing(fifo):
    """None while nobody reads it."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        equal(error.errno, errno.ENXIO)


def test_stopped_run_leaves_nothing():
    with tempfile.TemporaryDirectory() as work:
        source, out = os.path.join(work, "source"), os.path.join(work, "out")
        shutil.copytree(os.path.join(DATA, "qwen3"), source)
        fifo = os.path.join(source, "merges.txt")  # while we do not write, the run waits; its directory is there
        os.mkfifo(fifo)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A shell may have started all of this with signals ignored, which the program would leave so.
            process = subprocess.Popen([harness.program("penstock"), "quantise", "--quiet", "--format", "int8", "--out", out, source],
                                       stderr=subprocess.PIPE, text=True, preexec_fn=lambda n=number: signal.signal(n, signal.SIG_DFL))
            writer = harness.wait_until(lambda: open_for_writing(fifo), "a process that reads")
            check(any(n.startswith("out.") for n in os.listdir(work)), os.listdir(work))
            process.send_signal(number)
            os.close(writer)
            process.communicate(timeout=harness.DEADLINE)
            equal(process.returncode, -number)
            equal(os.listdir(work), ["source"])


def test_head_of_the_draft_layer_is_kept():
    with tempfile.TemporaryDirectory() as work:
        source, out = os.path.join(work, "source"), os.path.join(work, "out")
        shutil.copytree(os.path.join(DATA, "..", "moe", "glm4_moe"), source)
        path, name = os.path.join(source, "model.safetensors"), "model.layers.3.shared_head.head.weight"
        tensors = read_safetensors(path)
        write_safetensors(path, {**tensors, name: tensors["lm_head.weight"]})
        quantise(source, out, "--format", "int8")
        got = read_safetensors(os.path.join(out, "model.safetensors"))
        check(got[name] == tensors["lm_head.weight"], got[name][:2])
        equal(got["model.layers.3.eh_proj.weight"][0], "I8")
        equal(tool("inspect", out).returncode, 0)


def test_refusals():
    with tempfile.TemporaryDirectory() as work:
        out = os.path.join(work, "out")

        def refused(code, says, *arguments, source=TINY_MODEL, **more):
            done = subprocess.run([harness.program("penstock"), "quantise", "--out", out, *arguments, source], capture_output=True,
                                  text=True, timeout=harness.DEADLINE, **more)
            equal((done.returncode, done.stdout), (code, ""), done.stderr)
            check(says in done.stderr, done.stderr)
            equal([n for n in os.listdir(work) if n.startswith("out")], [], "nothing is left")
        refused(2, "--format int3: int4, gptq, awq, int8, fp8, fp8-block, f32, f16 or bf16 is needed", "--format", "int3")
        refused(2, "--format FORMAT is needed")
        refused(2, "--group 48: 32, 64 or 128", "--format", "int4", "--group", "48")
        refused(2, "--group is for", "--format", "int8", "--group", "32")
        refused(2, "--asymmetric is for int4", "--format", "gptq", "--asymmetric")
        refused(2, "--keep: an empty name", "--format", "int8", "--keep", "")
        refused(2, "--float int8: f32, f16 or bf16", "--format", "int8", "--float", "int8")
        refused(1, "model.layers.0.self_attn.q_proj.weight has 64 inputs, which groups of 128 do not divide", "--format", "int4")
        refused(1, "no such", "--format", "int8", source=os.path.join(work, "no such"))
        refused(1, "holds all experts of a layer", "--format", "int8", source=whole_experts())
        equal(tool("quantise", "--format", "int8", TINY_MODEL).returncode, 2)
        # a full disk, by the largest file that the process may write
        def small():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (200000, 200000))
        refused(1, "model.safetensors.new: cannot write: File too large", "--format", "int8", preexec_fn=small)
        # numbers that cannot be rounded
        source = os.path.join(work, "source")
        quantise(TINY_MODEL, source, "--format", "f32")
        path = os.path.join(source, "model.safetensors")
        tensors, name = read_safetensors(path), "model.layers.1.mlp.up_proj.weight"
        for value, kind, says in ((math.nan, "int8", "has a value in row 1 that is not finite"), (math.inf, "fp8-block", "not finite"),
                                  (1e5, "f16", "100000 is beyond float16"), (1e30, "gptq", "the scale of row 1 is beyond float16"),
                                  (3.4e38, "bf16", "3.4e+38 is beyond bfloat16")):
            dtype, shape, data = tensors[name]
            write_safetensors(path, {**tensors, name: (dtype, shape, data[:256] + struct.pack("<f", value) + data[260:])})
            refused(1, says, "--format", kind, *(["--group", "64"] if kind == "gptq" else []), source=source)
        # what is there stays as it is, a link to nothing too
        os.symlink("nothing", out)
        done = tool("quantise", "--format", "int8", "--out", out, TINY_MODEL)
        equal(done.returncode, 1)
        check(f"--out {out} exists: remove it" in done.stderr, done.stderr)
        os.unlink(out)
        os.mkdir(out)
        done = tool("quantise", "--format", "int8", "--out", out, TINY_MODEL)
        equal(done.returncode, 1)
        check(f"--out {out} exists: remove it" in done.stderr, done.stderr)
        equal(os.listdir(out), [])


def whole_experts():
    """A checkpoint with one tensor for all experts of a layer."""
    root = os.path.join(DATA, "..", "moe")
    for name in sorted(os.listdir(root)):
        path = os.path.join(root, name, "model.safetensors")
        if os.path.exists(path) and any(n.endswith("experts.gate_up_proj") for n in read_safetensors(path)):
            return os.path.join(root, name)
    raise AssertionError("none of them has one")


if __name__ == "__main__":
    harness.main(globals())
