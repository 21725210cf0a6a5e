#!/usr/bin/env python3
"""Writes unicode_ranges.def: the code points of general category L* and N*, of Unicode 16.0.

    pip install unicodedata2==16.0.0 tokenizers
    python3 src/text/make_unicode_ranges.py > src/text/unicode_ranges.def
    python3 src/text/make_unicode_ranges.py --check

Unicode 16.0 is what the reference (the `tokenizers` package, 0.21 to 0.23 at least, through Oniguruma) splits by;
--check asks it about every code point and prints those it sees otherwise.  Known: its Digits step also isolates the 13
numbers of Unicode 17, U+11DE0...U+11DE9 and U+16FF4...U+16FF6, which the split by expression does not call numbers.
"""
import sys

import unicodedata2

VERSION = "16.0.0"


def ranges(letter):
    found = []
    for code in range(0x110000):
        if unicodedata2.category(chr(code))[0] != letter:
            continue
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def write():
    print(f"/* Made by make_unicode_ranges.py from Unicode {VERSION}; do not edit.  RANGE(class, first, last), ascending. */")
    both = [(first, last, name) for letter, name in (("L", "LETTER"), ("N", "NUMBER")) for first, last in ranges(letter)]
    line = ""
    for first, last, name in sorted(both):
        item = f"RANGE({name}, 0x{first:x}, 0x{last:x})"
        if line and len(line) + 1 + len(item) > 118:
            print(line)
            line = ""
        line += (" " if line else "") + item
    print(line)


def check():
    from tokenizers import pre_tokenizers
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    space = set([*range(9, 14), 0x20, 0x85, 0xa0, 0x1680, *range(0x2000, 0x200b), 0x2028, 0x2029, 0x202f, 0x205f, 0x3000])
    wrong = 0
    for code in range(0x110000):
        if 0xd800 <= code < 0xe000:
            continue
        char = chr(code)
        ours = unicodedata2.category(char)[0]
        ours = "S" if code in space else ours if ours in "LN" else "O"
        theirs = "S"
        for name, neighbour in (("L", "a"), ("N", "1"), ("O", "!")):
            if len(split.pre_tokenize_str(neighbour + char)) == 1:
                theirs = name
        isolated = len(digits.pre_tokenize_str("a" + char)) == 2
        if ours != theirs or isolated != (ours == "N"):
            print(f"U+{code:04X}: ours {ours}, expression {theirs}, isolated as a digit: {isolated}")
            wrong += 1
    print(f"{wrong} differences")


if __name__ == "__main__":
    if unicodedata2.unidata_version != VERSION:
        sys.exit(f"unicodedata2 {VERSION} wanted, {unicodedata2.unidata_version} found")
    check() if sys.argv[1:] == ["--check"] else write()
