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

// MaxConsole is how much of a machine's console is read at most: what EC2 keeps of it
// ("Instance console output", EC2 User Guide).
const MaxConsole = 64 << 10

// Console returns the end of what a machine has printed, at most MaxConsole bytes.
func Console(text []byte) []byte { return text[max(0, len(text)-MaxConsole):] }
