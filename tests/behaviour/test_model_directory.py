"""A model directory of the hub, served: tests/data/dense/qwen3 (96 rows) with a small tokenizer.json and a
tokenizer_config.json that has the chat template and one more added token, through nginx, fronts and penstockd."""
import json
import os
import shutil
import subprocess
import tempfile

import harness
from harness import check, equal

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?<|>_\n\u2581\u00e9"
TEMPLATE = ("{% for message in messages %}<|user|>{{ message.content }}</s>{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}")


def added(index, content, **flags):
    return dict({"id": index, "content": content, "special": True, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False}, **flags)


def fill(directory, more=()):
    """MORE: further added tokens, ids from 91 on."""
    source = os.path.join(harness.SOURCE, "tests", "data", "dense", "qwen3")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(os.path.join(source, name), directory)
    names = ["<unk>", "</s>", "<|user|>"] + list(LETTERS)
    names += ["he", "hel", "lo", "hello", "\u2581hello", "th", "the", "\u2581the", "in", "er"]
    names += ["<0x%02X>" % byte for byte in (0xe6, 0xb0, 0xb4)]
    merges = [["h", "e"], ["he", "l"], ["l", "o"], ["hel", "lo"], ["\u2581", "hello"], ["t", "h"], ["th", "e"], ["\u2581", "the"], ["i", "n"], ["e", "r"]]
    body = {"added_tokens": [added(0, "<unk>"), added(1, "</s>"), added(2, "<|user|>")], "normalizer": {"type": "Lowercase"},
            "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never", "split": True},
            "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]},
            "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": {name: at for at, name in enumerate(names)}, "merges": merges}}
    with open(os.path.join(directory, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(body, f)
    config = {"chat_template": TEMPLATE, "eos_token": "</s>", "added_tokens_decoder": {
        str(token["id"]): {key: value for key, value in token.items() if key != "id"} for token in [added(90, "<|assistant|>")] + list(more)}}
    with open(os.path.join(directory, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    return directory


def ids(directory, text):
    done = subprocess.run([harness.program("penstock"), "tokenize", "--tokenizer", directory], input=json.dumps({"text": text}) + "\n",
                          capture_output=True, text=True, timeout=harness.DEADLINE)
    equal(done.returncode, 0, done.stderr)
    return json.loads(done.stdout)["ids"]


def test_serving():
    with tempfile.TemporaryDirectory() as directory:
        fill(directory)
        equal(ids(directory, "<|user|>Hello the\u6c34</s><|assistant|>")[0], 2)
        equal(ids(directory, "<|user|>Hello the\u6c34</s><|assistant|>")[-1], 90, "a token of tokenizer_config.json")
        with harness.Stack(model=directory, nginx=True) as stack:
            for content in ("Hello the\u6c34", "in\u00e9r!", "a <|user|> b </s>"):
                prompt = f"<|user|>{content}</s><|assistant|>"
                body = {"model": os.path.basename(directory), "messages": [{"role": "user", "content": content}], "max_tokens": 12, "temperature": 0}
                replies = [stack.nginx.https("POST", "/v1/chat/completions", json.dumps(dict(body, stream=stream)), {
                    "Authorization": "Bearer " + stack.key, "Content-Type": "application/json"}) for stream in (False, True)]
                equal([reply.status for reply in replies], [200, 200], replies[0].body)
                whole = replies[0].json()
                plain = ids(directory, prompt)
                if "</s>" in content: # what a message spells is text: more tokens, and no control token among them
                    check(whole["usage"]["prompt_tokens"] > len(plain), whole["usage"], plain)
                else:
                    equal(whole["usage"]["prompt_tokens"], len(plain), content)
                events = [json.loads(event) for event in replies[1].events() if event != "[DONE]"]
                joined = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
                equal(joined, whole["choices"][0]["message"]["content"] or "", "the deltas and the whole")
                check("<|" not in joined and "</s>" not in joined, joined)


def test_special_tokens_in_content():
    """What messages spell is a control token where option and field say so; a 400 where only the field does."""
    content = "a <|user|> b </s>"
    with tempfile.TemporaryDirectory() as directory:
        fill(directory)
        body = {"model": os.path.basename(directory), "messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0}
        plain = len(ids(directory, f"<|user|>{content}</s><|assistant|>"))
        for option in ("off", "on"):
            with harness.Stack(model=directory, conf={"front.allow_special_in_content": option}) as stack:
                data, special = [stack.fcgi("POST", "/v1/chat/completions", {"Authorization": "Bearer " + stack.key, "Content-Type": "application/json"},
                                            json.dumps(dict(body, allow_special_in_content=allow))) for allow in (False, True)]
            equal(data.status, 200, data.body)
            check(data.json()["usage"]["prompt_tokens"] > plain, data.body, plain)
            if option == "on":
                equal(special.status, 200, special.body)
                equal(special.json()["usage"]["prompt_tokens"], plain)
            else:
                equal(special.status, 400, special.body)
                equal(special.json()["error"]["param"], "allow_special_in_content")
                check("front.allow_special_in_content" in special.json()["error"]["message"], special.body)


def test_more_ids_than_rows():
    with tempfile.TemporaryDirectory() as directory:
        fill(directory, [added(96, "<|extra|>")])
        conf = os.path.join(directory, "penstock.conf")
        with open(conf, "w") as f:
            f.write(f"[service]\nrun_dir = {directory}\n[model]\npath = {directory}\n[batcher]\nkv_tokens = 4096\n")
        done = subprocess.run([harness.program("penstockd"), "--config", conf], capture_output=True, text=True, timeout=harness.DEADLINE)
        equal(done.returncode, 1, done.stderr)
        check("97 ids" in done.stderr and "96 rows" in done.stderr, done.stderr)


def run(command, path, lines):
    done = subprocess.run([harness.program("penstock"), command, "--tokenizer", path], input="".join(json.dumps(line) + "\n" for line in lines),
                          capture_output=True, text=True, timeout=harness.DEADLINE)
    equal(done.returncode, 0, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_special_tokens_as_transformers_merges_them():
    """added_tokens_decoder, special_tokens_map.json, added_tokens.json and named tokens; tests/data/make_directories.py made the answers."""
    with open(os.path.join(harness.SOURCE, "tests", "data", "directories.json"), encoding="utf-8") as f:
        data = json.load(f)
    check(len(data["cases"]) > 60, "the cases")
    for case in data["cases"]:
        with tempfile.TemporaryDirectory() as directory:
            for name, body in case["files"].items():
                with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
                    json.dump(body, f)
            told = {name: body for name, body in case["files"].items() if name != "tokenizer.json"}
            own = case["files"]["tokenizer.json"]["added_tokens"]
            answers = run("tokenize", directory, [{"text": text, "add_special": add} for text in data["texts"] for add in (False, True)])
            equal([answer["ids"] for answer in answers], [ids for pair in case["ids"] for ids in pair], (told, own))
            lines = [{"ids": pair[1], "skip_special": skip} for pair in case["ids"] for skip in (False, True)]
            equal([answer["text"] for answer in run("detokenize", directory, lines)], [text for pair in case["texts"] for text in pair], (told, own))


def test_named_token_without_a_row():
    """A named token that no file gives an id is added, unless the model has no row for it."""
    with tempfile.TemporaryDirectory() as directory:
        fill(directory)
        with open(os.path.join(directory, "special_tokens_map.json"), "w", encoding="utf-8") as f:
            json.dump({"pad_token": "<|pad|>"}, f)
        path = os.path.join(directory, "tokenizer_config.json")
        with open(path, encoding="utf-8") as f:
            config = json.load(f)
        del config["added_tokens_decoder"]
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)
        with open(os.path.join(directory, "tokenizer.json"), encoding="utf-8") as f:
            size = len(json.load(f)["model"]["vocab"])
        equal(ids(directory, "<|pad|>"), [size])
        path = os.path.join(directory, "config.json")
        with open(path, encoding="utf-8") as f:
            config = json.load(f)
        config["vocab_size"] = size
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)
        check(len(ids(directory, "<|pad|>")) > 1, "there is no row for it")


def test_special_token_of_the_alphabet():
    """A letter that is named as a special token stays text: found everywhere, shown everywhere."""
    with tempfile.TemporaryDirectory() as directory:
        fill(directory)
        plain = ids(directory, "he!l!lo!")
        with open(os.path.join(directory, "special_tokens_map.json"), "w", encoding="utf-8") as f:
            json.dump({"pad_token": "!"}, f)
        path = os.path.join(directory, "tokenizer_config.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"chat_template": TEMPLATE, "eos_token": "</s>"}, f)
        equal(ids(directory, "he!l!lo!"), plain)
        equal(run("detokenize", directory, [{"ids": plain, "skip_special": True}])[0]["text"], "he!l!lo!")
        with harness.Stack(model=directory) as stack:
            reply = stack.fcgi("POST", "/v1/chat/completions", {"Authorization": "Bearer " + stack.key, "Content-Type": "application/json"}, json.dumps(
                {"model": os.path.basename(directory), "messages": [{"role": "user", "content": "he!l!lo!"}], "max_tokens": 1, "temperature": 0}))
        equal(reply.status, 200, reply.body)
        equal(reply.json()["usage"]["prompt_tokens"], len(ids(directory, "<|user|>he!l!lo!</s><|assistant|>")))


def test_contradictions_of_added_tokens_json():
    for added_tokens, words in (({"<|other|>": 5}, "added_tokens.json says that \"<|other|>\" has id 5, which belongs to another token"),
                                ({"<|user|>": 95}, "in the vocabulary it has another"), ({"<|far|>": 1 << 40}, "is not one in 0"),
                                ({"<|word|>": "7"}, "is not one in 0"), ([1], "added_tokens.json")):
        with tempfile.TemporaryDirectory() as directory:
            fill(directory)
            path = os.path.join(directory, "tokenizer_config.json")
            with open(path, "w", encoding="utf-8") as f:
                json.dump({"eos_token": "</s>"}, f)
            with open(os.path.join(directory, "added_tokens.json"), "w", encoding="utf-8") as f:
                json.dump(added_tokens, f)
            done = subprocess.run([harness.program("penstock"), "tokenize", "--tokenizer", directory], input="", capture_output=True, text=True,
                                  timeout=harness.DEADLINE)
            equal(done.returncode, 1, done.stderr)
            check(words in done.stderr, words, done.stderr)


def test_contradictions():
    """tokenizer_config.json against tokenizer.json."""
    for more, words in (([added(2, "<|other|>")], "belongs to another token"), ([added(95, "<|user|>")], "in the vocabulary it has another"),
                        ([added(1 << 40, "<|far|>")], "is not an id with its content")):
        with tempfile.TemporaryDirectory() as directory:
            fill(directory, more)
            done = subprocess.run([harness.program("penstock"), "tokenize", "--tokenizer", directory], input="", capture_output=True, text=True,
                                  timeout=harness.DEADLINE)
            equal(done.returncode, 1, done.stderr)
            check(words in done.stderr, words, done.stderr)


if __name__ == "__main__":
    harness.main(globals())
