#!/usr/bin/env python3
"""Writes unicode_ranges.def: what the reference implementation takes each code point for, found by asking it.

    pip install tokenizers==0.23.3
    python3 src/text/make_unicode_ranges.py > src/text/unicode_ranges.def
    python3 src/text/make_unicode_ranges.py --newer > src/text/regex_newer.def
    python3 src/text/make_unicode_ranges.py --check

--newer writes what the reference's regular expressions know beyond Unicode 14, which is what PCRE2 10.42 and Python 3.11 have.

The `tokenizers` package mixes tables of several Unicode versions: its regular expressions (Oniguruma) follow 16.0, its
punctuation 8.0, its accents 9.0, its numbers 17.0.  No library has them all, and token ids depend on them, so the answers are
kept.  --check says whether unicode_ranges.def still holds for the package that is installed.
"""
import os
import sys

from tokenizers import Regex, normalizers, pre_tokenizers

KINDS = (("UPPER", r"[\p{Lu}\p{Lt}]"), ("LOWER", r"\p{Ll}"), ("LETTER", r"[\p{Lm}\p{Lo}]"), ("MARK", r"\p{M}"),
         ("NUMBER", r"\p{N}"), ("SPACE", r"\s"))
CODES = [code for code in range(0x110000) if not 0xd800 <= code < 0xe000]


def isolated(pre_tokenizer):
    """Code points that are cut out of the middle of a word."""
    return {code for code in CODES if len(pre_tokenizer.pre_tokenize_str("a" + chr(code) + "a")) > 1}


def kept(pre_tokenizer):
    return {code for code in CODES if pre_tokenizer.pre_tokenize_str(chr(code))}


def removed(normalizer):
    return {code for code in CODES if normalizer.normalize_str(chr(code)) == ""}


def ask():
    names = [[] for _ in range(0x110000)]
    for name, expression in KINDS:
        for code in kept(pre_tokenizers.Split(Regex(expression), "removed", invert=True)):
            names[code].append(name)
    bert = lambda clean, accents: normalizers.BertNormalizer(clean, False, accents, False)
    flags = (
        ("PUNCTUATION", isolated(pre_tokenizers.Punctuation("isolated"))),
        ("NUMERIC", isolated(pre_tokenizers.Digits(True))),
        ("WORD", set(CODES) - isolated(pre_tokenizers.Whitespace())),
        ("ACCENT", removed(normalizers.StripAccents())),
        ("CONTROL", removed(bert(True, False))),
        ("NONSPACING", removed(bert(False, True))),
    )
    for name, codes in flags:
        for code in codes:
            names[code].append(name)
    return names


def write(out):
    print("/* Made by make_unicode_ranges.py; do not edit.  RANGE(first, last, properties), ascending; the rest has none. */", file=out)
    names, first, line = ask(), 0, ""
    for code in range(1, 0x110001):
        if code < 0x110000 and names[code] == names[first]:
            continue
        if names[first]:
            item = f"RANGE(0x{first:x}, 0x{code - 1:x}, {' | '.join(names[first])})"
            if line and len(line) + 1 + len(item) > 125:
                print(line, file=out)
                line = ""
            line += (" " if line else "") + item
        first = code
    print(line, file=out)


NEWER = ("L", "Lu", "Ll", "Lm", "Lo", "M", "Mn", "Mc", "N", "Nd", "Nl", "No", "P", "Po", "Pd", "S", "So", "Sm", "Sk", "Sc", "Cf", "Alphabetic",
         "Uppercase", "Lowercase", "Han", "Latin", "Arabic", "Hiragana", "Katakana", "Devanagari", "Common", "Emoji")
CHANGED = {"Alphabetic": [*range(0x363, 0x370), 0xc04, 0xf82, 0xf83, *range(0x1dd3, 0x1de7), 0x11080, 0x11081], "Lowercase": [0x10fc, 0xa7f2, 0xa7f3, 0xa7f4, 0xab69]} # assigned before


def write_newer(out):
    import unicodedata
    if unicodedata.unidata_version != "14.0.0":
        sys.exit("Python 3.11 is needed, which has Unicode 14")
    print("/* Made by make_unicode_ranges.py; do not edit.  NEWER(property, what a newer Unicode added to it). */", file=out)
    for name in NEWER:
        codes = [code for code in sorted(kept(pre_tokenizers.Split(Regex(r"\p{%s}" % name), "removed", invert=True)))
                 if unicodedata.category(chr(code)) == "Cn" or code in CHANGED.get(name, ())]
        parts, line = [], ""
        for code in codes:
            if parts and parts[-1][1] == code - 1:
                parts[-1][1] = code
            else:
                parts.append([code, code])
        print(f'NEWER("{name}",', file=out)
        for first, last in parts:
            item = f"\\\\x{{{first:x}}}" + (f"-\\\\x{{{last:x}}}" if last > first else "")
            if len(line) + len(item) > 118:
                print(f'\t"{line}"', file=out)
                line = ""
            line += item
        print(f'\t"{line}")', file=out)


if __name__ == "__main__":
    if sys.argv[1:] == ["--newer"]:
        sys.exit(write_newer(sys.stdout))
    if sys.argv[1:] == ["--check"]:
        import io
        fresh = io.StringIO()
        write(fresh)
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "unicode_ranges.def"), encoding="ascii") as kept_file:
            sys.exit(0 if kept_file.read() == fresh.getvalue() else "unicode_ranges.def differs from what this package says")
    write(sys.stdout)
