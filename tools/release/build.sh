#!/usr/bin/env bash
# Makes a release of this tree in an empty folder: tools/release/build.sh FOLDER.
#
#   PLATFORMS          of the programs, such as "linux/amd64 darwin/arm64"
#   SOURCE_DATE_EPOCH  time of all files, in seconds since 1970; by default the commit's
#   TOOLS              folder with nfpm, image and cyclonedx-gomod, as make builds them
#   PROGRAMS           folder with programs that are packed instead of built, by OS-ARCHITECTURE
#
# The same sources, Go and tools give the same bytes, in any folder: nothing in a file comes
# from the clock, the machine or git's state (-trimpath, -buildvcs=false).
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
mkdir -p "$1"
out=$(cd "$1" && pwd)
test -z "$(ls -A "$out")" || { echo "$out is not empty" >&2; exit 1; }
: "${PLATFORMS:?name platforms}" "${TOOLS:?name the folder of tools}"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH CGO_ENABLED=0
version=$(sed -n 's/^const Software = "\(.*\)"/\1/p' internal/version/version.go)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
programs=${PROGRAMS:-$work/programs}

# compile OS ARCHITECTURE: all programs, into a folder of that platform.
compile() {
	local to=$programs/$1-$2
	test -z "${PROGRAMS:-}" || return 0
	mkdir -p "$to"
	for dir in cmd/*/; do
		(cd "$dir" && GOOS=$1 GOARCH=$2 go build -tags grpcnotrace -trimpath -buildvcs=false -ldflags "-s -w" -o "$to/" .)
	done
}

# single OS ARCHITECTURE: each program by itself, with a list of what it links.
single() {
	for path in "$programs/$1-$2"/*; do
		local name
		name=$(basename "$path")-$version-$1-$2
		install -m 755 "$path" "$out/$name"
		"$TOOLS/cyclonedx-gomod" bin -json -noserial -notimestamp -version "v$version" -output "$out/$name.cdx.json" "$path"
	done
}

# completion: scripts for shells, made by the programs of this machine.
completion() {
	local host
	host=$(go env GOHOSTOS) host+=-$(go env GOHOSTARCH)
	test -d "$programs/$host" || compile "$(go env GOHOSTOS)" "$(go env GOHOSTARCH)"
	mkdir -p "$work/completion"
	for program in nstance-admin nstance-server; do
		for shell in bash zsh fish; do
			"$programs/$host/$program" completion $shell >"$work/completion/$program.$shell"
		done
	done
}

# packages ARCHITECTURE: .deb and .rpm. Programs of a package are in /usr/bin.
packages() {
	local from=$work/package-$1
	mkdir "$from"
	cp -r "$programs/linux-$1"/nstance-{agent,server,admin} "$work/completion" LICENSE deploy/systemd/* deploy/polkit/* "$from/"
	mkdir "$from/scripts"
	cp deploy/packages/*.sh "$from/scripts/"
	sed -i 's,=/usr/local/bin/,=/usr/bin/,' "$from"/*.service
	for config in deploy/packages/*.yaml; do
		for format in deb rpm; do
			(cd "$from" && ARCH=$1 VERSION=$version "$TOOLS/nfpm" package --config "$root/$config" --packager $format --target "$out/" >/dev/null)
		done
	done
}

# images ARCHITECTURE...: an OCI archive of each program that runs in containers, for all of them.
images() {
	for program in nstance-server nstance-admin nstance-operator; do
		local args=()
		for architecture in "$@"; do
			args+=("linux/$architecture=$programs/linux-$architecture/$program")
		done
		"$TOOLS/image" build -to "$out/$program-$version.oci.tar" -created "$SOURCE_DATE_EPOCH" "${args[@]}"
	done
}

linux=()
for platform in $PLATFORMS; do
	compile "${platform%/*}" "${platform#*/}"
	single "${platform%/*}" "${platform#*/}"
	test "${platform%/*}" != linux || linux+=("${platform#*/}")
done
if test ${#linux[@]} -gt 0; then
	completion
	for architecture in "${linux[@]}"; do
		packages "$architecture"
	done
	images "${linux[@]}"
fi
cp deploy/systemd/* deploy/polkit/* "$out/"
(cd "$out" && sha256sum -- * >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
