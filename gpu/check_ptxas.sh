#!/bin/sh
# check_ptxas.sh LOG: what nvcc said with -Xptxas -v, without the chatter.  Exit status 1 where a kernel spills registers to memory
# or its wgmma instructions are serialised (notes C7510 to C7599 but C7519, which only says that a fence was added), and where the
# log names no kernel: -Xptxas -v is missing then.
set -u
[ $# = 1 ] && [ -r "$1" ] || { echo "usage: check_ptxas.sh LOG" >&2; exit 2; }
awk '
/^ptxas info *: Compiling entry function/ { kernels++; next }
/^ptxas info *: Function properties for/ { name = $NF; next }
/bytes spill stores/ {
	for (i = 1; i + 3 <= NF; i++)
		if ($i + 0 > 0 && $(i + 1) == "bytes" && $(i + 2) == "spill") {
			what = $(i + 3)
			sub(",", "", what)
			print "error: registers spill to memory, " $i " bytes of " what " in " name
			bad = 1
		}
	next
}
/\(C75[1-9][0-9]\)/ {
	if ($0 !~ /\(C7519\)/) {
		print "error: wgmma is serialised: " $0
		bad = 1
	}
	next
}
/^ptxas info/ || /^ *[0-9]+ bytes (gmem|stack frame)/ || /^$/ { next }
{ print }
END {
	if (!kernels) {
		print "error: no kernel in the log: was it compiled with -Xptxas -v?"
		bad = 1
	}
	exit bad
}' "$1" >&2
