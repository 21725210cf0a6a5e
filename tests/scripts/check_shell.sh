#!/bin/sh
# Every shell script that people run is clean under shellcheck.
set -u
cd "${abs_top_srcdir:-$(dirname "$0")/../..}" || exit 1
if ! command -v shellcheck >/dev/null; then
	echo "shellcheck is not installed"
	[ "${PENSTOCK_REQUIRE:-}" = 1 ] && exit 1
	exit 77
fi
shellcheck -x -S warning contrib/check contrib/quickstart contrib/lib.sh nginx/penstock-site autogen.sh .ci/run gpu/check_ptxas.sh tests/gpu/run tests/scripts/*.sh && echo "shell: ok"
