"""penstock tokenize and detokenize on small tokenizers of every kind: tests/data/tokenizers, made with the reference
implementations by tests/data/make_tokenizers.py.  Where the `tokenizers` package is installed, texts made at random too."""
import base64
import json
import os
import random
import subprocess
import tempfile

import harness
from harness import check, equal, skip

DATA = os.path.join(harness.SOURCE, "tests", "data", "tokenizers")


def run(command, path, lines):
    done = subprocess.run([harness.program("penstock"), command, "--tokenizer", path], input="".join(json.dumps(line) + "\n" for line in lines),
                          capture_output=True, text=True, timeout=harness.DEADLINE)
    equal(done.returncode, 0, done.stderr)
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def each():
    for name in sorted(os.listdir(DATA)):
        with open(os.path.join(DATA, name), encoding="ascii") as f:
            body = json.load(f)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "tokenizer.json" if "tokenizer" in body else "tokenizer.model" if "model" in body else "x.gguf")
            with open(path, "wb") as f:
                f.write(json.dumps(body["tokenizer"]).encode() if "tokenizer" in body else base64.b64decode(body.get("model") or body["gguf"]))
            yield name.removesuffix(".json"), path, body


def test_reference_cases():
    seen = 0
    for name, path, body in each():
        for key, options in (("ids", {"add_special": False}), ("with_special", {"add_special": True})):
            cases = [case for case in body["cases"] if key in case]
            for case, answer in zip(cases, run("tokenize", path, [dict(options, text=case["text"]) for case in cases])):
                equal(answer["ids"], case[key], f"{name} {key} {case['text']!r}")
                seen += 1
        for key, skip_special in (("decoded", False), ("decoded_skip", True)):
            cases = [case for case in body["cases"] if key in case and "\ufffd" not in case[key] and "\u2047" not in case[key]]
            answers = run("detokenize", path, [{"ids": case["ids"], "skip_special": skip_special} for case in cases]) if cases else []
            for case, answer in zip(cases, answers):
                equal(answer["text"], case[key], f"{name} {key} {case['ids']}")
                seen += 1
    check(seen > 500, seen)


def test_directory():
    """A model directory's tokenizer; tokenizer.json is preferred."""
    for name, path, body in each():
        if "gguf" in body:
            continue
        case = body["cases"][0]
        equal(run("tokenize", os.path.dirname(path), [{"text": case["text"], "add_special": False}])[0]["ids"], case["ids"], name)


def test_random_texts():
    try:
        from tokenizers import Tokenizer
    except ImportError:
        skip("the tokenizers package is not installed")
    chance = random.Random(1)
    parts = [case["text"] for _, _, body in each() for case in body["cases"]]
    ranges = [(32, 127), (0xa0, 0x250), (0x300, 0x370), (0x400, 0x500), (0x4e00, 0x4f00), (0xac00, 0xad00), (0x1f600, 0x1f640)]
    texts = ["".join(chr(chance.randrange(*chance.choice(ranges))) if chance.random() < 0.3 else chance.choice(parts)[:chance.randrange(12)]
                     for _ in range(chance.randrange(1, 30))) for _ in range(400)]
    for name, path, body in each():
        if "tokenizer" not in body:
            continue
        reference = Tokenizer.from_str(json.dumps(body["tokenizer"]))
        for text, answer in zip(texts, run("tokenize", path, [{"text": text} for text in texts])):
            equal(answer["ids"], reference.encode(text).ids, f"{name} {text!r}")


RANKS = [bytes([byte]) for byte in range(256)] + [b" a", b"he", b"ll", b"hell", b"hello", b" w", b" he", "\u6c34".encode()[:2], "\u6c34".encode(), b"12", b"123", b"  ",
                                                  b"34", b"1234", b"aB", "\u6c34a".encode()]


def rank_file(tokens):
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))


def test_rank_files():
    """tokenizer.model in the format of tiktoken as the first GLM-4 have it, beside their tokenizer_config.json."""
    special = ["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>"]
    text = "hello  well 1234 \u6c34\u6c35 \x00 <|user|>"
    with tempfile.TemporaryDirectory() as directory:
        with open(os.path.join(directory, "tokenizer.model"), "w", encoding="ascii") as f:
            f.write(rank_file(RANKS))
        config = {"tokenizer_class": "ChatGLM4Tokenizer", "added_tokens_decoder": {
            str(len(RANKS) + at): {"content": token, "special": True, "normalized": False} for at, token in enumerate(special)}}
        with open(os.path.join(directory, "tokenizer_config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        plain = run("tokenize", os.path.join(directory, "tokenizer.model"), [{"text": text}])[0]["ids"]
        equal(plain[:2], [RANKS.index(b"hello"), 32])
        equal(b"".join(RANKS[i] for i in plain).decode(), text)
        base = len(RANKS)
        whole, bare = [answer["ids"] for answer in run("tokenize", directory, [{"text": text, "add_special": add} for add in (True, False)])]
        equal(whole, [base + 2, base + 4] + bare, "[gMASK]<sop> stands before a text")
        equal(bare[-1], base + 7, "<|user|> is one token here")
        answers = run("detokenize", directory, [{"ids": whole, "skip_special": skip} for skip in (True, False)])
        equal([answer["text"] for answer in answers], [text.replace("<|user|>", ""), "[gMASK]<sop>" + text])
    refused(rank_file(RANKS)[:-4] + "x\n", "is not a token in base64 and its rank")
    refused(rank_file(RANKS) + "YWFh 5", "id 5 has two tokens")
    refused(rank_file(RANKS) + "YWFh 9999999", "the limit is")
    refused(rank_file(RANKS) + "YWFh 99999999", "is not a token")
    refused(rank_file(RANKS) + "Y 300", "is not a token")
    refused(rank_file(RANKS[1:]), "the byte 0x00 has no token")


def test_split_of_rank_files():
    """A rank file does not say how text is split: the directory does, or the file is a well-known one, or it is refused."""
    text = "1234 aB \u6c34a"
    parts = {"gpt-2": [b"1234", b" a", b"B", b" ", "\u6c34a".encode()], "glm4": [b"123", b"4", b" a", b"B", b" ", "\u6c34a".encode()],
             "qwen": [b"1", b"2", b"3", b"4", b" a", b"B", b" ", "\u6c34a".encode()], "o200k": [b"123", b"4", b" a", b"B", b" ", "\u6c34a".encode()],
             "kimi": [b"123", b"4", b" a", b"B", b" ", "\u6c34".encode(), b"a"]}
    for name, config, tokenizer, wanted in (
            ("tokenizer.model", {"model_type": "chatglm"}, {"tokenizer_class": "ChatGLM4Tokenizer"}, "glm4"), ("qwen.tiktoken", {"model_type": "qwen"}, {"tokenizer_class": "QWenTokenizer"}, "qwen"),
            ("tokenizer.model", {"model_type": "gpt_oss"}, None, "o200k"), ("tokenizer.model", {"model_type": "llama"}, {}, "glm4"), ("tokenizer.model", {"model_type": "whisper"}, None, "gpt-2"),
            ("tiktoken.model", {"model_type": "deepseek_v3"}, {"tokenizer_class": "TikTokenTokenizer"}, "kimi"), ("tokenizer.model", {"model_type": "mamba"}, {"tokenizer_class": "NoSuch"}, None),
            ("tokenizer.model", None, None, None)):
        with tempfile.TemporaryDirectory() as directory:
            for file, body in ((name, rank_file(RANKS)), ("config.json", config), ("tokenizer_config.json", tokenizer)):
                if body is not None:
                    with open(os.path.join(directory, file), "w", encoding="utf-8") as f:
                        f.write(body if isinstance(body, str) else json.dumps(body))
            if wanted == "o200k":
                refused(rank_file(RANKS) + "IQ== 300", "both spelled", beside=config)
            for path in (directory, os.path.join(directory, name)):
                if wanted is None:
                    done = subprocess.run([harness.program("penstock"), "tokenize", "--tokenizer", path], input="", capture_output=True, text=True, timeout=harness.DEADLINE)
                    equal(done.returncode, 1, done.stderr)
                    check("does not say how text is split" in done.stderr and f"{len(RANKS)} ranks" in done.stderr, done.stderr)
                    continue
                equal([RANKS[i] for i in run("tokenize", path, [{"text": text, "add_special": False}])[0]["ids"]], parts[wanted], (name, config, tokenizer))
            if wanted == "qwen": # its code numbers them after the ranks
                equal(run("tokenize", directory, [{"text": "<|endoftext|><|im_start|><|extra_204|>"}])[0]["ids"], [len(RANKS), len(RANKS) + 1, len(RANKS) + 207])
    with tempfile.TemporaryDirectory() as directory: # one that ends with a token of nothing: Whisper's
        path = os.path.join(directory, "multilingual.tiktoken")
        with open(path, "w", encoding="ascii") as f:
            f.write(rank_file(RANKS + [b"%d" % at for at in range(10 ** 6, 10 ** 6 + 50256 - len(RANKS))]) + "= 50256\n")
        equal([RANKS[i] for i in run("tokenize", path, [{"text": text, "add_special": False}])[0]["ids"]], parts["gpt-2"])
        equal(run("detokenize", path, [{"ids": [97, 50256, 98]}])[0]["text"], "ab")
    with tempfile.TemporaryDirectory() as directory: # a well-known file, told by its ranks: like Qwen's
        path = os.path.join(directory, "x.tiktoken")
        with open(path, "w", encoding="ascii") as f:
            f.write(rank_file(RANKS + [b"%d" % at for at in range(10 ** 6, 10 ** 6 + 151643 - len(RANKS))]))
        equal([RANKS[i] for i in run("tokenize", path, [{"text": text, "add_special": False}])[0]["ids"]], parts["qwen"])


def test_roles_of_chatglm():
    """The ids of ChatGLM2's and 3's special tokens: behind the pieces, or where added_tokens_decoder says; text never spells them."""
    with open(os.path.join(DATA, "spm_bpe.json"), encoding="ascii") as f:
        pieces = base64.b64decode(json.load(f)["model"])
    size = None
    for stated, words in (({}, None), ({"[gMASK]": 1, "sop": 3, "<|user|>": 6}, None), ({"[gMASK]": 20, "sop": 22, "<|tool|>": 30}, None), ({"[gMASK]": -5}, "has two tokens")):
        with tempfile.TemporaryDirectory() as directory:
            def tokenizer_config(ids, base):
                decoder = {str(base + at): {"content": name, "special": False, "normalized": False} for name, at in ids.items()}
                with open(os.path.join(directory, "tokenizer_config.json"), "w", encoding="utf-8") as f:
                    json.dump(dict({"tokenizer_class": "ChatGLMTokenizer"}, **({"added_tokens_decoder": decoder} if decoder else {})), f)
            with open(os.path.join(directory, "tokenizer.model"), "wb") as f:
                f.write(pieces)
            with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as f:
                json.dump({"model_type": "chatglm"}, f)
            tokenizer_config(stated, size or 0)
            if words:
                done = subprocess.run([harness.program("penstock"), "tokenize", "--tokenizer", directory], input="", capture_output=True, text=True, timeout=harness.DEADLINE)
                equal(done.returncode, 1, done.stderr)
                check(words in done.stderr, done.stderr)
                continue
            whole = run("tokenize", directory, [{"text": "a[gMASK]sop<|user|>"}])[0]["ids"]
            size = size or whole[0] - 1
            ids = dict({"[gMASK]": 1, "sop": 3, "<|user|>": 6}, **stated)
            equal(whole[:2], [size + ids["[gMASK]"], size + ids["sop"]])
            check(max(whole[2:]) < size, "text spells none of them", whole)
            answer = run("detokenize", directory, [{"ids": [size + at for at in ids.values()], "skip_special": False}])
            equal(answer[0]["text"], "".join(ids))


def test_text_that_is_none():
    """Lone surrogates and bytes that are not UTF-8 are no JSON text; a NUL is a character like any other."""
    for name, path, body in each():
        if name != "byte_level":
            continue
        equal(run("detokenize", path, run("tokenize", path, [{"text": "a\x00b", "add_special": False}]))[0]["text"], "a\x00b")
        for line in (b'{"text":"\\ud800"}\n', b'{"text":"\\udc00a"}\n', b'{"text":"\xff"}\n', b'{"text":"\xed\xa0\x80"}\n', b'{"text":\n'):
            done = subprocess.run([harness.program("penstock"), "tokenize", "--tokenizer", path], input=line, capture_output=True, timeout=harness.DEADLINE)
            equal((done.returncode, done.stdout), (1, b""), line)
            check(b"line 1" in done.stderr, done.stderr)


def test_odd_files():
    """Legal, but no training makes them; what they give was asked of the `tokenizers` package, but for three: an added token in
    a hole keeps the file's id, where the package gives another, and words without an unknown token are left out, where it fails."""
    words = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[UNK]": 3, "c": 4}, "unk_token": "[UNK]"}
    pairs = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "": 3}, "merges": ["#version: 0.2", "a b"]}
    pieces = {"type": "WordPiece", "vocab": {"": 0, "a": 1}, "unk_token": ""}
    added = {"id": 2, "content": "bc", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    twice = {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5}, "merges": ["a b", "b c", "ab c", "a b"]}
    empty = {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False}
    between = {"type": "Replace", "pattern": {"String": ""}, "content": "b"}
    plain = {"type": "Replace", "pattern": {"Regex": "a"}, "content": "x"}
    for name, body, text, ids, decoded in (
            ("an added token in a hole of the vocabulary is not the model's",
             {"model": words, "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"}, "added_tokens": [added]}, "BC bc a B", [3, 2, 0, 1], "[UNK] bc a b"),
            ("words without an unknown token: left out", {"model": {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "[UNK]"}, "pre_tokenizer": {"type": "Whitespace"}}, "a ab b", [0], "a"),
            ("whole words too", {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}, "pre_tokenizer": {"type": "Whitespace"}}, "a ab a", [0, 0], "a a"),
            ("the first line of merges.txt", {"model": pairs}, "abba", [2, 1, 0], "ab b a"),
            ("of equal merges the last counts", {"model": twice}, "abcab", [0, 4, 3], "a bc ab"),
            ("the text of nothing stands between all characters", {"model": pairs, "pre_tokenizer": empty}, "ab", [0, 1], "a b"),
            ("and can be replaced", {"model": pairs, "normalizer": between}, "a", [1, 2], "b ab"),
            ("the first character is composed with the next", {"model": {"type": "WordLevel", "vocab": {"u": 0, "_A": 1, "_x": 2}, "unk_token": "u"}, "normalizer": {
                "type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "NFD"}, {"type": "StripAccents"}]}, "pre_tokenizer": {
                    "type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": True}}, "A\u0308 x", [1, 2], "_A _x"),
            ("the text of nothing is the first token", {"model": pieces, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False}}, "a", [1], "a"),
            ("an expression that is a text", {"model": pairs, "decoder": plain}, "abba", [2, 1, 0], "xbbx")):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "tokenizer.json")
            with open(path, "w", encoding="utf-8") as f:
                json.dump(body, f)
            equal(run("tokenize", path, [{"text": text, "add_special": False}])[0]["ids"], ids, name)
            equal(run("detokenize", path, [{"ids": ids}])[0]["text"], decoded, name)
            if body["model"] is pairs and "decoder" not in body:
                equal(run("detokenize", path, [{"ids": [3, 1, 3]}])[0]["text"], " b ", "a token of no bytes is one of the list")
            if body["model"] is pieces:
                equal(run("detokenize", path, [{"ids": [1, 0, 1]}])[0]["text"], "a  a", "also where it is the first")


def test_long_text():
    """More tokens than a prompt of the server may have: the commands know no prompts."""
    count = (1 << 20) + 1000
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "tokenizer.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}, "decoder": {"type": "Fuse"}}, f)
        equal(run("tokenize", path, [{"text": "ab" * (count // 2)}])[0]["ids"], [0, 1] * (count // 2), "ids")
        equal(run("detokenize", path, [{"ids": [0, 1] * (count // 2)}])[0]["text"], "ab" * (count // 2), "text")


def refused(text, *words, beside=None):
    with tempfile.TemporaryDirectory() as directory:
        if beside:
            with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as f:
                json.dump(beside, f)
        path = os.path.join(directory, "tokenizer.json")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text if isinstance(text, str) else json.dumps(text))
        done = subprocess.run([harness.program("penstock"), "tokenize", "--tokenizer", path], input="", capture_output=True, text=True,
                              timeout=harness.DEADLINE)
        equal(done.returncode, 1, done.stderr)
        for word in words:
            check(word in done.stderr, word, done.stderr)


def test_bad_files():
    def small(**changes):
        body = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}}
        body.update(changes)
        return body

    def model(**changes):
        return small(model=dict(small()["model"], **changes))
    refused("", "neither")
    refused("{", "cut short")
    refused('{"model": ' + "[" * 100 + "]" * 100 + "}", "an object is needed")
    refused('{"padding": ' + "[" * 100 + "]" * 100 + "}", "nested too deeply")
    refused(small(surprise=1), "the tokenizer's \"surprise\" is not known")
    refused(small(version="2.0"), 'the version "2.0" of the format is not known')
    refused({}, "there is no model")
    refused(model(type="Elmo"), '"Elmo" is not known')
    refused(model(surprise=1), "the model's \"surprise\" is not known")
    refused('{"model": {"type": "BPE", "vocab": {"a": 0, "a": 1}, "merges": []}}', 'tokens 0 and 1 are both spelled "a"')
    refused(model(vocab={"a": 0, "b": 0}), "id 0 has two tokens")
    refused(model(vocab={"a": 1 << 40}), "out of range")
    refused(model(vocab={"a": -1}), "out of range")
    refused(model(vocab={"a": 0.5}), "a whole number is needed")
    refused(model(merges=[["a", "x"]]), "its right part is not in the vocabulary")
    refused(model(merges=["ab"]), "not two parts")
    refused(model(merges=[["b", "a"]]), "its result is not")
    refused(small(normalizer={"type": "Magic"}), 'the normalizer "Magic" is not known')
    refused(small(normalizer={"type": "SentencePiece"}), "not known")
    refused(small(pre_tokenizer={"type": "UnicodeScripts"}), 'pre-tokenizer "UnicodeScripts"')
    refused(small(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated", "invert": False}), "expression")
    refused(small(pre_tokenizer={"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Sideways"}), "behavior")
    refused(small(decoder={"type": "CTC"}), 'the decoder "CTC"')
    refused(small(post_processor={"type": "X"}), 'the post-processor "X"')
    refused(small(post_processor={"type": "BertProcessing", "sep": ["x", 9], "cls": ["y", 0]}), "none of the vocabulary's 3")
    refused(small(added_tokens=[{"id": 7, "content": "a"}]), "has id 7, in the vocabulary it has 0")
    refused(small(added_tokens=[{"id": 1, "content": "<s>"}]), "belongs to another token")
    refused(small(added_tokens=[{"id": 3, "content": "<s>"}, {"id": 4, "content": "<s>"}]), "both spelled")
    refused(small(added_tokens=[{"id": 3, "content": "<s>"}, {"id": 3, "content": "<s>"}]), 'the added token 3 "<s>" appears twice')
    refused(small(added_tokens=[{"id": 2, "content": "ab"}, {"id": 2, "content": "ab"}]), 'the added token 2 "ab" appears twice')
    refused(small(decoder={"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"}), "the decoder Replace with a regular expression")
    refused(small(post_processor={"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}), "leaves out the text")
    refused({"model": {"type": "Unigram", "vocab": [["a", "b"]], "unk_id": 0}}, "a number is needed")
    refused({"model": {"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": 5}}, "unknown token's id is 5")
    refused('{"model": {"type": "BPE", "vocab": {"\\ud800": 0}, "merges": []}}', "surrogate")


if __name__ == "__main__":
    harness.main(globals())
