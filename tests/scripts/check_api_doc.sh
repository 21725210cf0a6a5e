#!/bin/sh
# The tables of docs/api.md are printed by the code (tests/unit/api_tables): fails when they differ.
# `check_api_doc.sh --update` writes them into the source tree instead; abs_top_builddir names the build.
set -eu
root=${abs_top_srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
tables=${abs_top_builddir:-$root/build}/tests/unit/api_tables
[ -x "$tables" ] || { echo "$tables is not built (Check is missing?)"; exit 77; }
new=$(mktemp)
trap 'rm -f "$new" "$new.table" "$new.next"' EXIT

cp "$root/docs/api.md" "$new"
for table in routes fields kwargs errors; do
	"$tables" "$table" > "$new.table"
	awk -v table="$table" -v file="$new.table" '
		$0 == "<!-- " table " -->" { print; while ((getline line < file) > 0) print line; skip = 1; found = 1; next }
		$0 == "<!-- end of " table " -->" { skip = 0 }
		!skip { print }
		END { if (!found || skip) exit 1 }' "$new" > "$new.next" || { echo "docs/api.md lacks the marks of $table"; exit 1; }
	mv "$new.next" "$new"
done
if [ "${1:-}" = --update ]; then
	cat "$new" > "$root/docs/api.md"
	exit 0
fi
diff -u "$root/docs/api.md" "$new" || { echo "docs/api.md is behind the code: run tests/scripts/check_api_doc.sh --update"; exit 1; }
echo "docs/api.md: ok"
