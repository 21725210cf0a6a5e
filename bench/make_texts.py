#!/usr/bin/env python3
"""The texts of bench/compare_tokenizers.py, from documentation that packages of Debian carry: tags taken away, no line twice.

    apt-get download PACKAGE...; dpkg-deb -x PACKAGE.deb DIRECTORY
    bench/make_texts.py LANGUAGE OUT DIRECTORY...       (LANGUAGE: en, zh or code)

Reads *.html, *.page, manual pages (*.gz), dictionaries (*.dict.dz) and, as code, *.py.  The directories decide the language;
here only lines go that are in another script.  BENCHMARKS.md names packages that give 10 MB each.
"""
import gzip
import os
import re
import sys
from html.parser import HTMLParser

BLOCKS = {"p", "div", "li", "tr", "h1", "h2", "h3", "h4", "h5", "br", "dt", "dd", "pre"}
CHINESE = re.compile(r"[\u3400-\u9fff]")
CODE_MAX = 10_800_000 # bytes


class Text(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.parts, self.hidden = [], 0

    def handle_starttag(self, tag, attrs):
        self.hidden += tag in ("script", "style")
        self.parts.append("\n" if tag in BLOCKS else "")

    def handle_endtag(self, tag):
        self.hidden = max(0, self.hidden - (tag in ("script", "style")))
        self.parts.append("\n" if tag in BLOCKS else "")

    def handle_data(self, data):
        self.parts.append("" if self.hidden else data)


def lines_of(path):
    with open(path, "rb") as f:
        content = f.read()
    content = (gzip.decompress(content) if path.endswith((".gz", ".dz")) else content).decode("utf-8", "replace")
    if path.endswith((".html", ".page")):
        parser = Text()
        parser.feed(re.sub(r"\s*\n\s*", " ", content))
        return [re.sub(r"\s+", " ", line).strip() for line in "".join(parser.parts).split("\n")]
    if path.endswith(".gz"): # roff
        content = re.sub(r"^[.'](\\\".*|[A-Za-z]{1,2}\s*)", "", content, flags=re.MULTILINE)
        content = re.sub(r"\\f.|\\&|\\-|\\\(", "", content)
    return re.sub("\x1b\\[[0-9;]*m", "", content).split("\n")


def wanted(language, line):
    if language == "code":
        return True
    if len(line) < 2 or "\ufffd" in line:
        return False
    if language == "zh": # not the manual pages that put a space behind every character
        return len(CHINESE.findall(line)) >= 0.3 * len(line.replace(" ", "")) and not re.search("([\u3400-\u9fff] ){3}", line)
    return sum(c < "\u0250" for c in line) > 0.9 * len(line) and line.count(" ") >= 3


def main():
    language, out, *directories = sys.argv[1:]
    endings = (".py",) if language == "code" else (".html", ".page", ".gz", ".dict.dz")
    files = sorted(os.path.join(at, name) for top in directories for at, _, names in os.walk(top) for name in names
                   if name.endswith(endings) and not name.startswith("changelog"))
    seen, size = set(), 0
    with open(out, "w", encoding="utf-8") as f:
        for path in files:
            for line in [] if os.path.islink(path) or (language == "code" and size > CODE_MAX) else lines_of(path):
                if wanted(language, line) and (line not in seen or (language == "code" and len(line) <= 20)):
                    seen.add(line)
                    size += f.write(line + "\n")
    print(f"{out}: {os.path.getsize(out) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
