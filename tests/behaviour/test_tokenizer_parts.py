"""penstock tokenize and detokenize on tokenizers put together at random from every part that tokenizer.json knows, compared
with the `tokenizers` package: normalizers, pre-tokenizers with every behavior, models with their options, post-processors,
decoders, added tokens with all their flags.

PENSTOCK_TEST_TOKENIZERS=N tries N of them (default 60), PENSTOCK_TEST_SEED=N begins elsewhere."""
import json
import os
import random
import subprocess
import sys
import tempfile

import harness
from harness import check, equal, skip

sys.path.insert(0, os.path.join(harness.SOURCE, "tests", "support"))
import multilingual  # noqa: E402 (found beside the harness)

BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
EXPRESSIONS = [r"\s+", r"\d+", r"\p{L}+", r"[^\s\p{L}\p{N}]+", r"\w+|[^\w\s]+", r"[\r\n]", r"(?<=\.)\s", r"\p{Lu}", r"\p{N}{1,3}", r"[a-z]+(?=[A-Z])", r" ?\S+",
               r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
               r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+", r"[\p{L}&&[^a-zA-Z]]+", r"[[:punct:]]", r"x*", r"\p{Han}|\p{Hiragana}|\p{Thai}", r"^.|.$", r"\b"]
ADDED = ["<s>", "</s>", "<pad>", "[MASK]", "[SEP]", "<|im_start|>", "<|im_end|>", "<a>", "<a><b>", "word", "the", " the", "é", "ABC", "\n\n", "\u2581x", "Straße", "水",
         "ﬁ", "it's", "  ", "1", "<0x41>", "##a", "É", "\u0301"]


def normalizer(n, chance, depth=0):
    from tokenizers import Regex
    kind = chance.randrange(16 if depth < 2 else 14)
    if kind < 4:
        return (n.NFC, n.NFD, n.NFKC, n.NFKD)[kind]()
    if kind == 4:
        return n.Lowercase()
    if kind == 5:
        return n.Sequence([chance.choice((n.NFD, n.NFKD))(), n.StripAccents()])
    if kind == 6:
        return n.BertNormalizer(chance.random() < 0.7, chance.random() < 0.7, chance.choice((None, True, False)), chance.random() < 0.5)
    if kind == 7:
        return n.Replace(chance.choice((" ", "``", "e", "\u3000", "aa")), chance.choice(("\u2581", "\"", "", "X ", "é")))
    if kind == 8:
        return n.Replace(Regex(chance.choice((r"\s+", r" {2,}", r"[\u200b\u00ad]", r"\p{Zs}", r"\p{M}", r"(a)|b", r"^\s+|\s+$", r"\d"))), chance.choice((" ", "", "\u2581", "#")))
    if kind == 9:
        return n.Prepend(chance.choice(("\u2581", " ", "é")))
    if kind == 10:
        return n.Strip(chance.random() < 0.6, chance.random() < 0.6)
    if kind == 11:
        return n.Nmt()
    if kind == 12:
        return n.StripAccents()
    if kind == 13:
        return n.ByteLevel() if chance.random() < 0.3 else n.Lowercase()
    return n.Sequence([normalizer(n, chance, depth + 1) for _ in range(chance.randrange(4))])


def split(pre, chance):
    from tokenizers import Regex
    pattern = Regex(chance.choice(EXPRESSIONS)) if chance.random() < 0.7 else chance.choice((" ", "_", "a", "水", "..", "\n", "e"))
    return pre.Split(pattern, chance.choice(BEHAVIORS), chance.random() < 0.4)


def pre_tokenizer(pre, chance, depth=0):
    kind = chance.randrange(13 if depth < 2 else 11)
    if kind < 2:
        return split(pre, chance)
    if kind == 2:
        return pre.Digits(chance.random() < 0.5)
    if kind == 3:
        return pre.Punctuation(chance.choice(BEHAVIORS))
    if kind == 4:
        return pre.Whitespace()
    if kind == 5:
        return pre.WhitespaceSplit()
    if kind in (6, 7):
        return pre.Metaspace(chance.choice(("\u2581", "_", "Ġ")), chance.choice(("always", "first", "never")), chance.random() < 0.7)
    if kind == 8:
        return pre.BertPreTokenizer()
    if kind in (9, 10):
        return pre.ByteLevel(chance.random() < 0.5, chance.random() < 0.6)
    return pre.Sequence([pre_tokenizer(pre, chance, depth + 1) for _ in range(chance.randrange(1, 4))])


def decoder(d, chance, family):
    """A decoder as files have them, or now and then another one."""
    if family == "bytes":
        return d.ByteLevel()
    choices = [lambda: None, lambda: d.Metaspace(chance.choice(("\u2581", "_")), chance.choice(("always", "first", "never"))),
               lambda: d.WordPiece(chance.choice(("##", "@")), chance.random() < 0.6),
               lambda: d.Sequence([d.Replace("\u2581", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)]), lambda: d.Sequence([d.Replace("\u2581", " "), d.ByteFallback(), d.Fuse()]),
               lambda: d.Sequence([d.ByteFallback(), d.Fuse(), d.Replace("\u2581", " "), d.Strip(" ", chance.randrange(1, 4), 0)]),
               lambda: d.Sequence([d.ByteFallback(), d.Metaspace("\u2581", chance.choice(("always", "never")))]), lambda: d.Sequence([d.Fuse()]), lambda: d.Replace("a", "bb"),
               lambda: d.Strip(chance.choice((" ", "a")), chance.randrange(3), chance.randrange(3)), lambda: d.ByteLevel(), lambda: d.Sequence([d.Strip("\u2581", 1, 1), d.WordPiece("##", False)]),
               lambda: d.Sequence([d.ByteLevel(), d.Strip(" ", 1, 0)])]
    return chance.choice(choices)()


def post_processor(p, chance, tokens):
    """TOKENS: (spelling, id) of the special ones."""
    def one():
        kind = chance.randrange(5)
        a, b = chance.choice(tokens), chance.choice(tokens)
        if kind == 0:
            return p.TemplateProcessing(single=chance.choice((f"{a[0]} $A", f"$A {a[0]}", f"{a[0]} $A:1 {b[0]}:1", "$A", f"{a[0]} {b[0]} $0 {b[0]}")), special_tokens=list({a, b}))
        if kind == 1:
            return p.BertProcessing(a, b)
        if kind == 2:
            return p.RobertaProcessing(a, b, chance.random() < 0.5, chance.random() < 0.5)
        return p.ByteLevel(chance.random() < 0.5)
    if not tokens or chance.random() < 0.2:
        return None
    return p.Sequence([one() for _ in range(chance.randrange(1, 4))]) if chance.random() < 0.3 else one()


def model(m, t, chance, special):
    """A model without a vocabulary, its trainer, and which kind it is."""
    kind = chance.choice(("bpe", "bpe", "bytes", "bytes", "fallback", "wordpiece", "unigram", "unigram", "wordlevel"))
    size = chance.choice((120, 300, 600, 1500))
    limit = {"limit_alphabet": chance.choice((30, 100, 1000))}
    if kind == "bytes":
        from tokenizers import pre_tokenizers
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        if chance.random() < 0.2:
            alphabet = alphabet[:200]
        return m.BPE(ignore_merges=chance.random() < 0.5), t.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=special, show_progress=False), kind
    if kind in ("bpe", "fallback"):
        unknown = chance.choice(("<unk>", None)) if kind == "bpe" else "<unk>"
        affixes = {}
        if chance.random() < 0.3:
            affixes["end_of_word_suffix"] = "</w>"
        if chance.random() < 0.3:
            affixes["continuing_subword_prefix"] = "##"
        options = dict(affixes, fuse_unk=chance.random() < 0.5, ignore_merges=chance.random() < 0.3, byte_fallback=kind == "fallback" or chance.random() < 0.2)
        if unknown:
            options["unk_token"] = unknown
        names = special + ([unknown] if unknown else []) + (["<0x%02X>" % i for i in range(256 if chance.random() < 0.8 else 250)] if kind == "fallback" else [])
        return m.BPE(**options), t.BpeTrainer(vocab_size=size + 300, special_tokens=names, show_progress=False, **affixes, **limit), kind
    if kind == "wordpiece":
        prefix = chance.choice(("##", "@@"))
        return (m.WordPiece(unk_token="[UNK]", max_input_chars_per_word=chance.choice((5, 20, 100)), continuing_subword_prefix=prefix),
                t.WordPieceTrainer(vocab_size=size, special_tokens=special + ["[UNK]"], continuing_subword_prefix=prefix, show_progress=False, **limit), kind)
    if kind == "unigram":
        return m.Unigram(), t.UnigramTrainer(vocab_size=size + 1500, special_tokens=special + ["<unk>"], unk_token="<unk>", show_progress=False), kind
    return m.WordLevel(unk_token="[UNK]"), t.WordLevelTrainer(vocab_size=size, special_tokens=special + ["[UNK]"], show_progress=False), kind


def reshape(body, chance, kind):
    """What training cannot make, and other spellings of the same."""
    if kind == "fallback":
        body["added_tokens"] = [token for token in body["added_tokens"] if not token["content"].startswith("<0x")]
    if kind == "unigram" and chance.random() < 0.5: # ties, and bytes
        body["model"]["vocab"] = [[piece, round(score) if chance.random() < 0.9 else score] for piece, score in body["model"]["vocab"]]
    if kind == "unigram" and chance.random() < 0.4:
        known = {piece for piece, _ in body["model"]["vocab"]}
        body["model"]["vocab"] += [["<0x%02X>" % i, -20.0] for i in range(256) if "<0x%02X>" % i not in known]
        body["model"]["byte_fallback"] = True
        count = len(body["model"]["vocab"])
        names = {piece for piece, _ in body["model"]["vocab"]}
        for token in body["added_tokens"]:
            if token["content"] not in names:
                token["id"], count = count, count + 1
        body["post_processor"] = None
    if body["model"].get("merges") and chance.random() < 0.4 and not any(" " in part for merge in body["model"]["merges"] for part in merge):
        body["model"]["merges"] = [" ".join(merge) for merge in body["model"]["merges"]]
    if body["model"].get("merges") and chance.random() < 0.3: # in no order of training, and some of them again
        body["model"]["merges"] += chance.sample(body["model"]["merges"], len(body["model"]["merges"]) // 10)
        if chance.random() < 0.5:
            chance.shuffle(body["model"]["merges"])
    return body


def make(seed):
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    chance = random.Random(seed)
    special = chance.sample(ADDED[:9], chance.randrange(4))
    shape, trainer, kind = model(models, trainers, chance, special)
    tokenizer = Tokenizer(shape)
    if chance.random() < 0.6:
        tokenizer.normalizer = normalizer(normalizers, chance)
    if kind == "bytes":
        steps = [pre_tokenizer(pre_tokenizers, chance, 2) for _ in range(chance.randrange(3))]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(chance.random() < 0.3, chance.random() < 0.5)])
    elif chance.random() < 0.85 or kind in ("wordpiece", "wordlevel", "unigram"):
        tokenizer.pre_tokenizer = pre_tokenizer(pre_tokenizers, chance)
    tokenizer.train_from_iterator(multilingual.texts(300, seed=seed), trainer)
    for content in chance.sample(ADDED, chance.randrange(6)):
        flags = {name: chance.random() < 0.3 for name in ("single_word", "lstrip", "rstrip", "normalized")}
        special = chance.random() < 0.6 and content[0] in "<[" and not content.startswith("<0x")
        shown = tokenizer.normalizer.normalize_str(content) if tokenizer.normalizer else content
        if special: # what the model could give for text, and what the library would show all the same, differs by intention
            flags.update(single_word=False, normalized=flags["normalized"] and shown == content)
        if not shown or (kind == "unigram" and content.startswith("<0x")):
            continue # the library would split between all characters; and see reshape
        token = AddedToken(content, special=special, **flags)
        tokenizer.add_special_tokens([token]) if token.special else tokenizer.add_tokens([token])
    made = decoder(decoders, chance, kind)
    if made:
        tokenizer.decoder = made
    made = post_processor(processors, chance, [(token.content, at) for at, token in tokenizer.get_added_tokens_decoder().items() if token.special and " " not in token.content and "\n" not in token.content])
    if made:
        tokenizer.post_processor = made
    body = reshape(json.loads(tokenizer.to_str()), chance, kind)
    return Tokenizer.from_str(json.dumps(body)), body


def run(command, path, lines):
    done = subprocess.run([harness.program("penstock"), command, "--tokenizer", path], input="".join(json.dumps(line) + "\n" for line in lines),
                          capture_output=True, text=True, timeout=harness.DEADLINE)
    return [json.loads(line) for line in done.stdout.split("\n") if line] if done.returncode == 0 else done.stderr


def attempt(function):
    """What the reference says, None where it gives up or panics."""
    try:
        return function()
    except BaseException as error: # a panic of the library is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return None


def outline(body):
    shown = {key: body.get(key) for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens")}
    shown["model"] = {key: value for key, value in body["model"].items() if key not in ("vocab", "merges")}
    return json.dumps(shown)


def differences(seed, report):
    reference, body = make(seed)
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "tokenizer.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(body, f)
        texts = multilingual.texts(60, [token["content"] for token in body["added_tokens"]] + ADDED, seed)
        lines = [{"text": text, "add_special": at % 2 == 1} for at, text in enumerate(texts)]
        answers = run("tokenize", path, lines)
        if isinstance(answers, str):
            report.append(("refused", seed, answers.strip(), body))
            return
        wanted = [attempt(lambda line=line: reference.encode(line["text"], add_special_tokens=line["add_special"]).ids) for line in lines]
        for line, answer, ids in zip(lines, answers, wanted):
            if ids is not None and answer.get("ids") != ids:
                report.append(("encode", seed, f"{line!r}: {answer.get('ids')} instead of {ids}", body))
                break
        size = reference.get_vocab_size()
        lists = [ids for ids in wanted if ids is not None] + [[chance.randrange(size) for _ in range(chance.randrange(1, 12))] for _ in range(40)]
        lines = [{"ids": ids, "skip_special": at % 2 == 1} for at, ids in enumerate(lists)]
        answers = run("detokenize", path, lines)
        exact = (body["decoder"] or {}).get("type") == "ByteLevel"
        for line, answer in zip(lines, answers):
            text = attempt(lambda line=line: reference.decode(line["ids"], skip_special_tokens=line["skip_special"]))
            if text is not None and (exact or "\ufffd" not in text) and answer.get("text") != text:
                report.append(("decode", seed, f"{line!r} {[reference.id_to_token(i) for i in line['ids']]}: {answer.get('text')!r} instead of {text!r}", body))
                break


def test_bugs_found_at_random():
    """388: halfwidth jamo compose under NFKC; 428, 445: what Strip leaves nothing of goes through WordPiece all the same;
    470: \\b beside a number that is no character of words; 20569: a first character that is composed, no end."""
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        skip("the tokenizers package is not installed")
    report = []
    for seed in (388, 428, 445, 470, 20569):
        differences(seed, report)
    equal([(kind, seed, what[:600]) for kind, seed, what, _ in report], [])


def test_made_at_random():
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        skip("the tokenizers package is not installed")
    first, count, report = int(os.environ.get("PENSTOCK_TEST_SEED", "0")), int(os.environ.get("PENSTOCK_TEST_TOKENIZERS", "60")), []
    for seed in range(first, first + count):
        differences(seed, report)
    for kind, seed, what, body in report:
        print(f"seed {seed}, {kind}: {what[:600]}\n  {outline(body)[:1500]}")
    check(all(kind == "refused" and "not known here" in what for kind, _, what, _ in report), f"{len(report)} of {count} tokenizers differ")


CLASSES = [r"[[:%s:]]" % name for name in ("punct", "alpha", "alnum", "word", "graph", "print", "blank", "space", "cntrl", "digit", "xdigit", "upper", "lower")] + [
    r"\p{%s}" % name for name in ("Punct", "Alnum", "Word", "Upper", "Letter", "L", "Lu", "M", "N", "P", "S", "Z", "^L", "Han", "Hiragana", "Latin", "Common", "Arabic", "han")] + [
    r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\h", r"\P{L}", r".", r"\R", r"\X", r"\O", r"[^\p{L}]", r"[\u00e9\u0410-\u044f]", r"[^\W\d_]", r"[\W_]", r"[a-z&&[^aeiou]]", r"[\w&&[^\d]]"]


def test_classes_of_expressions():
    """Which characters a class in an expression means: every one of those that texts have, and some of all others."""
    try:
        from tokenizers import Regex, pre_tokenizers
    except ImportError:
        skip("the tokenizers package is not installed")
    chance = random.Random(5)
    codes = sorted({*range(0x600), *(ord(c) for text in multilingual.texts(500) for c in text),
                    *(chance.randrange(0xe000, 0x32000) for _ in range(800)), *(chance.randrange(0x600, 0xd800) for _ in range(1500))})
    for expression in CLASSES:
        split = pre_tokenizers.Split(Regex(expression), "removed")
        body = {"model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0}}, "added_tokens": [],
                "pre_tokenizer": {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Removed", "invert": False}}
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "tokenizer.json")
            with open(path, "w", encoding="utf-8") as f:
                json.dump(body, f)
            answers = run("tokenize", path, [{"text": chr(code), "add_special": False} for code in codes])
        check(not isinstance(answers, str), answers)
        wrong = [f"{code:x}" for code, answer in zip(codes, answers) if len(answer["ids"]) != len(split.pre_tokenize_str(chr(code)))]
        equal(wrong, [], expression)


def test_characters_of_normalizers():
    """Every character alone, every mark among others, every pair that composes: the reference's tables are of several Unicode
    versions, and marks that they do not know are not put in order."""
    try:
        from tokenizers import normalizers as n, pre_tokenizers
    except ImportError:
        skip("the tokenizers package is not installed")
    import unicodedata
    mapping = {letter: byte for byte, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda c: (ord(c) >= 0x100, c)))}
    level = pre_tokenizers.ByteLevel(False, use_regex=False)
    codes = [code for code in range(0x80, 0x32000) if not 0xd800 <= code < 0xf900 and not 0xac00 <= code < 0xd700]
    marks = [code for code in codes if unicodedata.category(chr(code))[0] == "M" or (unicodedata.category(chr(code)) == "Cn" and code % 16 == 0)]
    texts = ["".join(f"{chr(code)}-" for code in codes[at:at + 64]) for at in range(0, len(codes), 64)]
    for code in marks:
        texts += [f"a{chr(code)}\u0334", f"a\u0345{chr(code)}", f"a\u0315{chr(code)}\u0323\u0301"]
    for code in codes:
        parts = [chr(int(part, 16)) for part in unicodedata.decomposition(chr(code)).split() if part[0] != "<"]
        if len(parts) == 2:
            texts += ["".join(parts), parts[0] + "\u0334" + parts[1], "".join(parts) + "\u0323\u0301"]
    for name, reference in (("NFC", n.NFC()), ("NFD", n.NFD()), ("NFKC", n.NFKC()), ("NFKD", n.NFKD()), ("Lowercase", n.Lowercase()), ("StripAccents", n.StripAccents()), ("Nmt", n.Nmt()),
                            ("BertNormalizer", n.BertNormalizer())):
        body = {"model": {"type": "BPE", "vocab": mapping, "merges": []}, "normalizer": {"type": name},
                "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}}
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "tokenizer.json")
            with open(path, "w", encoding="utf-8") as f:
                json.dump(body, f)
            answers = run("tokenize", path, [{"text": text, "add_special": False} for text in texts])
        check(not isinstance(answers, str), answers)
        wrong = [text.encode("unicode_escape") for text, answer in zip(texts, answers)
                 if answer["ids"] != [mapping[c] for word, _ in level.pre_tokenize_str(reference.normalize_str(text)) for c in word]]
        equal(wrong[:20], [], name)


if __name__ == "__main__":
    harness.main(globals())
