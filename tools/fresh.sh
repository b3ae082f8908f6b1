#!/usr/bin/env bash
# Runs the README's two commands as on a fresh machine: empty module and build caches, in
# folders of their own. Prints how long each took, downloads and compilation included.
set -euo pipefail
cd "$(dirname "$0")/.."
caches=$(mktemp -d)
trap 'chmod -R u+w "$caches" && rm -rf "$caches"' EXIT
export GOMODCACHE="$caches/modules" GOCACHE="$caches/build"
for section in "Try it" "Test it"; do
	command=$(tools/readme.sh "$section")
	echo "== $command"
	start=$SECONDS
	bash -euo pipefail -c "$command"
	times+="$((SECONDS - start)) s  $command"$'\n'
done
echo "== on empty caches, $(nproc) processors, $(du -sm "$GOMODCACHE" | cut -f 1) MB of modules"
printf '%s' "$times"
