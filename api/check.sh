#!/usr/bin/env bash
# Within a minor version, compares the Go API with that of the last release, which api/released
# names: version and commit. Nothing may break then. A new minor version may break what
# CHANGELOG.md lists, and is not compared: that takes a quarter of an hour of a processor.
set -euo pipefail
bin=$1
module=$(go list -m)
read -r released commit < api/released
version=$(sed -n 's/^const Software = "\(.*\)"$/\1/p' internal/version/version.go)

grep -q "^## $version" CHANGELOG.md || { echo "CHANGELOG.md has no section for $version" >&2; exit 1; }
if [ "${version%.*}" != "${released%.*}" ]; then
	echo "$version may break what $released promised, as CHANGELOG.md says"
	exit
fi
if ! git cat-file -e "$commit^{commit}"; then
	echo "this clone has no commit $commit of release $released: git fetch --unshallow" >&2
	exit 1
fi
rm -rf "$bin/released"
mkdir -p "$bin/released"
git archive "$commit" | tar -x -C "$bin/released"
(cd "$bin/released" && "$bin/apidiff" -m -w "$bin/released.api" "$module") 2> "$bin/api.log" || { cat "$bin/api.log" >&2; exit 1; }
"$bin/apidiff" -m -incompatible "$bin/released.api" "$module" > "$bin/api.txt" 2> "$bin/api.log" || { cat "$bin/api.log" >&2; exit 1; }
rm -rf "$bin/released"

breaks=$(grep -c '^- ' "$bin/api.txt" || true)
echo "API of $version against $released: $breaks incompatible changes"
if [ "$breaks" -gt 0 ]; then
	cat "$bin/api.txt"
	echo "$version must not break what $released promised: see docs/compatibility.md" >&2
	exit 1
fi
