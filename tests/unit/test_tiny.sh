#!/bin/sh
# tests/data/tiny.gguf is what its script makes; skipped without python3.
set -eu
root=${abs_top_srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
command -v python3 >/dev/null || exit 77
made=$(mktemp)
trap 'rm -f "$made"' EXIT
python3 "$root/tests/data/make_tiny.py" "$made"
cmp "$made" "$root/tests/data/tiny.gguf" && echo "tiny.gguf: as made"
