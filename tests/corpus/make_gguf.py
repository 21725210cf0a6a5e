#!/usr/bin/env python3
"""Writes the seeds of fuzz/fuzz_gguf.c into tests/corpus/gguf: small good files and files damaged in one place each.

    python3 tests/corpus/make_gguf.py
"""
import os
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "data"))
import make_tiny as tiny  # noqa: E402


def file(keys, tensors=(), data=b"", version=3):
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    head += b"".join(tiny.string(key) + value for key, value in keys)
    for name, form, shape, offset in tensors:
        head += tiny.string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", form, offset)
    return tiny.pad(head) + data


def vocabulary(**changes):
    tokens = ["<|im_start|>", "<|im_end|>", "<t>", "a", "b", "Ġ", "ä", "¸", "Ń", "ab", "aab", "Ġb", "ä¸", "[PAD]"]
    values = {
        "tokenizer.ggml.model": tiny.text("gpt2"), "tokenizer.ggml.pre": tiny.text("smollm"),
        "tokenizer.ggml.tokens": tiny.array(8, [tiny.string(token) for token in tokens]),
        "tokenizer.ggml.token_type": tiny.array(5, [struct.pack("<i", kind) for kind in [3, 3, 4] + [1] * 10 + [5]]),
        "tokenizer.ggml.merges": tiny.array(8, [tiny.string(merge) for merge in ("a b", "a ab", "Ġ b", "ä ¸")]),
        "tokenizer.ggml.bos_token_id": tiny.u32(0), "tokenizer.ggml.eos_token_id": tiny.u32(1),
        "tokenizer.ggml.add_bos_token": struct.pack("<IB", 7, 0), "tokenizer.chat_template": tiny.text(tiny.TEMPLATE),
    }
    values.update({"tokenizer." + key.replace("__", "."): value for key, value in changes.items()})
    return list(values.items())


def seeds():
    every = [("a", struct.pack("<IB", 0, 7)), ("b", struct.pack("<Ib", 1, -7)), ("c", struct.pack("<IH", 2, 7)),
             ("d", struct.pack("<Ih", 3, -7)), ("e", tiny.u32(7)), ("f", struct.pack("<Ii", 5, -7)), ("g", tiny.f32(0.5)),
             ("h", struct.pack("<IB", 7, 1)), ("i", tiny.text("words")), ("j", struct.pack("<IQ", 10, 7)),
             ("k", struct.pack("<Iq", 11, -7)), ("l", struct.pack("<Id", 12, 0.5)),
             ("general.alignment", tiny.u32(64))]
    arrays = [("a", tiny.array(6, [struct.pack("<f", 1.5)] * 3)), ("b", tiny.array(3, [struct.pack("<h", -2)] * 3)),
              ("c", tiny.array(8, [tiny.string("x"), tiny.string("")])), ("d", tiny.array(10, [struct.pack("<Q", 1 << 60)])),
              ("e", tiny.array(7, [b"\1", b"\0"])), ("f", tiny.array(4, []))]
    pair = [("t.weight", 0, (8, 2), 0), ("q.weight", 2, (32, 2), 64)]
    six = [("six.weight", 14, (256, 1), 0)]
    yield "values", file(every)
    yield "arrays", file(arrays)
    yield "version2", file(every[:3], version=2)
    yield "tensors", file([], pair, bytes(128))
    yield "q6", file([], six, bytes(224))
    yield "vocabulary", file(vocabulary())
    yield "gpt2", file(vocabulary(ggml__pre=tiny.text("gpt-2")))
    yield "chatml", file(vocabulary(chat_template=tiny.text(tiny.TEMPLATE.replace("\n", "\\n"))))
    yield "both", file(vocabulary(), pair, bytes(128))
    yield "tiny", tiny.build(with_tensors=False)
    yield "bad_magic", b"GGUX" + file([])[4:]
    yield "bad_version", file([], version=1)
    yield "bad_endian", struct.pack(">4sIQQ", b"GGUF", 3, 0, 0)
    yield "bad_count", struct.pack("<4sIQQ", b"GGUF", 3, 1 << 63, 1 << 63)
    yield "bad_key", struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, (1 << 64) - 8) + bytes(32)
    yield "bad_string", file([("a", struct.pack("<IQ", 8, 1 << 62))])
    yield "bad_array", file([("a", struct.pack("<IIQ", 9, 11, 1 << 61))])
    yield "bad_nested", file([("a", struct.pack("<IIQIIQ", 9, 9, 1, 9, 9, 1))])
    yield "bad_twice", file(every[:1] * 2)
    yield "bad_alignment", file([("general.alignment", tiny.u32(1 << 31))], pair, bytes(128))
    yield "bad_dims", file([], [("t", 0, (1 << 32, 1 << 32), 0)], bytes(64))
    yield "bad_wrap", file([], [("t", 0, ((1 << 62) + 1, 4), 0)], bytes(64))
    yield "bad_end", file([], pair, bytes(99))
    yield "bad_offset", file([], [("t", 0, (8,), (1 << 64) - 32)], bytes(64))
    yield "bad_overlap", file([], [pair[0], ("q.weight", 2, (32, 2), 32)], bytes(128))
    yield "bad_type", file([], [("t", 16, (256,), 0)], bytes(128))
    yield "bad_names", file([], [pair[0], pair[0]], bytes(128))
    yield "bad_cut", file(vocabulary())[:-40]
    yield "bad_eos", file(vocabulary(ggml__eos_token_id=tiny.u32(14)))
    yield "bad_types", file(vocabulary(ggml__token_type=tiny.array(5, [struct.pack("<i", 1)] * 13)))
    yield "bad_merge", file(vocabulary(ggml__merges=tiny.array(8, [tiny.string("a c")])))
    yield "bad_template", file(vocabulary(chat_template=tiny.text("{{ ''.__class__ }}")))


if __name__ == "__main__":
    os.makedirs(os.path.join(HERE, "gguf"), exist_ok=True)
    for name, content in seeds():
        with open(os.path.join(HERE, "gguf", name), "wb") as out:
            out.write(content)
