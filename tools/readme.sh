#!/usr/bin/env bash
# Prints the first command of a section of README.md, word for word: tools/readme.sh "Try it".
set -euo pipefail
awk -v section="## $1" '
	$0 == section { inside = 1; next }
	/^## / { inside = 0 }
	inside && /^```$/ { if (fenced) exit; fenced = 1; next }
	inside && fenced { print }
' "$(dirname "$0")/../README.md" | grep .
