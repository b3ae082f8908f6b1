// Package clip shortens and cleans texts of others before they are kept, sent, quoted or
// shown. Nothing of them reaches a terminal as a command: agents, clouds, hooks and
// tenants write what they like.
package clip

import (
	"regexp"
	"strings"
	"unicode"
)

// maxQuoted is how many bytes an error quotes.
const maxQuoted = 64

// Text returns the first limit bytes of s as valid UTF-8: without half a character at
// the end, without bytes that are no character, and with a space in place of each control
// character but tabs and ends of lines.
func Text(s string, limit int) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return visible(r)
	}, strings.ToValidUTF8(s[:min(limit, len(s))], ""))
}

// Ends is Text that leaves out the middle: an error begins with what was tried, and ends with
// its cause.
func Ends(s string, limit int) string {
	const dots = "..."
	if len(s) <= limit || limit < 2*len(dots) {
		return Text(s, limit)
	}
	tail := (limit - len(dots)) / 3
	return Text(s, limit-len(dots)-tail) + dots + Text(s[len(s)-tail:], tail)
}

// Line returns s in one line, with a space in place of each control character, and
// without bytes that are no character.
func Line(s string) string { return strings.Map(visible, strings.ToValidUTF8(s, "")) }

// visible returns a space for a character that controls a terminal, or the direction of
// what follows.
func visible(r rune) rune {
	if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
		return ' '
	}
	return r
}

// maxWords is how many bytes are kept of what a cloud says.
const maxWords = 512

// secretLike is what may hold a secret in an error of a cloud: the query of a URL, which may
// be signed, and long runs of encoded bytes, such as user data or a token.
var secretLike = regexp.MustCompile(`\?[^\s?"']*=[^\s"']*|[A-Za-z0-9+_=-]{100,}`)

// Words returns what a cloud says so that it can be kept and shown: in one line, without
// control characters and what may be a secret, at most 512 bytes: the middle is left out.
func Words(s string) string {
	if s == "" {
		return ""
	}
	s = strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar {
			return ' '
		}
		return visible(r)
	}, s[:min(len(s), 16*maxWords)])
	return Ends(strings.Join(strings.Fields(secretLike.ReplaceAllString(s, "[removed]")), " "), maxWords)
}

// Quote returns what an error quotes of s: 64 bytes of a longer text, with dots after
// them.
func Quote(s string) string {
	if len(s) <= maxQuoted {
		return Text(s, maxQuoted)
	}
	return Text(s, maxQuoted) + "..."
}

// MaxConsole is how much of a machine's console is read at most: what EC2 keeps of it
// ("Instance console output", EC2 User Guide).
const MaxConsole = 64 << 10

// Console returns the end of what a machine has printed, at most MaxConsole bytes.
func Console(text []byte) []byte { return text[max(0, len(text)-MaxConsole):] }
