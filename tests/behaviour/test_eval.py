"""`penstock eval --text`: perplexity, divergence and agreement against the same arithmetic in plain Python, from logits that
the tool dumps; both ways of cutting a text; interrupted runs; what is refused.  No daemon runs here; standard library only."""
import json
import math
import os
import signal
import struct
import subprocess
import tempfile

import harness
from harness import TINY_MODEL, check, equal
from test_checkpoint import DATA, read_safetensors, tool, write_safetensors

TEXT = os.path.join(harness.SOURCE, "tests", "data", "alice.txt")


class Work:
    """A directory with a short text and, on demand, quantised copies of the tiny model."""

    def __init__(self, characters=1200):
        self.directory = tempfile.TemporaryDirectory()
        self.text = self.file("text")
        with open(TEXT) as f, open(self.text, "w") as out:
            out.write(f.read(characters))

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.directory.cleanup()

    def file(self, name):
        return os.path.join(self.directory.name, name)

    def quantised(self, *arguments, model=TINY_MODEL):
        path = self.file("-".join(a.strip("-") for a in arguments))
        if not os.path.exists(path):
            done = tool("quantise", "--quiet", "--float", "f32", "--format", *arguments, "--out", path, model)
            equal(done.returncode, 0, done.stderr)
        return path

    def ids(self):
        done = subprocess.run([harness.program("penstock"), "tokenize", "--tokenizer", TINY_MODEL], capture_output=True,
                              text=True, input=json.dumps(open(self.text).read()) + "\n", timeout=harness.DEADLINE)
        return json.loads(done.stdout)["ids"]

    def eval(self, *arguments, model=TINY_MODEL):
        done = tool("eval", "--text", self.text, "--model", model, "--json", "--quiet", *arguments)
        equal(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def refused(self, says, *arguments, code=1, model=TINY_MODEL):
        done = tool("eval", "--text", self.text, "--model", model, *arguments)
        equal((done.returncode, done.stdout), (code, ""), done.stderr)
        check(says in done.stderr, done.stderr)


# ---- the same in Python -------------------------------------------------------------------------------------------

def cut(count, context, stride):
    """(begin, end, first token that counts) of each window."""
    if not stride:
        return [(b, b + context, b + context // 2 + 1) for b in range(0, count - context + 1, context)]
    windows, last = [], 0
    for begin in range(0, count, stride):
        end = min(begin + context, count)
        windows.append((begin, end, max(last, begin + 1)))
        last = end
        if end == count:
            return windows


def dump_logits(work, model, ids, windows):
    """Rows of logits before each token that counts, by the other way through the tool."""
    golden, dump, tensors, rows = work.file("golden"), work.file("dump"), {}, []
    os.makedirs(golden, exist_ok=True)
    for k, (begin, end, first) in enumerate(windows):
        at = range(first - 1 - begin, end - 1 - begin)
        tensors[f"ids.{k}"] = ("I32", [end - begin], struct.pack(f"<{end - begin}i", *ids[begin:end]))
        tensors[f"at.{k}"] = ("I32", [len(at)], struct.pack(f"<{len(at)}i", *at))
    write_safetensors(os.path.join(golden, "golden.safetensors"), tensors)
    done = tool("eval", "--golden", golden, "--model", model, "--dump", dump)
    equal(done.returncode, 0, done.stdout + done.stderr)
    dumped = read_safetensors(dump)
    for k in range(len(windows)):
        _, (count, vocab), data = dumped[f"logits.{k}"]
        values = struct.unpack(f"<{count * vocab}f", data)
        rows += [values[i * vocab:(i + 1) * vocab] for i in range(count)]
    return rows


def log_softmax(row):
    largest = max(row)
    total = math.log(math.fsum(math.exp(x - largest) for x in row))
    return [x - largest - total for x in row]


def mean(values):
    m = math.fsum(values) / len(values)
    return m, math.sqrt(math.fsum((v - m) ** 2 for v in values) / (len(values) - 1) / len(values))


def close(got, wanted, what):
    check(abs(got - wanted) <= 1e-9 * max(1, abs(wanted)), what, got, wanted)


def close_mean(got, wanted, what):
    close(got["mean"], wanted[0], what)
    # a variance of almost equal numbers is rounded at the size of their squares
    check(abs(got["error"] - wanted[1]) <= 1e-7 * max(1, abs(wanted[0])), what, got, wanted)


def exponential(m):
    return math.exp(m[0]), math.exp(m[0]) * m[1]


def test_python_reference():
    with Work() as work:
        ids, other = work.ids(), work.quantised("int4", "--group", "32")
        for context, stride in ((64, 0), (48, 16), (48, 48), (len(ids) + 7, 40)):
            windows = cut(len(ids), context, stride)[:3]
            targets = [t for begin, end, first in windows for t in ids[first:end]]
            base = [log_softmax(row) for row in dump_logits(work, TINY_MODEL, ids, windows)]
            rows = [log_softmax(row) for row in dump_logits(work, other, ids, windows)]
            nll, base_nll = ([-row[t] for row, t in zip(r, targets)] for r in (rows, base))
            kl = [math.fsum(math.exp(p) * (p - q) for p, q in zip(b, r)) for b, r in zip(base, rows)]
            agree = [float(b.index(max(b)) == r.index(max(r))) for b, r in zip(base, rows)]
            got = work.eval("--against", TINY_MODEL, "--context", str(context), "--windows", "3",
                            *(["--stride", str(stride)] if stride else []), model=other)
            equal((got["text_tokens"], got["windows"], got["tokens"]), (len(ids), len(windows), len(targets)))
            equal(got["all_windows"], len(cut(len(ids), context, stride)))
            against = got["against"]
            for name, value, wanted in (
                    ("nll", got["nll"], mean(nll)), ("perplexity", got["perplexity"], exponential(mean(nll))),
                    ("base", against["nll"], mean(base_nll)), ("kl", against["kl"], mean(kl)),
                    ("change", against["nll_change"], mean([a - b for a, b in zip(nll, base_nll)])),
                    ("same top", against["same_top"], mean(agree))):
                if name != "perplexity":
                    close_mean(value, wanted, name)
                else:
                    check(abs(value["mean"] / wanted[0] - 1) < 1e-9 and abs(value["error"] / wanted[1] - 1) < 1e-6, value, wanted)
            close(against["kl_largest"], max(kl), "largest")
            close(against["perplexity_ratio"]["mean"], math.exp(against["nll_change"]["mean"]), "ratio")


def test_same_model():
    with Work() as work:
        got = work.eval("--against", TINY_MODEL, "--context", "64")["against"]
        equal((got["kl"], got["kl_largest"], got["same_top"]["mean"], got["nll_change"]["mean"], got["perplexity_ratio"]["mean"]),
              ({"mean": 0, "error": 0}, 0, 1, 0, 1))
        text = tool("eval", "--text", work.text, "--model", TINY_MODEL, "--against", TINY_MODEL, "--context", "64")
        equal(text.returncode, 0)
        check("same top token      100.000 % ± 0.000" in text.stdout and "KL divergence       0.000000" in text.stdout, text.stdout)
        check("window " in text.stderr and " s left" in text.stderr, text.stderr)
        # ranks and threads change no number
        equal(work.eval("--against", TINY_MODEL, "--context", "64", "--threads", "1")["against"], got)


def test_frame():
    # what the tokenizer puts before a text stands at the beginning of every window, or once
    with Work() as work:
        model = work.quantised("f32")
        plain = work.eval("--context", "64", model=model)
        with open(os.path.join(model, "tokenizer.json")) as f:
            tokenizer = json.load(f)
        first = tokenizer["added_tokens"][0]
        tokenizer["post_processor"] = {
            "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {"x": {"id": "x", "ids": [first["id"]], "tokens": [first["content"]]}}}
        with open(os.path.join(model, "tokenizer.json"), "w") as f:
            json.dump(tokenizer, f)
        ids, context = [first["id"]] + work.ids(), 64
        framed = [first["id"]] + ids[1:context] + [first["id"]] + ids[context + 1:2 * context]
        windows = cut(2 * context, context, 0)
        rows = [log_softmax(row) for row in dump_logits(work, model, framed, windows)]
        targets = [t for begin, end, at in windows for t in framed[at:end]]
        got = work.eval("--context", str(context), "--windows", "2", model=model)
        close(got["nll"]["mean"], mean([-row[t] for row, t in zip(rows, targets)])[0], "framed")
        equal(got["text_tokens"], plain["text_tokens"] + 1)
        windows = cut(len(ids), 64, 32)[:2]
        rows = [log_softmax(row) for row in dump_logits(work, model, ids, windows)]
        targets = [t for begin, end, at in windows for t in ids[at:end]]
        close(work.eval("--context", "64", "--stride", "32", "--windows", "2", model=model)["nll"]["mean"],
              mean([-row[t] for row, t in zip(rows, targets)])[0], "framed once")


def test_state():
    with Work(4000) as work:
        other, state = work.quantised("int8"), work.file("state")
        common = ["--against", TINY_MODEL, "--context", "64"]
        whole = work.eval(*common, model=other)
        check(whole["windows"] >= 8, whole)
        work.eval(*common, "--windows", "3", "--state", state, model=other)
        # killed anywhere: what was kept is whole, and the end is the same to the last bit
        process = subprocess.Popen([harness.program("penstock"), "eval", "--text", work.text, "--model", other, *common, "--state",
                                    state], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        harness.wait_until(lambda: json.load(open(state))["windows"] > 3, "a window more")
        process.send_signal(signal.SIGKILL)
        process.wait()
        check(3 < json.load(open(state))["windows"] <= whole["windows"])
        equal(work.eval(*common, "--state", state, model=other), whole)
        equal(work.eval(*common, "--state", state, model=other), whole, "once more")
        # of another run
        work.refused("its number of windows is not this one's", *common, "--windows", "2", "--state", state, model=other)
        work.refused("is of another run: its model is not this one's", *common, "--state", state)
        work.refused("its against is not", "--context", "64", "--state", state, model=other)
        work.refused("its options is not this one's", "--against", TINY_MODEL, "--context", "64", "--stride", "32", "--state", state,
                     model=other)
        with open(work.text, "a") as f:
            f.write("more")
        work.refused("its text is not this one's; remove it, or name another file", *common, "--state", state, model=other)
        # a weight that changed, with the same names and sizes
        with open(work.text, "r+") as f:
            f.truncate(4000)
        path = os.path.join(other, "model.safetensors")
        tensors = read_safetensors(path)
        dtype, shape, data = tensors["model.norm.weight"]
        write_safetensors(path, {**tensors, "model.norm.weight": (dtype, shape, data[4:8] + data[:4] + data[8:])})
        work.refused("its model is not", *common, "--state", state, model=other)
        for content in ("", "{}", "[1]", '{"version": 1, "windows": -1, "count": 0, "agree": 0, "sums": {}}'):
            with open(state, "w") as f:
                f.write(content)
            work.refused("is no state file of penstock eval", *common, "--state", state, model=other)
        work.refused("cannot write", *common, "--state", work.file("no/such/state"), model=other)


def test_state_with_another_count_is_refused():
    with Work() as work:
        state = work.file("state")
        for common in (["--context", "64", "--windows", "3"], ["--context", "64", "--stride", "40", "--windows", "3"]):
            whole = work.eval(*common, "--state", state)
            with open(state) as f:
                kept = json.load(f)
            equal(kept["count"], whole["tokens"])
            for count in (0, kept["count"] - 1, kept["count"] + 1, 1 << 62):
                with open(state, "w") as f:
                    json.dump({**kept, "count": count}, f)
                work.refused("its number of tokens is not this one's", *common, "--state", state)
            os.unlink(state)


def test_perplexity_beyond_numbers():
    """A model that is sure of the wrong token: JSON has no infinity."""
    with Work() as work:
        model = work.quantised("f32")
        path = os.path.join(model, "model.safetensors")
        tensors = read_safetensors(path)
        dtype, shape, data = tensors["model.norm.weight"]
        norm = struct.unpack(f"<{len(data) // 4}f", data)
        write_safetensors(path, {**tensors, "model.norm.weight": (dtype, shape, struct.pack(f"<{len(norm)}f", *(1e4 * x for x in norm)))})
        got = work.eval("--context", "64", model=model)
        check(got["nll"]["mean"] > 1e3, got)
        equal(got["perplexity"], {"mean": None, "error": None})
        got = work.eval("--context", "64", "--against", model, model=model)["against"]
        equal((got["perplexity_ratio"], got["perplexity"]["mean"]), ({"mean": 1, "error": 0}, None))
        # one position: no error, and no NaN
        equal(work.eval("--context", "4", "--windows", "1", model=model)["perplexity"], {"mean": None, "error": 0})


def test_names_that_json_cannot_spell_are_refused_before_the_run():
    with Work() as work:
        odd = os.fsencode(work.file("odd")) + b"\xff"
        with open(odd, "w") as f:
            f.write("0123456789" * 30)
        for arguments, says in ((["--json"], "is not UTF-8, which JSON needs"), ([], "")):
            done = subprocess.run([harness.program("penstock"), "eval", "--text", odd, "--model", TINY_MODEL, "--context", "64",
                                   *arguments], capture_output=True, text=True, errors="replace", timeout=harness.DEADLINE)
            equal(done.returncode, 1 if says else 0, done.stderr)
            check(says in done.stderr and not (says and "window " in done.stderr), done.stderr)


def test_text_that_is_not_utf8_is_refused():
    with Work() as work:
        with open(work.text, "wb") as f:
            f.write(b"0123456789" * 30 + b"\xc3(" + b"abc" * 99)
        work.refused("is not UTF-8 from byte 300 on", "--context", "64")
        with open(work.text, "wb") as f:
            f.write(b"0\0" * 200)
        check(work.eval("--context", "64")["text_tokens"] >= 64, "NUL is a character")


def test_refusals():
    with Work() as work:
        other = work.quantised("f32")
        work.refused("--context 1048576: the context of", "--context", str(1 << 20), "--stride", "64")
        work.refused("are needed, one window (--context)", "--context", "2048")
        work.refused("--stride 65: at most --context, 64", "--context", "64", "--stride", "65", code=2)
        work.refused("--text and --golden: one of them is needed", "--golden", ".", code=2)
        for option in ("--against-dtype", "--against-backend", "--against-kernels", "--against-kv-dtype"):
            work.refused("-kv-dtype need --against PATH", option, "cpu", code=2)
        work.refused("--against-dtype int3: float32", "--against", other, "--against-dtype", "int3", code=2)
        work.refused("--dtype int3: float32", "--dtype", "int3", code=2)
        work.refused("--context", "--context", "3", code=2)
        for argument in ("--stride", "--windows"):
            work.refused(argument, argument, "0", code=2)
        done = tool("eval", "--golden", DATA, "--context", "64")
        equal(done.returncode, 2)
        check("an option of --text FILE without it" in done.stderr, done.stderr)
        equal(tool("eval", "--text", work.text).returncode, 2)
        equal(tool("eval", "--text", work.file("none"), "--model", TINY_MODEL).returncode, 1)
        work.refused("gives embeddings: it has no perplexity", "--tokenizer", TINY_MODEL, "--context", "64", model=os.path.join(DATA, "bert"))
        # a smaller vocabulary; a tokenizer that cuts words in another way
        work.refused("of them", "--against", os.path.join(DATA, "llama"), "--tokenizer", TINY_MODEL, "--context", "64")
        with open(os.path.join(other, "tokenizer.json")) as f:
            tokenizer = json.load(f)
        tokenizer["model"]["merges"] = tokenizer["model"]["merges"][1:]
        with open(os.path.join(other, "tokenizer.json"), "w") as f:
            json.dump(tokenizer, f)
        work.refused("have different tokenizers: the text becomes", "--against", other, "--context", "64")
        check(work.eval("--against", other, "--tokenizer", TINY_MODEL, "--context", "64")["against"]["kl"]["mean"] < 1e-9)
        # numbers that are none
        path = os.path.join(other, "model.safetensors")
        tensors = read_safetensors(path)
        dtype, shape, data = tensors["model.norm.weight"]
        write_safetensors(path, {**tensors, "model.norm.weight": (dtype, shape, struct.pack("<f", math.inf) + data[4:])})
        work.refused("window 0, position 32: the logits are not all finite", "--context", "64", model=other)


def test_formats():
    # what a format may cost, on a model of random numbers: more bits, less divergence
    with Work(4000) as work:
        kl = {}
        for name in ("f32", "bf16", "int8", "fp8", "fp8-block", "int4 --group 32", "int4 --group 64", "gptq --group 32",
                     "awq --group 32"):
            got = work.eval("--against", TINY_MODEL, "--context", "256", model=work.quantised(*name.split()))["against"]
            kl[name] = got["kl"]["mean"]
            check(got["kl"]["error"] < got["kl"]["mean"] / 5 or name == "f32", name, got)
        check(kl["f32"] < 1e-9 < kl["bf16"] < kl["int8"] / 1.5, kl)
        check(kl["int8"] < kl["fp8"] / 5 and kl["fp8"] < kl["int4 --group 32"] / 3 and kl["int4 --group 32"] < 1.3 * kl["int4 --group 64"], kl)
        check(0.5 < kl["fp8"] / kl["fp8-block"] < 2 and 0.5 < kl["gptq --group 32"] / kl["int4 --group 32"] < 2, kl)
        check(kl["awq --group 32"] < kl["int4 --group 32"], kl)
        check(kl["int4 --group 64"] < 0.3, kl)


def test_kv_types():
    # keys and values of one byte: what that costs, who has them, and what they take
    with Work(4000) as work:
        found = {name: work.eval("--against", TINY_MODEL, "--context", "256", "--kv-dtype", name) for name in ("auto", "int8", "fp8")}
        kl = {name: got["against"]["kl"]["mean"] for name, got in found.items()}
        equal(kl["auto"], 0)
        check(0 < kl["int8"] < kl["fp8"] / 5 and kl["fp8"] < 0.02, kl)
        # the same of the other one is no divergence; threads and ranks change nothing
        equal(work.eval("--against", TINY_MODEL, "--context", "256", "--kv-dtype", "int8", "--against-kv-dtype", "int8")["against"]["kl"]["mean"], 0)
        whole = work.quantised("f32")
        common = ["--against", whole, "--context", "256", "--kv-dtype", "fp8"]
        own = work.eval(*common, model=whole)["against"]["kl"]["mean"]
        for more, bound in ((["--threads", "1"], 1e-15), (["--ranks", "2"], 0.2)): # sums over ranks are others, and so what is rounded
            got = work.eval(*common, *more, model=whole)["against"]["kl"]["mean"]
            check(abs(got / own - 1) < bound, more, got, own)
        work.refused("kv_dtype = int3: auto, fp8 or int8 is needed", "--kv-dtype", "int3", "--context", "64")
        work.refused("the cache of deepseek_v3 holds latents, which stay in float", "--kv-dtype", "int8", "--context", "64",
                     "--tokenizer", TINY_MODEL, model=os.path.join(DATA, "..", "moe", "deepseek_v3"))
    tokens = {}
    for name in ("auto", "int8", "fp8"):
        done = tool("plan", TINY_MODEL, "--memory", "64M", "--kv-dtype", name)
        equal(done.returncode, 0, done.stderr)
        tokens[name] = int(done.stdout.split(" tokens of ")[1].split(" bytes")[0])
    # of two layers, two heads of 16: keys and values of 4 bytes, or of 1 with a scale for each
    equal(tokens, {"auto": 2 * 2 * 2 * 16 * 4, "int8": 2 * 2 * 2 * (16 + 4), "fp8": 2 * 2 * 2 * (16 + 4)})
    done = tool("plan", os.path.join(DATA, "bert"), "--memory", "64M", "--kv-dtype", "int8")
    equal(done.returncode, 1)
    check("kv_dtype = int8: bert keeps none between texts" in done.stderr, done.stderr)
    done = tool("plan", TINY_MODEL, "--memory", "64M", "--kv-dtype", "int8", "--backend", "cuda", "--backend-dir", "/nowhere")
    equal(done.returncode, 0, done.stderr)
    check(f" tokens of {tokens['int8']} bytes (estimate)" in done.stdout, done.stdout)


def test_default_model():
    model = os.environ.get("PENSTOCK_TEST_MODEL")
    if not model:
        harness.skip("PENSTOCK_TEST_MODEL is not set")
    with Work(4000) as work:
        common = ["--against", model, "--context", "128", "--windows", "2"]
        found = {}
        for name in ("int8", "int4 --group 32"):
            found[name] = work.eval(*common, model=work.quantised(*name.split(), model=model))
        # what tests/reference/perplexity.py finds, by numpy
        for name, nll, kl, agree in (("int8", 3.237276, 0.0031397, 123), ("int4 --group 32", 3.592001, 0.375797, 79)):
            got = found[name]
            equal(got["tokens"], 126)
            check(abs(got["against"]["nll"]["mean"] - 3.236168) < 2e-5 and abs(got["nll"]["mean"] - nll) < 2e-5, name, got)
            check(abs(got["against"]["kl"]["mean"] / kl - 1) < 2e-3, name, got)
            check(abs(126 * got["against"]["same_top"]["mean"] - agree) < 1.5, name, got)


if __name__ == "__main__":
    harness.main(globals())
