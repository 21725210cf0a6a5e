#!/usr/bin/env python3
"""Writes tests/data/tokenizers/NAME.json: small tokenizers of every kind with what the reference makes of some texts.

    pip install tokenizers sentencepiece gguf
    python3 tests/data/make_tokenizers.py

Reference: the `tokenizers` library for "tokenizer" (a tokenizer.json), SentencePiece for "model" (a tokenizer.model, base64).
"gguf" is a GGUF file (base64) with the vocabulary of one of them, spelled as the converters of llama.cpp do.
"""
import base64
import io
import json
import os
import tempfile

import gguf
import sentencepiece
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers as pre, processors, trainers)

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizers")
TEXTS = [
    "Hello, world! How's it going? I'LL see, you're 's 'RE", "The quick brown fox jumps over the lazy dog. ", "1234567 3.14 1,000 \u0663\u0664",
    "Cafe\u0301 na\u00efve \u00c5ngstr\u00f6m \u212b \ufb01ne \u1e9b\u0323", "  two  spaces   here ", "\t tab\n\n\nlines\r\n x", "\u6c34\u4ece\u6cb3\u91cc\u6d41\u5230\u6c34\u8f6e\u673a\u3002",
    "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab \u65e5\u672c\u8a9e \uff76\uff80\uff85", "\u0412\u043e\u0434\u0430 \u0431\u0435\u0436\u0438\u0442 \u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac \u03c2\u03a3",
    "\u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947", "\U0001f600\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469", "snake_case camelCase HTTPServer v2.0", "a<|user|> b <|user|>c", "x [MASK] y[MASK]",
    "<s>text</s> <unk>", "\u2581already\u2581\u2581marked", "word wordy password word", "\u0130stanbul \u00df \u01c5", "zero\u200bwidth\ufeff \u00a0nb \u3000", "\x01\x02\x7f", "!!!???...", "",
    " ", "aaaaaaaaaaaaaaaaaaaaaaaa", "\u00bd \u00b2 \u2167", "e\u0323\u0307 a\u0307\u0323",
]
CORPUS = [t for t in TEXTS if t.strip()] * 4 + ["the water runs down the river and turns the mill wheel", "under the bridge the river is deep"] * 8
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<s>", "</s>", "<|user|>"]


def byte_level():
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre.Sequence([pre.Split(Regex(SPLIT), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([AddedToken("word", single_word=True, normalized=False), AddedToken("[MASK]", lstrip=True, rstrip=True, normalized=False)])
    start = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", start)])
    return tokenizer


def gpt2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre.Sequence([pre.Digits(True), pre.ByteLevel(add_prefix_space=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre.ByteLevel.alphabet(), special_tokens=SPECIAL,
                                                              show_progress=False))
    return tokenizer


def llama2():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    fallback = ["<0x%02X>" % i for i in range(256)]
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>", "<s>", "</s>"] + fallback, limit_alphabet=60,
                                                              show_progress=False))
    saved = json.loads(tokenizer.to_str())
    saved["added_tokens"] = [token for token in saved["added_tokens"] if not token["content"].startswith("<0x")]
    saved["model"]["merges"] = [" ".join(merge) for merge in saved["model"]["merges"]]  # the older spelling
    return Tokenizer.from_str(json.dumps(saved))


def bert():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
                                                                    limit_alphabet=50, show_progress=False))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def sentencepiece_model(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter([t.replace("\n", " ") for t in CORPUS]), model_writer=model, minloglevel=2,
                                             hard_vocab_limit=False, **options)
    return model.getvalue()


def xlm_roberta():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=260, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], unk_token="<unk>",
                                                                  show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return tokenizer


def words():
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre.Sequence([pre.Whitespace(), pre.Punctuation("merged_with_previous")])
    tokenizer.train_from_iterator(CORPUS, trainers.WordLevelTrainer(vocab_size=60, special_tokens=["[UNK]"], show_progress=False))
    return tokenizer


def splits():
    """Every behavior, expressions that no scanner knows, affixes."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>", fuse_unk=False))
    tokenizer.normalizer = normalizers.Replace(Regex(r"\s+"), " ")
    tokenizer.pre_tokenizer = pre.Sequence([
        pre.Split(Regex(r"[[:upper:]]"), "merged_with_next"), pre.Split("_", "merged_with_previous"), pre.Split(Regex(r"[\p{L}&&[^a-z]]+"), "contiguous"),
        pre.Split(Regex(r"\w+|[^\w\s]+"), "removed", invert=True), pre.CharDelimiterSplit(".")])
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False))
    return tokenizer


def gguf_file(fill):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "x.gguf")
        writer = gguf.GGUFWriter(path, "llama")
        fill(writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        with open(path, "rb") as made:
            return base64.b64encode(made.read()).decode()


def gguf_of_pieces(kind, model):
    reader = sentencepiece.SentencePieceProcessor(model_proto=model)

    def fill(writer):
        count = reader.get_piece_size()
        types = [2 if reader.is_unknown(i) else 3 if reader.is_control(i) else 5 if reader.is_unused(i) else 6 if reader.is_byte(i) else 1
                 for i in range(count)]
        writer.add_tokenizer_model(kind)
        writer.add_token_list([reader.id_to_piece(i) for i in range(count)])
        writer.add_token_scores([reader.get_score(i) for i in range(count)])
        writer.add_token_types(types)
        writer.add_bos_token_id(reader.bos_id())
        writer.add_eos_token_id(reader.eos_id())
        writer.add_unk_token_id(reader.unk_id())
        if kind == "t5":
            writer.add_remove_extra_whitespaces(True)
            writer.add_add_space_prefix(True)
    return gguf_file(fill)


def gguf_of_bert(tokenizer):
    def spell(token):
        return token if token.startswith("[") and token.endswith("]") else token[2:] if token.startswith("##") else "\u2581" + token

    def fill(writer):
        tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
        writer.add_tokenizer_model("bert")
        writer.add_token_list([spell(token) for token in tokens])
        writer.add_token_types([3 if token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") else 1 for token in tokens])
        writer.add_unk_token_id(1)
        writer.add_uint32("tokenizer.ggml.cls_token_id", 2)
        writer.add_sep_token_id(3)
        writer.add_pad_token_id(0)
    return gguf_file(fill)


def write(name, body):
    with open(os.path.join(HERE, name + ".json"), "w", encoding="ascii") as out:
        json.dump(body, out, separators=(",", ":"))
        out.write("\n")


def main():
    for make in (byte_level, gpt2, llama2, bert, xlm_roberta, words, splits):
        tokenizer = make()
        cases = []
        for text in TEXTS:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "ids": ids, "with_special": tokenizer.encode(text).ids,
                          "decoded": tokenizer.decode(ids, skip_special_tokens=False), "decoded_skip": tokenizer.decode(ids)})
        write(make.__name__, {"tokenizer": json.loads(tokenizer.to_str()), "cases": cases})
        if make is bert:
            write("gguf_bert", {"gguf": gguf_of_bert(tokenizer), "cases": cases})
    for name, options in (("spm_bpe", {"model_type": "bpe", "byte_fallback": True, "vocab_size": 440, "normalization_rule_name": "identity",
                                       "remove_extra_whitespaces": False, "character_coverage": 0.98}),
                          ("spm_unigram", {"model_type": "unigram", "vocab_size": 240, "normalization_rule_name": "identity"})):
        model = sentencepiece_model(**options)
        reference = sentencepiece.SentencePieceProcessor(model_proto=model)
        cases = [{"text": text, "ids": reference.encode(text), "decoded_skip": reference.decode(reference.encode(text))} for text in TEXTS]
        write(name, {"model": base64.b64encode(model).decode(), "cases": cases})
        # Unlike SentencePiece, a GGUF vocabulary has special tokens in texts.
        cases = [case for case in cases if not any(token in case["text"] for token in ("<s>", "</s>", "<unk>"))]
        kind = "llama" if name == "spm_bpe" else "t5"
        write("gguf_" + kind, {"gguf": gguf_of_pieces(kind, model), "cases": cases})


if __name__ == "__main__":
    main()
