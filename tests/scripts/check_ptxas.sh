#!/bin/sh
# gpu/check_ptxas.sh on logs as nvcc 13.0 writes them: what it accepts, what it refuses and in which words.
set -u
cd "${abs_top_srcdir:-$(dirname "$0")/../..}" || exit 1
log=$(mktemp) said=$(mktemp) failures=0
trap 'rm -f "$log" "$said"' EXIT

# expect STATUS WORDS: of the log on standard input; WORDS "" means that nothing is said.
expect() {
	cat > "$log"
	gpu/check_ptxas.sh "$log" > /dev/null 2> "$said"
	code=$?
	if [ $code != "$1" ] || { [ -n "$2" ] && ! grep -qF "$2" "$said"; } || { [ -z "$2" ] && [ -s "$said" ]; }; then
		echo "FAILED: status $code, wanted $1 with \"$2\"; it said:"
		cat "$said"
		failures=$((failures + 1))
	fi
}

fine="ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z4onev' for 'sm_90a'
ptxas info    : Function properties for _Z4onev
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 130 registers, used 1 barriers
ptxas info    : Compile time = 2842.045 ms"
expect 0 "" << END
$fine
END
expect 0 "" << END
ptxas info    : (C7519) warpgroup.arrive is injected in around line 1488 by compiler to allow use of registers in GMMA in function '_Z4onev'
$fine
END
expect 1 "wgmma is serialised: ptxas info    : (C7520)" << END
ptxas info    : (C7520) Potential Performance Loss: wgmma.mma_async instructions are serialized due to program dependence on compiler-inserted WG.AR in divergent path in the function '_Z4onev'
$fine
END
expect 1 "wgmma is serialised: ptxas info    : (C7510)" << END
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources for the wgmma pipeline in the function '_Z4onev'
$fine
END
expect 1 "error: registers spill to memory, 48 bytes of stores in _Z3twov" << END
$fine
ptxas info    : Compiling entry function '_Z3twov' for 'sm_80'
ptxas info    : Function properties for _Z3twov
    64 bytes stack frame, 48 bytes spill stores, 52 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 424 bytes cmem[0]
END
expect 1 "52 bytes of loads in _Z3twov" << END
ptxas info    : Compiling entry function '_Z3twov' for 'sm_80'
ptxas info    : Function properties for _Z3twov
    64 bytes stack frame, 0 bytes spill stores, 52 bytes spill loads
END
expect 0 "one.cu(3): warning #177-D" << END
one.cu(3): warning #177-D: variable "x" was declared but never referenced
$fine
END
expect 1 "no kernel in the log" < /dev/null
gpu/check_ptxas.sh /nonexistent 2> /dev/null
[ $? = 2 ] || { echo "FAILED: a log that is not there"; failures=$((failures + 1)); }
[ $failures = 0 ] && echo "check_ptxas: ok"
