#!/usr/bin/env bash
# Proves that a release of this tree can be used: makes the commit that its tags would point
# to, serves its modules from a directory, and has a stranger's modules install every program
# and tidy, build and run every example, from that directory and an empty module cache.
# Modules of others come from the module cache, or the proxy that go is set to use.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT

export GIT_AUTHOR_NAME=${GIT_AUTHOR_NAME:-release-check} GIT_AUTHOR_EMAIL=${GIT_AUTHOR_EMAIL:-release-check@example.com}
export GIT_COMMITTER_NAME=$GIT_AUTHOR_NAME GIT_COMMITTER_EMAIL=$GIT_AUTHOR_EMAIL
(cd tools/release && go build -o "$work/release" .)
git clone -q . "$work/tree"
"$work/release" commit -dir "$work/tree" -proxy "$work/proxy" -modcache "$work/modules" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
version=$("$work/release" tags -dir . | sed -n 1p) # head would end before all is written
if grep -l '^replace\|^	github.com/nstance-go/nstance.* =>' $(git -C "$work/tree" ls-files '*go.mod' | grep -v '^\(tools\|integration\|examples\)/' | sed "s,^,$work/tree/,"); then
	echo "a released module has a replace directive" >&2
	exit 1
fi

module=github.com/nstance-go/nstance
fetched() { du -sm "$GOMODCACHE" | cut -f 1; }
GOPROXY="file://$work/proxy,file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)"
export GOPROXY GONOSUMDB="$module,$module/*" GOFLAGS=-trimpath GOBIN="$work/bin" CGO_ENABLED=0 # what compiles the same as in make release

# stranger DIR SOURCE: a module outside of the repository with a copy of the source.
stranger() {
	mkdir -p "$1"
	cp -r "$2"/. "$1"
	cd "$1"
	go mod init example.com/stranger 2>/dev/null
	go mod edit -require "$module@$version" $(grep -rhq "\"$module/kubernetes" --include='*.go' . && echo "-require $module/kubernetes@$version")
}

echo "== what a program with the reconciler fetches"
export GOMODCACHE="$work/embedder"
(
	stranger "$work/group" examples/shortest/group
	start=$(date +%s%N)
	go mod tidy 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
	took=$((($(date +%s%N) - start) / 1000000))
	echo "tidy: $(fetched) MB, $took ms"
	test "$(fetched)" -le 25 || { echo "that is more than 25 MB: see docs/design/032-modules.md" >&2; exit 1; }
	go build -o "$work/group.bin" .
)

export GOMODCACHE="$work/modules"
echo "== programs"
for program in nstance-agent nstance-dev nstance-server nstance-admin nstance-operator; do
	go install "$module/cmd/$program@$version" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
	"$work/bin/$program" --help >/dev/null
	echo "$program: $(stat -c %s "$work/bin/$program") bytes"
done

echo "== examples"
for dir in examples/*/ examples/shortest/*/; do
	test "$dir" != examples/shortest/ || continue
	(
		stranger "$work/strangers/$dir" "$dir"
		go mod tidy 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
		go vet ./...
		if go list -deps ./... | grep -E '^(github.com/aws|cloud.google.com|github.com/Azure|modernc.org)/'; then
			echo "$dir links a cloud" >&2
			exit 1
		fi
		go build -o "$work/example" .
		timeout 60 "$work/example" >"$work/log" 2>&1 || { cat "$work/log" >&2; echo "$dir failed" >&2; exit 1; }
		echo "$dir: works"
	)
done
