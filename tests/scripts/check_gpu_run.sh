#!/bin/bash
# check_gpu_run: tests/gpu/run on a machine that is made up: programs that pass, fail, hang or are not there.  What it says and how it
# ends must follow from theirs: a first run on a real device is not the place to find out.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0"
set -u
top=${abs_top_srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
dir=$(mktemp -d /tmp/penstock-run-XXXXXX)
trap 'rm -rf "$dir"' EXIT
failures=0
wrong() {
	echo "WRONG: $*"
	failures=$((failures + 1))
}

# ---- The machine ----

mkdir -p "$dir/bin" "$dir/build/tests/gpu" "$dir/build/bench" "$dir/build/trap" "$dir/build/stall" "$dir/goldens/one"
touch "$dir/build/penstock-cuda.so" "$dir/build/trap/penstock-cuda.so" "$dir/build/stall/penstock-cuda.so" \
	"$dir/goldens/one/golden.safetensors"
echo '{"torch_dtype": "float16"}' > "$dir/goldens/one/config.json"
# Every program does what $FAKE says about its name and arguments: lines "PATTERN ACTION"; the first that fits counts.
cat > "$dir/fake" << 'FAKE'
#!/bin/bash
what="$(basename "$0") $*"
echo "$what" >> "$FAKE_LOG"
while read -r action pattern; do
	if [ -n "$pattern" ] && [[ $what == *$pattern* ]]; then
		case $action in
		fail) echo "it broke: $pattern"; exit 1 ;;
		skip) echo "skipped: $pattern"; exit 77 ;;
		hang) sleep 30; exit 0 ;;
		esac
	fi
done <<< "$FAKE"
case $what in
"nvidia-smi -L") echo "GPU 0" ;;
*compute_cap*) echo "$FAKE_CAPABILITY" ;;
nvidia-smi*) echo "made up" ;;
cuobjdump*) echo "ELF file 1: x.sm_90a.cubin" ;;
*trap*) echo "in step 20 of 1 rows in 1 sequences, kernel trap (launch 2 of the step)" >&2; exit 1 ;;
*make_random_model*) mkdir -p "$2"; touch "$2/config.json" "$2/model.safetensors" ;;
*make_real*) mkdir -p "$2/case"; touch "$2/case/golden.safetensors"; echo '{}' > "$2/case/config.json"; echo case ;;
"python3 -c"*) ;;
*print-ids*) echo "1,2,3,4,5" ;;
*"bench engine"*) echo "llama: 2.20 GB of weights"; echo "weights: 2.200 GB in files" ;;
*) echo "all is well: $what" ;;
esac
FAKE
chmod +x "$dir/fake"
for program in penstock tests/gpu/parity tests/gpu/invariance bench/bench_lanes bench/bench_read; do cp "$dir/fake" "$dir/build/$program"; done
for program in nvidia-smi cuobjdump compute-sanitizer python3; do cp "$dir/fake" "$dir/bin/$program"; done
export FAKE='' FAKE_LOG=$dir/log FAKE_CAPABILITY=9.0

# run ARGUMENTS…: the script on that machine; what it printed is in $dir/said, its table in $dir/out/table.txt.
run() {
	rm -rf "$dir/out"
	: > "$FAKE_LOG"
	PATH=$dir/bin:/usr/bin:/bin "$top/tests/gpu/run" -b "$dir/build" -o "$dir/out" "$@" > "$dir/said" 2>&1
	code=$?
}
ended() { [ "$code" = "$1" ] || { wrong "$2: exit status $code, not $1"; sed 's/^/   | /' "$dir/said" | tail -n 30; }; }
says() { grep -q -e "$1" "$dir/said" || { wrong "$2: it does not say: $1"; sed 's/^/   | /' "$dir/said" | tail -n 30; }; }
silent() { ! grep -e "$1" "$dir/said" || wrong "$2: it says: $1"; }
ran() { grep -q -e "$1" "$FAKE_LOG" || wrong "$2: nothing ran: $1"; }

# ---- What must follow ----

run -c abc1234 -d "$dir/goldens" -m "$top/tests/data/tiny.gguf"
ended 0 "all passes"
says '^penstock at abc1234, ' "all passes"
says ' passed, 0 failed, 0 did not run, ' "all passes"
for word in library auto own portable; do
	for share in 1 2 3 4 5; do says "^operations against the CPU, $word, $share/5  *passed" "all passes"; done
	says "^bits of linear, $word  *passed" "all passes"
	says "^golden one float16 $word  *passed" "all passes"
	says "^loading int4, $word  *passed" "all passes"
	says "^steps of glm4-32b, $word  *passed" "all passes"
done
says '^golden one float32 library  *passed' "all passes"
silent '^golden one float32 own' "all passes"
for part in "binaries in the object" "operations, warps late at random, 5/5" "a device error ends cleanly" "served by fronts" \
	"tokens as on the CPU" "checkpoints of real heads" \
	"golden case bfloat16 own" "draws from 151552 ids" "steps of glm4-32b-int4, auto" "lanes, glm4-9b" "lanes, glm4-9b-int4, max_running 32" "nginx, glm4-9b" \
	"compute-sanitizer memcheck attention"; do
	says "^$part  *passed" "all passes"
done
says '^      llama: 2.20 GB of weights' "all passes"
ran 'bench_read .*model.safetensors' "all passes"
ran 'parity .* own 5/5' "all passes"
ran 'racecheck .*parity .* copy library' "all passes"
[ -s "$dir/out/table.txt" ] || wrong "all passes: no table"
cmp -s "$dir/said" "$dir/out/table.txt" || wrong "the table is not what was printed"

FAKE='fail parity' run parity archs
ended 1 "parity fails"
says '^operations against the CPU, own, 1/5  *FAILED it broke: parity' "parity fails"
says '^      | it broke: parity' "parity fails"
says '^binaries in the object  *passed' "parity fails"
says '^1 passed, 25 failed, 0 did not run' "parity fails"

FAKE='fail bench engine' run bench load
ended 1 "bench fails"
says '^steps of glm4-9b, library  *FAILED' "bench fails"
says '^loading bf16, library  *FAILED' "bench fails"

FAKE='fail make_random_model' run load
ended 1 "no model"
says '^loading int4, own  *FAILED' "no model"

FAKE='fail trap' run fault
ended 1 "a device error without words"
says '^a device error ends cleanly  *FAILED' "a device error without words"

FAKE='fail generate' run serve lanes nginx
ended 0 "not installed"
says '^lanes, glm4-9b  *skip .*make install-pluginDATA.*' "not installed"
says '^0 passed, 0 failed, 3 did not run' "not installed"

FAKE='skip serve.py' run serve
ended 0 "serve skips"
says '^served by fronts  *skip *skipped: serve.py' "serve skips"

FAKE='fail import torch' run real
ended 0 "no torch"
says '^checkpoints of real heads  *skip' "no torch"
FAKE='fail make_real' run real
ended 1 "torch breaks"
says '^checkpoints of real heads  *FAILED' "torch breaks"
says '^golden .*/real  *FAILED no checkpoint' "torch breaks"

FAKE_CAPABILITY=8.9 run parity
ended 0 "another device"
says '^operations against the CPU, portable, 5/5  *passed' "another device"
silent '^operations against the CPU, own' "another device"
run -k "own portable" parity
silent '^operations against the CPU, library' "-k"
says '^operations against the CPU, own, 5/5  *passed' "-k"

# What hangs is ended and has failed; what has no time left is skipped.
begin=$SECONDS
FAKE='hang parity' run -t 6 -k library parity kernels
[ $((SECONDS - begin)) -lt 25 ] || wrong "a limit of 6 s: it took $((SECONDS - begin)) s"
ended 1 "a limit of 6 s"
says '^operations against the CPU, library, 1/5  *FAILED ended after' "a limit of 6 s"
FAKE='' run -t 2 -k library kernels
ended 0 "no time"
says '^kernels glm4-32b, 1 rows, library  *skip *no time is left' "no time"

run nonsense
ended 2 "an unknown part"
says 'nonsense is no part; parts are: archs' "an unknown part"
run -t soon parity
ended 2 "-t soon"
run -d "$dir/nowhere" golden
ended 2 "a directory that is not there"
FAKE='fail nvidia-smi -L' run
ended 77 "no device"
rm "$dir/bin/nvidia-smi"
[ -n "$(PATH=/usr/bin:/bin command -v nvidia-smi)" ] || { run; ended 77 "no driver"; }
cp "$dir/fake" "$dir/bin/nvidia-smi"
rm "$dir/build/bench/bench_lanes"
run
ended 1 "a program is not built"
says 'bench/bench_lanes is not there: make bench/bench_lanes' "a program is not built"

[ $failures = 0 ] && echo "tests/gpu/run: ok"
[ $failures = 0 ]
