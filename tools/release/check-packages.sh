#!/usr/bin/env bash
# Proves that the packages and images of a release can be used: tools/release/check-packages.sh
# FOLDER. Needs root, dpkg, rpm and systemd-analyze.
#
# Packages are installed by dpkg and by rpm, with their scripts, into trees that look like this
# machine and take nothing back to it (overlayfs). systemd does not run there: make test-units
# has it run the same units.
set -euo pipefail
cd "$(dirname "$0")/../.."
release=$(cd "$1" && pwd)
: "${TOOLS:?name the folder of tools}"
version=$(sed -n 's/^const Software = "\(.*\)"/\1/p' internal/version/version.go)
arch=$(go env GOHOSTARCH)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$*" >&2; exit 1; }
test "$(id -u)" -eq 0 || fail "run this as root: it mounts, and changes its root"
for program in dpkg rpm systemd-analyze unshare; do
	command -v $program >/dev/null || fail "install $program"
done

echo "== checksums"
(cd "$release" && sha256sum --quiet -c SHA256SUMS)
listed=$(wc -l <"$release/SHA256SUMS")
test "$listed" -eq "$(($(ls "$release" | wc -l) - 1))" || fail "SHA256SUMS names $listed files, there are others"

echo "== programs"
# says PROGRAM COMMAND...: the program, run by a command, says its version.
says() {
	local program=$1 flag=version
	shift
	case $program in
	agent | operator) flag=--version ;;
	dev) "$@" --help >"$work/out" || fail "nstance-dev --help: $?" && return ;; # it has no version of its own
	esac
	"$@" $flag >"$work/out" || fail "nstance-$program $flag: $?"
	grep -qF "$version" "$work/out" || fail "nstance-$program says it is $(cat "$work/out")"
}
for program in agent dev server admin operator; do
	says $program "$release/nstance-$program-$version-linux-$arch"
	grep -q '"bomFormat": "CycloneDX"' "$release/nstance-$program-$version-linux-$arch.cdx.json"
done

echo "== the same sources and programs give the same packages, images and lists"
mkdir -p "$work/tree" "$work/programs/linux-$arch"
git ls-files -z --cached --others --exclude-standard | xargs -0 -n 200 sh -c 'for f; do test ! -e "$f" || printf "%s\0" "$f"; done' - | tar -c --null --no-recursion -T - | tar -x -C "$work/tree"
for program in agent dev server admin operator; do
	cp "$release/nstance-$program-$version-linux-$arch" "$work/programs/linux-$arch/nstance-$program"
done
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) PLATFORMS=linux/$arch PROGRAMS=$work/programs "$work/tree/tools/release/build.sh" "$work/again"
for path in "$work/again"/*; do
	case $path in
	*/SHA256SUMS) ;;
	*.oci.tar) test "$("$TOOLS/image" digest -from "$path" -platform "linux/$arch")" = "$("$TOOLS/image" digest -from "$release/$(basename "$path")" -platform "linux/$arch")" || fail "$(basename "$path") differs" ;;
	*) cmp "$path" "$release/$(basename "$path")" ;;
	esac
done

# inside FORMAT SCRIPT: runs a script as root in a tree like this machine, with the release below /release.
inside() {
	mkdir -p "$work/$1"/{upper,tree}
	unshare --mount --fork bash -euo pipefail -c '
		mount --make-rprivate /
		mount -t tmpfs tmpfs "$1/upper"
		mkdir "$1/upper/files" "$1/upper/work"
		mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper/files,workdir=$1/upper/work" "$1/tree"
		mkdir -p "$1/tree/release"
		mount --bind "$2" "$1/tree/release"
		mount --rbind /dev "$1/tree/dev"
		mount -t proc proc "$1/tree/proc"
		mount -t tmpfs tmpfs "$1/tree/run"
		chroot "$1/tree" bash -euo pipefail -c "$3"
	' inside "$work/$1" "$release" "$2"
}

# What every format must have done, once installed and once removed.
installed='
	id nstance-agent >/dev/null
	for folder in identity keys recv; do
		test "$(stat -c %U:%G:%a /opt/nstance-agent/$folder)" = nstance-agent:nstance-agent:750
	done
	test "$(stat -c %U:%G:%a /etc/nstance)" = root:nstance-agent:2755
	for unit in nstance-agent nstance-server; do
		test "$(command -v $unit)" = /usr/bin/$unit
		systemd-analyze verify --man=no /usr/lib/systemd/system/$unit.service >/tmp/verify 2>&1 || { cat /tmp/verify >&2; exit 1; }
		if grep -F "$unit.service:" /tmp/verify >&2; then exit 1; fi # a line that systemd would ignore
		systemctl enable $unit.service
		test -L /etc/systemd/system/multi-user.target.wants/$unit.service
	done
	nstance-admin version | grep -F "'"$version"'"
	for program in nstance-admin nstance-server; do
		bash -c "source /usr/share/bash-completion/completions/$program && complete -p $program" >/dev/null
		if command -v zsh >/dev/null; then zsh -n $(ls /usr/share/zsh/*/_$program); fi
		if command -v fish >/dev/null; then fish --no-execute /usr/share/fish/vendor_completions.d/$program.fish; fi
	done
	echo kept >/etc/nstance/server.jsonc
	echo kept >/opt/nstance-agent/identity/key.pem
'
removed='
	for unit in nstance-agent nstance-server; do
		test ! -e /usr/bin/$unit
		test ! -e /usr/lib/systemd/system/$unit.service
		test ! -L /etc/systemd/system/multi-user.target.wants/$unit.service
	done
	test ! -e /usr/bin/nstance-admin
	grep -q kept /etc/nstance/server.jsonc
	grep -q kept /opt/nstance-agent/identity/key.pem
	test "$(stat -c %U /opt/nstance-agent/identity)" = nstance-agent
'

echo "== .deb: installed, installed again, purged"
inside deb '
	set -- /release/nstance-{agent,server,admin}_'"$version"'-1_'"$arch"'.deb
	dpkg --force-confnew -i "$@" >/dev/null
	'"$installed"'
	dpkg -i "$@" >/dev/null # as an upgrade does
	test -L /etc/systemd/system/multi-user.target.wants/nstance-agent.service
	dpkg --purge nstance-agent nstance-server nstance-admin >/dev/null
	'"$removed" 2>"$work/log" || { cat "$work/log" >&2; fail ".deb failed"; }

case $arch in amd64) rpmarch=x86_64 ;; arm64) rpmarch=aarch64 ;; esac
echo "== .rpm: installed, installed again, erased"
inside rpm '
	set -- /release/nstance-{agent,server,admin}-'"$version"'-1.'"$rpmarch"'.rpm
	rpm --nodeps -i "$@" # the packages that it names are here, but not known to rpm
	'"$installed"'
	rpm --nodeps -U --force "$@"
	test -L /etc/systemd/system/multi-user.target.wants/nstance-agent.service
	rpm -e nstance-agent nstance-server nstance-admin
	'"$removed" 2>"$work/log" || { cat "$work/log" >&2; fail ".rpm failed"; }

echo "== images: unpacked, and run by their user"
for program in server admin operator; do
	mkdir "$work/$program"
	chmod 755 "$work" "$work/$program"
	"$TOOLS/image" unpack -from "$release/nstance-$program-$version.oci.tar" -to "$work/$program" -platform "linux/$arch"
	says $program chroot --userspec=65532:65532 "$work/$program" /program
done
echo "packages and images of $version work"
