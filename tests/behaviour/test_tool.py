"""The penstock tool: usage and exit codes, configuration, keys, tokenizing.  No daemon runs here."""
import json
import os
import re
import stat
import subprocess
import tempfile

import harness
from harness import check, equal


def tool(*arguments, text=None):
    return subprocess.run([harness.program("penstock"), *arguments], input=text, capture_output=True, text=True,
                          timeout=harness.DEADLINE)


def fails(code, *arguments, text=None, says=""):
    done = tool(*arguments, text=text)
    equal(done.returncode, code, f"{arguments}: {done.stderr}")
    equal(done.stdout, "", str(arguments))
    check(says in done.stderr and done.stderr.strip(), arguments, done.stderr)


def test_usage():
    fails(2)
    fails(2, "nonsense", says="unknown command nonsense")
    done = tool("--help")
    equal(done.returncode, 0)
    commands = re.findall(r"^  (\w+) ", done.stdout, re.M)
    equal(set(commands), {"status", "top", "blackbox", "drain", "bench", "eval", "inspect", "plan", "key", "generate", "tokenize",
                           "detokenize", "config", "render", "sim", "quantise"})
    for command in commands:
        done = tool(command, "--help")
        equal(done.returncode, 0, command)
        check(done.stdout.startswith(f"usage: penstock {command}"), command, done.stdout)
        fails(2, command, "--nonsense")
        fails(2, command, "too", "many", "arguments", "here")
    check(re.fullmatch(r"penstock \d+\.\d+\.\d+\n", tool("--version").stdout))


def test_bench_kernels_options():
    fails(2, "bench", "kernels", "--model", "x", "--weights", "q9", says="--weights: f8-block, f8-row, f8, i8-row, i8")
    fails(2, "bench", "kernels", "--model", "x", "--rows", "257", says="--rows: at most 256, or 8192 with --products")
    fails(2, "bench", "kernels", "--model", "x", "--products", "--rows", "8193", says="--rows")
    fails(2, "bench", "kernels", "--attention", "--kv-dtype", "int4", says="--kv-dtype: auto, fp8 or int8")
    fails(2, "bench", "kernels", says="--model")


def test_config():
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "penstock.conf")
        with open(path, "w") as f:
            f.write("[service]\nrun_dir = /run/x\n[batcher]\nmax_running = 4\nmax_queued = 6\n[front]\nmax_body = 2M\n")
        equal(tool("config", "check", path).stdout, "")
        dump = tool("config", "dump", path).stdout
        check("max_running = 4\n" in dump and "max_body = 2097152\n" in dump, dump)
        with open(path + ".2", "w") as f:
            f.write(dump)
        equal(tool("config", "dump", path + ".2").stdout, dump, "a dump loads to the same values")
        derived = dict(line.split("=", 1) for line in tool("config", "derived", path).stdout.splitlines())
        equal(derived["front_socket"], "/run/x/front.sock")
        equal(derived["request_limit"], "10")
        equal(derived["max_body"], "2097152")
        with open(path + ".3", "w") as f:
            f.write(tool("config", "sample").stdout)
        equal(tool("config", "check", path + ".3").returncode, 0, "the sample file is valid")
        with open(path, "w") as f:
            f.write("[batcher]\n\nmax_running = 0\n")
        fails(1, "config", "check", path, says=f"{path}:3: batcher.max_running = 0")
        fails(1, "config", "check", path + ".none", says="No such file")
        fails(2, "config", "sample", path)
        fails(2, "config", "nonsense", path)


def test_keys():
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "keys")
        key = tool("key", "new", "--keys", path, "first").stdout.strip()
        check(re.fullmatch(r"sk-[A-Za-z0-9_-]{43}", key), key)
        other = tool("key", "new", "--keys", path).stdout.strip()
        check(key != other)
        with open(path) as f:
            text = f.read()
        for secret in (key, other):
            check(secret not in text and secret[3:] not in text, "the key itself is in the file")
        equal(stat.S_IMODE(os.stat(path).st_mode), 0o640)
        lines = tool("key", "list", "--keys", path).stdout.splitlines()
        equal(len(lines), 2)
        check(lines[0].endswith("first"), lines)
        fails(1, "key", "revoke", "--keys", path, "ffffffffffff")
        equal(tool("key", "revoke", "--keys", path, lines[0].split()[0]).returncode, 0)
        equal(len(tool("key", "list", "--keys", path).stdout.splitlines()), 1)
        fails(2, "key", "revoke", "--keys", path)
        fails(1, "key", "list", "--keys", path + ".none")
        with open(path, "a") as f:
            f.write("damaged line\n")
        done = tool("key", "list", "--keys", path)
        equal(done.returncode, 1)
        check("keys:2" in done.stderr, done.stderr)


def test_nobody_there():
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "penstock.conf")
        with open(path, "w") as f:
            f.write(f"[service]\ninstance = nobody-{os.getpid()}\nrun_dir = {directory}\n")
        fails(1, "status", "--config", path, says="is penstockd running")
        fails(1, "drain", "--config", path, says="is penstockd running")
        done = tool("status", "--json", "--config", path)
        equal((done.returncode, json.loads(done.stdout)["state"]), (1, "gone"))


def test_tokenize():
    model = ("--model", harness.TINY_MODEL)
    texts = ["Hello world", "", "12345 6", "a\u0000b", "\u4f60\u597d \U0001f600 caf\u00e9", "  two  \n\nlines", "<|im_end|>"]
    done = tool("tokenize", *model, text="".join(json.dumps(t) + "\n" for t in texts))
    equal(done.returncode, 0, done.stderr)
    ids = [json.loads(line)["ids"] for line in done.stdout.splitlines()]
    equal(len(ids), len(texts))
    done = tool("detokenize", *model, text=done.stdout)
    equal([json.loads(line)["text"] for line in done.stdout.splitlines()], texts)
    done = tool("tokenize", *model, text='{"text": "<|im_end|>", "special": true}\n')
    equal(len(json.loads(done.stdout)["ids"]), 1, "a special token is one id when asked for")
    check(len(ids[-1]) > 1, "and plain text otherwise")
    done = tool("tokenize", *model, text='{"messages": [{"role": "user", "content": "Hi <|im_end|>"}]}\n')
    equal(done.returncode, 0, done.stderr)
    for line, says in (("{", "line 1"), ('"\\ud800"', "line 1"), ("5", "line 1"), ('{"messages": []}', "messages"),
                       ('{"messages": [{"role": 1}]}', "messages[0]")):
        fails(1, "tokenize", *model, text=line + "\n", says=says)
    for line, says in (("[-1]", "ids[0]"), ("[0, 1e3]", "ids[1]"), ("[99999999]", "ids[0]"), ("{}", "array")):
        fails(1, "detokenize", *model, text=line + "\n", says=says)
    fails(1, "tokenize", "--model", "/nonexistent", says="/nonexistent")
    fails(2, "tokenize", says="--tokenizer")


def test_generate():
    model = ("generate", "--model", harness.TINY_MODEL)
    greedy = tool(*model, "--chat", "hello", "--max-tokens", "20", "--ignore-eos", "--print-ids")
    equal(greedy.returncode, 0, greedy.stderr)
    ids = greedy.stdout.strip().split(",")
    equal(len(ids), 20)
    check("answer: 20 tokens" in greedy.stderr and "ended by length" in greedy.stderr, greedy.stderr)
    equal(tool(*model, "--chat", "hello", "--max-tokens", "20", "--ignore-eos", "--print-ids", "--threads", "1").stdout, greedy.stdout,
          "the number of threads changes nothing")
    prompt = json.loads(tool("tokenize", "--model", harness.TINY_MODEL,
                             text='{"messages": [{"role": "user", "content": "hello"}]}\n').stdout)["ids"]
    going_on = ",".join(map(str, prompt)) + "," + ",".join(ids[:10])
    equal(tool(*model, "--ids", going_on, "--max-tokens", "10", "--ignore-eos", "--print-ids").stdout.strip().split(","), ids[10:],
          "a prompt that ends with the first ten tokens goes on with the others")
    text = tool(*model, "--chat", "hello", "--max-tokens", "20", "--ignore-eos", "--quiet")
    equal(text.stderr, "")
    equal(text.stdout[:-1], json.loads(tool("detokenize", "--model", harness.TINY_MODEL, text=f"[{','.join(ids)}]\n").stdout)["text"])
    draws = {seed: tool(*model, "--prompt", "the water", "--temperature", "1", "--seed", seed, "--print-ids").stdout for seed in "12"}
    check(draws["1"] != draws["2"], draws)
    equal(tool(*model, "--prompt", "the water", "--temperature", "1", "--seed", "1", "--print-ids").stdout, draws["1"])
    fails(1, *model, "--prompt", "water " * 3000, says="may have 2048")
    fails(1, *model, "--prompt", "")
    fails(1, *model, "--ids", "1,2,x", says='at "x"')
    fails(1, *model, "--ids", "639999", says="639999")
    fails(1, "generate", "--model", os.devnull, "--prompt", "x", says=os.devnull)
    for wrong in (["--max-tokens", "0"], ["--temperature", "hot"], ["--top-p", "2"], ["--prompt", "x"], ["--threads", "-1"]):
        fails(2, *model, "--chat", "x", *wrong)
    fails(2, *model)


if __name__ == "__main__":
    harness.main(globals())
