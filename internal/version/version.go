// Package version says which version of the software this is.
package version

import (
	"strconv"
	"strings"
)

// Software is what the programs print, agents report, and servers tell each other.
const Software = "0.3.0"

// Minors returns how many minor versions two versions are apart: docs/compatibility.md
// promises what works together. It reports false for versions that cannot be compared:
// those of different major versions, and texts that are no versions.
func Minors(a, b string) (int, bool) {
	majorA, minorA, okA := parse(a)
	majorB, minorB, okB := parse(b)
	if !okA || !okB || majorA != majorB {
		return 0, false
	}
	return max(minorA-minorB, minorB-minorA), true
}

func parse(v string) (major, minor int, ok bool) {
	v, _, _ = strings.Cut(strings.TrimPrefix(v, "v"), "-")
	parts := strings.Split(v, ".")
	if len(parts) != 3 {
		return 0, 0, false
	}
	var n [3]int
	for i, p := range parts {
		var err error
		if n[i], err = strconv.Atoi(p); err != nil || n[i] < 0 {
			return 0, 0, false
		}
	}
	return n[0], n[1], true
}
