#!/usr/bin/env python3
"""Writes tiny.gguf, the model the behaviour tests run on: a random two-layer llama with a real tokenizer.

    python3 tests/data/make_tiny.py [FILE]

Only the standard library; the output is the same bytes everywhere (integer random numbers, no libm).  It is made so that
the awkward things happen: every weight format the reader knows how to compute, characters that are split over tokens (and
tokens that end inside a character), control tokens, tokens that are added but are text, padding rows at the end.
"""
import os
import random
import struct
import sys
import unicodedata

WIDTH, HEADS, KV_HEADS, FFN, LAYERS, CONTEXT, VOCAB = 64, 4, 2, 256, 2, 2048, 640
ALIGNMENT = 32

TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")

CORPUS = """The water in the mill channel comes from the river. When the gate is opened, the water runs down to the wheel;
when it is closed, the wheel stands still. A penstock is the gated channel that leads the water to the turbine, and the
person who keeps it has to know how much there is, how much is wanted and who was here first. That's what we're after: the
one who waits longest is served next, don't push, and they'll all have been there before the night comes. It isn't hard.
system user assistant tool You are a helpful assistant. Hello, hello world! What is the answer? The answer is that there
is one: yes, no, maybe. one two three four five six seven eight nine ten and then some more of the same thing again.
def main(argument):
    for index in range(len(argument)):
        if argument[index] == None:
            return {"error": "nothing", "index": index}
        print(index, argument[index])
int main(void) { return 0; } /* comment */ #include <stdio.h> // -> != == <= >= += && || ... --- ***
Der Müller öffnet das Wehr, das Wasser fließt über die Mühle, größer wird das Rad. Où est l'été? L'eau coule déjà très
près du château, là où le garçon a été élevé. El niño mañana señaló el año, ¿dónde está? São Paulo, não há ação.
Вода бежит по каналу к мельнице, и вода вертит колесо. Вода из реки, вода для мельницы, вода и снова вода.
水从河里流到水轮机。水是水,河是河。我们在这里等水,你们在那里等。中文的文字中有很多字。中国的水。
水車は川の水で回る。これは水です。それは川です。ありがとうございます。こんにちは。
물은 강에서 온다. 물이 흐른다. 안녕하세요 감사합니다.
مرحبا بالعالم هذا ماء من النهر. שלום עולם.
😀 😀 😃 🎉 🎉 👍 👍🏽 🇩🇪 ☃ ☃ ✓ → € ½ é e\u0301 n\u0303
"""


def char_of(byte):
    """The character that spells a byte in a byte-level vocabulary."""
    plain = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    if byte in plain:
        return chr(byte)
    return chr(0x100 + sum(1 for other in range(byte) if other not in plain))


CHARS = [char_of(byte) for byte in range(256)]


def kind(char):
    if char.isspace():
        return "space"
    return {"L": "letter", "N": "number"}.get(unicodedata.category(char)[0], "other")


def words(text):
    """Pieces much like the pre-tokenizer's; numbers are left out, so that no merge crosses a digit."""
    found, start = [], 0
    for at in range(1, len(text) + 1):
        if at == len(text) or (kind(text[at]) != kind(text[at - 1]) and text[at - 1:at] != " "):
            piece, start = text[start:at], at
            if not any(kind(char) == "number" for char in piece):
                found.append("".join(CHARS[byte] for byte in piece.encode()))
    return found


def train(count):
    """The COUNT most frequent merges in turn; ties go to the pair that sorts first."""
    tally = {}
    for word in words(CORPUS):
        tally[tuple(word)] = tally.get(tuple(word), 0) + 1
    merges, known = [], set(CHARS)
    while len(merges) < count:
        pairs = {}
        for word, times in tally.items():
            for pair in zip(word, word[1:]):
                if "".join(pair) not in known:
                    pairs[pair] = pairs.get(pair, 0) + times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        known.add("".join(best))
        merged = {}
        for word, times in tally.items():
            out, at = [], 0
            while at < len(word):
                step = 2 if word[at:at + 2] == best else 1
                out.append("".join(word[at:at + step]))
                at += step
            merged[tuple(out)] = merged.get(tuple(out), 0) + times
        tally = merged
    return merges


def half(value):
    return struct.pack("<e", value)


class Weights:
    """Random weights of standard deviation 1/sqrt(columns), made directly in each format."""

    def __init__(self):
        self.random = random.Random(20)

    def near_normal(self):
        return (sum(self.random.getrandbits(16) for _ in range(3)) - 98302.5) / 32768  # deviation 1, exact

    def block(self, form, deviation):
        scale = deviation * (96 + self.random.getrandbits(6)) / 128
        if form == "Q8_0":
            return half(scale / 74) + self.random.getrandbits(256).to_bytes(32, "little")
        if form == "Q4_0":
            return half(scale / 4.6) + self.random.getrandbits(128).to_bytes(16, "little")
        if form == "Q4_1":
            return half(scale / 4.6) + half(-7.5 * scale / 4.6) + self.random.getrandbits(128).to_bytes(16, "little")
        scales = [self.random.getrandbits(6) - 96 if self.random.getrandbits(1) else self.random.getrandbits(6) + 33
                  for _ in range(16)]
        return self.random.getrandbits(1536).to_bytes(192, "little") + struct.pack("<16b", *scales) + half(scale / 18.5 / 66)

    def tensor(self, form, columns, rows, deviation=None):
        deviation = deviation or {64: 1 / 8, 256: 1 / 16}[columns]
        elements = {"Q8_0": 32, "Q4_0": 32, "Q4_1": 32, "Q6_K": 256}.get(form)
        if elements:
            return b"".join(self.block(form, deviation) for _ in range(columns * rows // elements))
        values = [self.near_normal() * deviation for _ in range(columns * rows)]
        if form == "F16":
            return b"".join(half(value) for value in values)
        packed = [struct.pack("<f", value) for value in values]
        return b"".join(value[2:] if form == "BF16" else value for value in packed)  # BF16: cut, not rounded

    def norm(self, columns):
        return b"".join(struct.pack("<f", 1 + self.near_normal() / 8) for _ in range(columns))


def tensors():
    weights = Weights()
    kv = KV_HEADS * WIDTH // HEADS
    table = [("token_embd.weight", "Q8_0", (WIDTH, VOCAB), weights.tensor("Q8_0", WIDTH, VOCAB, 1.0))]
    forms = [("Q4_0", "F16", "Q8_0", "Q4_1", "Q4_0", "Q4_1", "Q6_K"), ("Q8_0", "BF16", "F32", "F16", "Q8_0", "Q4_1", "Q4_0")]
    shapes = [("attn_q", WIDTH, WIDTH), ("attn_k", WIDTH, kv), ("attn_v", WIDTH, kv), ("attn_output", WIDTH, WIDTH),
              ("ffn_gate", WIDTH, FFN), ("ffn_up", WIDTH, FFN), ("ffn_down", FFN, WIDTH)]
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            table.append((f"blk.{layer}.{name}.weight", "F32", (WIDTH,), weights.norm(WIDTH)))
        for (name, columns, rows), form in zip(shapes, forms[layer]):
            table.append((f"blk.{layer}.{name}.weight", form, (columns, rows), weights.tensor(form, columns, rows)))
    table.append(("output_norm.weight", "F32", (WIDTH,), weights.norm(WIDTH)))
    table.append(("output.weight", "F16", (WIDTH, VOCAB), weights.tensor("F16", WIDTH, VOCAB, 0.5)))
    return table


def string(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def u32(value):
    return struct.pack("<II", 4, value)


def f32(value):
    return struct.pack("<If", 6, value)


def text(value):
    return struct.pack("<I", 8) + string(value)


def array(element, items):
    return struct.pack("<IIQ", 9, element, len(items)) + b"".join(items)


def metadata():
    plain = [byte for byte in range(256) if CHARS[byte] == chr(byte)]
    order = plain + [byte for byte in range(256) if byte not in plain]
    controls, added = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<think>", "</think>"]
    padding = 8
    merges = train(VOCAB - len(controls) - 256 - len(added) - padding)
    tokens = controls + [CHARS[byte] for byte in order] + [a + b for a, b in merges] + added
    types = [3] * len(controls) + [1] * (256 + len(merges)) + [4] * len(added) + [5] * padding
    tokens += [f"[PAD{len(tokens) + at}]" for at in range(padding)]
    boolean = struct.pack("<IB", 7, 0)
    return [
        ("general.architecture", text("llama")), ("general.name", text("penstock tiny")),
        ("general.alignment", u32(ALIGNMENT)), ("general.file_type", u32(2)), ("general.quantization_version", u32(2)),
        ("llama.block_count", u32(LAYERS)), ("llama.context_length", u32(CONTEXT)), ("llama.embedding_length", u32(WIDTH)),
        ("llama.feed_forward_length", u32(FFN)), ("llama.attention.head_count", u32(HEADS)),
        ("llama.attention.head_count_kv", u32(KV_HEADS)), ("llama.attention.layer_norm_rms_epsilon", f32(1e-5)),
        ("llama.rope.freq_base", f32(10000.0)), ("llama.rope.dimension_count", u32(WIDTH // HEADS)),
        ("llama.vocab_size", u32(VOCAB)),
        ("tokenizer.ggml.model", text("gpt2")), ("tokenizer.ggml.pre", text("smollm")),
        ("tokenizer.ggml.tokens", array(8, [string(token) for token in tokens])),
        ("tokenizer.ggml.token_type", array(5, [struct.pack("<i", kind) for kind in types])),
        ("tokenizer.ggml.merges", array(8, [string(f"{a} {b}") for a, b in merges])),
        ("tokenizer.ggml.bos_token_id", u32(1)), ("tokenizer.ggml.eos_token_id", u32(2)),
        ("tokenizer.ggml.unknown_token_id", u32(0)), ("tokenizer.ggml.padding_token_id", u32(2)),
        ("tokenizer.ggml.add_bos_token", boolean), ("tokenizer.ggml.add_space_prefix", boolean),
        ("tokenizer.chat_template", text(TEMPLATE)),
    ]


def pad(data):
    return data + bytes(-len(data) % ALIGNMENT)


def build(with_tensors=True):
    types = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q6_K": 14, "BF16": 30}
    keys, table = metadata(), tensors() if with_tensors else []
    head = b"GGUF" + struct.pack("<IQQ", 3, len(table), len(keys)) + b"".join(string(key) + value for key, value in keys)
    data = b""
    for name, form, shape, content in table:
        head += string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) + struct.pack("<IQ", types[form], len(data))
        data = pad(data + content)
    return pad(head) + data


if __name__ == "__main__":
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "tiny.gguf")
    with open(path, "wb") as file:
        file.write(build())
