#!/bin/sh
# Enforces the include directions of ARCHITECTURE.md: a file in src/DIR may include only what the table allows.
# base < file < vocab < {text, grammar}; file < model < {cpu, gpu}; base < ipc; {ipc, model, grammar} < engine < batcher;
# {text, grammar, ipc} < api < front; kv and sched include only base; tools and tests may include all, nobody them.
set -u
root=${abs_top_srcdir:-$(cd "$(dirname "$0")/../.." && pwd)}
cd "$root" || exit 1

allowed() { # directory → directories it may include besides itself
	case $1 in
	base)    echo "" ;;
	file)    echo "base" ;;
	vocab)   echo "base file" ;;
	text)    echo "base file vocab" ;;
	grammar) echo "base file vocab" ;;
	ipc)     echo "base" ;;
	model)   echo "base file" ;;
	cpu)     echo "base file model" ;;
	gpu)     echo "base file model" ;;
	engine)  echo "base file vocab ipc model grammar" ;;
	batcher) echo "base file vocab ipc model grammar cpu engine" ;;
	api)     echo "base file vocab text grammar ipc model" ;;
	front)   echo "base file vocab text grammar ipc model api" ;;
	tools)   echo "base file vocab text grammar ipc model cpu engine batcher api front" ;;
	*)       return 1 ;;
	esac
}

failures=0
for file in $(find src gpu -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' | LC_ALL=C sort); do
	case $file in gpu/*) dir=gpu ;; *) dir=${file#src/}; dir=${dir%%/*} ;; esac
	may=$(allowed "$dir") || { echo "$file: directory $dir is not in the table of $0"; failures=$((failures + 1)); continue; }
	case $file in src/engine/kv.[ch] | src/engine/sched*.[ch] | src/engine/estimate.[ch] | src/engine/speculate.[ch]) may="base"; dir="engine/$(basename "${file%.*}")" ;; esac
	for target in $(sed -n 's/^[[:space:]]*#[[:space:]]*include "\([^"]*\)".*/\1/p' "$file"); do
		case $target in
		*/*) to=${target%%/*} ;;
		*)   continue ;; # config.h, generated files beside it
		esac
		case $dir in
		engine/*) case $target in engine/kv.h | engine/sched*.h | engine/estimate.h | engine/speculate.h) continue ;; esac
			case " $may " in *" $to "*) ;; *)
				echo "$file: includes $target, but kv, sched, estimate and speculate include only base"; failures=$((failures + 1)) ;; esac
			continue ;;
		esac
		[ "$to" = "$dir" ] && continue
		case " $may " in
		*" $to "*) ;;
		*) echo "$file: src/$dir must not include $target (allowed: $may)"; failures=$((failures + 1)) ;;
		esac
	done
done

# The one file that includes fcgiapp.h, and the one that includes ini.h.
for rule in "fcgiapp.h src/front/fcgi.c" "ini.h src/base/conf.c"; do
	header=${rule%% *} only=${rule#* }
	for file in $(grep -rlE "^[[:space:]]*#[[:space:]]*include <$header>" src gpu 2>/dev/null); do
		[ "$file" = "$only" ] || { echo "$file: only $only may include <$header>"; failures=$((failures + 1)); }
	done
done
[ "$failures" -eq 0 ] || { echo "$failures include rule(s) broken"; exit 1; }
echo "include directions: ok"
