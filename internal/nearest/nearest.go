// Package nearest finds the word that was probably meant.
package nearest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
)

// Among returns nil, or an Invalid error that names field and what was probably
// meant.
func Among[T ~string](field string, word T, valid []T) error {
	if slices.Contains(valid, word) {
		return nil
	}
	names := make([]string, len(valid))
	for i, v := range valid {
		names[i] = string(v)
	}
	return nstance.FieldError(field, Remedy(string(word), names), "unknown word %.64q", string(word))
}

// Remedy returns the remedy for a word that is not among valid: the one that
// was probably meant, else what there is.
func Remedy(word string, valid []string) string {
	best, least := "", max(1, len(word)/3)+1
	for _, v := range valid {
		if d := distance(word, v, least); d < least {
			best, least = v, d
		}
	}
	const most = 20
	switch {
	case best != "":
		return fmt.Sprintf("did you mean %q?", best)
	case len(valid) == 0:
		return "none is defined"
	case len(valid) > most:
		return fmt.Sprintf("valid here: %s and %d more", strings.Join(valid[:most], ", "), len(valid)-most)
	}
	return "valid here: " + strings.Join(valid, ", ")
}

// distance is how many characters must be inserted, removed, replaced or
// swapped with their neighbour to turn a into b (optimal string alignment), or
// some number not below limit.
func distance(a, b string, limit int) int {
	if max(len(a)-len(b), len(b)-len(a)) >= limit {
		return limit
	}
	before := make([]int, len(b)+1) // two rows up
	above := make([]int, len(b)+1)
	row := make([]int, len(b)+1)
	for j := range row {
		above[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			row[j+1] = min(above[j+1], row[j]) + 1
			if a[i] == b[j] {
				row[j+1] = min(row[j+1], above[j])
			} else {
				row[j+1] = min(row[j+1], above[j]+1)
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		if slices.Min(row) >= limit && slices.Min(above) >= limit {
			return limit
		}
		before, above, row = above, row, before
	}
	return above[len(b)]
}
