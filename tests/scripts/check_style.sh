#!/bin/sh
# Size and style rules of the house: no file over 1,500 lines, no function over 150, no line over 132 columns (a tab counts 4),
# no banned functions, no exit/abort/assert in libraries, no unfinished marks, no mutable file-scope state outside log.c.
set -u
root=${abs_top_srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
cd "$root" || exit 1
failures=0
say() { echo "$1"; failures=$((failures + 1)); }
sources=$(find src gpu tests bench fuzz -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' | LC_ALL=C sort)

for file in $sources; do
	lines=$(wc -l < "$file")
	[ "$lines" -le 1500 ] || say "$file: $lines lines, at most 1500"
	LC_ALL=C awk -v file="$file" '
		{ text = $0; gsub(/\t/, "    ", text); gsub(/[\200-\277]/, "", text); if (length(text) > 132) { print file ":" NR ": " length(text) " columns"; bad = 1 } }
		/[ \t]+$/ { print file ":" NR ": blanks at the end of the line"; bad = 1 }
		/^\{/ { start = NR }
		/^\}/ { if (start && NR - start > 150) { print file ":" start ": function of " NR - start " lines, at most 150"; bad = 1 } start = 0 }
		END { exit bad }' "$file" || failures=$((failures + 1))
done

ban() { # extended regular expression, files, reason
	hits=$(printf '%s\n' "$sources" | grep -E "$2" | xargs -r grep -nE "$1" 2>/dev/null | grep -vE '^[^:]*:[0-9]+:[[:space:]]*(\*|/\*|//)')
	[ -z "$hits" ] || { printf '%s\n' "$hits"; say "^ $3"; }
}
ban '\b(sprintf|vsprintf|strcat|strncpy|strtok|gets|atoi|atol|atof|alloca|system|popen|tmpnam|mktemp)[[:space:]]*\(' '^src/|^gpu/' 'banned function'
ban '\bgetenv[[:space:]]*\(' '^src/(base|file|vocab|text|ipc|model|cpu|engine|api|front)/|^gpu/' 'no hidden environment switches'
ban '\b(exit|_exit|abort|assert)[[:space:]]*\(' '^src/(base|file|vocab|text|ipc|model|cpu|engine|api)/|^gpu/' 'libraries return a status'
ban '\b(TODO|FIXME|XXX)\b' '.' 'unfinished mark'
hits=$(printf '%s\n' "$sources" | grep -E '^src/.*\.c$' | grep -v '^src/base/log.c$' | xargs -r grep -nE '^static [^(]*;$' | grep -vE ':static (const |_Thread_local const )|\bconst [a-z_]+(\[[^]]*\])* *;|inline')
[ -z "$hits" ] || { printf '%s\n' "$hits"; say '^ mutable file-scope state: use a context struct'; }

# Every .c and .cu file opens with a comment.
for file in $sources; do
	case $file in src/*.c | gpu/*.cu | src/*.h) head -n 1 "$file" | grep -q '^/\*' || say "$file: must open with a comment" ;; esac
done
[ "$failures" -eq 0 ] || { echo "$failures rule(s) broken"; exit 1; }
echo "size and style: ok"
