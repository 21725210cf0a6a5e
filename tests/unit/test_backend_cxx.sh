#!/bin/sh
# model/backend.h and all it includes compile as C11 and as C++17.  CC and CXX name the compilers; skips without CXX.
set -eu
cxx=${CXX:-g++}
command -v "$cxx" >/dev/null 2>&1 || { echo "no C++ compiler ($cxx): skipped"; exit 77; }
for header in model/backend.h model/plugin.h; do
	echo "#include \"$header\"" | "$cxx" -x c++ -std=c++17 -Wall -Wextra -pedantic -Werror -fsyntax-only \
		-I"$abs_top_srcdir/src" -I"$abs_top_builddir/src" -
	# shellcheck disable=SC2086 # CC may be more than one word
	echo "#include \"$header\"" | ${CC:-cc} -x c -std=c11 -Wall -Wextra -pedantic -Werror -fsyntax-only \
		-I"$abs_top_srcdir/src" -I"$abs_top_builddir/src" -
done
