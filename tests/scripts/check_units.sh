#!/bin/sh
# The systemd units are valid and hardened: systemd-analyze verify and security (offline) find nothing to complain about.
set -u
builddir=${abs_top_builddir:-$(pwd)}
[ -f "$builddir/systemd/penstockd.service" ] || { echo "units are not built in $builddir"; exit 1; }
if ! command -v systemd-analyze >/dev/null; then
	echo "systemd-analyze is not installed"
	[ "${PENSTOCK_REQUIRE:-}" = 1 ] && exit 1
	exit 77
fi
dir=$(mktemp -d /tmp/penstock-units-XXXXXX) || exit 1
trap 'rm -rf "$dir"' EXIT
failures=0
# The programs need not be installed for the unit to be right; verify wants to see executables.
for unit in penstockd penstock-front; do
	sed -E 's|^(Exec[A-Za-z]*=)[^ ]*/penstock[a-z-]*|\1/bin/true|' "$builddir/systemd/$unit.service" > "$dir/$unit.service"
done
out=$(systemd-analyze verify --man=no --recursive-errors=no "$dir/penstockd.service" "$dir/penstock-front.service" 2>&1)
status=$?
mine=$(printf '%s\n' "$out" | grep penstock)
if [ $status -ne 0 ] || [ -n "$mine" ]; then
	printf '%s\n' "$out"
	failures=1
fi
# Exposure 0.0 (nothing) to 10.0 (everything), times ten.  penstockd may compile code (CUDA) and open devices.
for rule in penstockd:25 penstock-front:15; do
	unit=${rule%%:*} limit=${rule##*:}
	if ! out=$(systemd-analyze security --offline=yes --no-pager --threshold="$limit" "$dir/$unit.service" 2>&1); then
		printf '%s\n' "$out" | grep -E '✗|exposure'
		failures=1
	else
		printf '%s\n' "$out" | grep 'Overall exposure'
	fi
done
[ $failures -eq 0 ] && echo "units: ok"
exit $failures
