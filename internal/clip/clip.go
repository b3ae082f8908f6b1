// Package clip shortens texts of others before they are kept, sent or quoted.
package clip

import "strings"

// maxQuoted is how many bytes an error quotes.
const maxQuoted = 64

// Text returns the first limit bytes of s as valid UTF-8: without half a character at
// the end, and without bytes that are no character.
func Text(s string, limit int) string { return strings.ToValidUTF8(s[:min(limit, len(s))], "") }

// Quote returns what an error quotes of s: 64 bytes of a longer text, with dots after
// them.
func Quote(s string) string {
	if len(s) <= maxQuoted {
		return s
	}
	return Text(s, maxQuoted) + "..."
}
