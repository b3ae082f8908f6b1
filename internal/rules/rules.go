// Package rules has the rules for names, paths and modes, for plain strings. The root
// applies them in Group.Validate; every other package calls internal/validate, which makes
// errors of what they find.
package rules

import (
	"fmt"
	"strings"
	"time"

	"github.com/nstance-go/nstance/internal/clip"
)

// A Violation is how a value breaks its rule.
type Violation struct{ Msg, Remedy string }

func violation(remedy, format string, args ...any) *Violation {
	return &Violation{Msg: fmt.Sprintf(format, args...), Remedy: remedy}
}

const (
	maxNameLen    = 32  // characters
	maxFilePath   = 255 // bytes
	maxSecretName = 64  // bytes
	maxOwnerLen   = 128 // bytes
	kindLen       = 3
)

// Name is the rule for names of things that people choose, the strictest of what the
// supported clouds accept: ^[a-z0-9]([a-z0-9-]*[a-z0-9])?$, at most 32 characters, no two
// hyphens in a row. Nil: name keeps it.
func Name(name string) *Violation {
	const remedy = "use at most 32 of a-z, 0-9 and single hyphens, a letter or digit at both ends"
	switch {
	case name == "":
		return violation(remedy, "is empty")
	case len(name) > maxNameLen:
		return violation(remedy, "name %q is %d characters long", clip.Quote(name), len(name))
	case name[0] == '-' || name[len(name)-1] == '-' || strings.Contains(name, "--"):
		return violation(remedy, "name %q has a misplaced hyphen", name)
	}
	for _, c := range name {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return violation(remedy, "name %q contains %q", name, c)
		}
	}
	return nil
}

// Shard is Name without the one name that no shard has: the lease of a shard called cluster
// would be stored where the cluster's own object is.
func Shard(name string) *Violation {
	if name == "cluster" {
		return violation("choose another", "name %q is taken", name)
	}
	return Name(name)
}

// Owner is the rule for the owner of a group, such as the UID of a cluster; empty: none.
// Nil: owner keeps it.
func Owner(owner string) *Violation {
	if len(owner) <= maxOwnerLen && strings.Trim(owner, ownerChars) == "" {
		return nil
	}
	return violation("use at most 128 of A-Z, a-z, 0-9 and . _ - : /, such as a UID", "owner %q is not valid", clip.Quote(owner))
}

const ownerChars = secretChars + ":/"

// InstanceKind is the rule for the prefix of instance IDs. Nil: kind keeps it.
func InstanceKind(kind string) *Violation {
	if len(kind) == kindLen && strings.Trim(kind, "abcdefghijklmnopqrstuvwxyz") == "" {
		return nil
	}
	return violation("use exactly three letters a-z", "kind %q is not valid", clip.Quote(kind))
}

// ReservedFileDir is the one name in a receive directory that no file can have. The agent
// keeps its versions of the files there, so that it can switch all of them at once.
const ReservedFileDir = ".nstance"

// FilePath is the rule for paths of files on machines. A path is relative to the receive
// directory and never leads out of it: segments of letters, digits and some punctuation,
// joined by single slashes. Nil: path keeps it.
func FilePath(path string) *Violation {
	const remedy = "use segments of A-Z, a-z, 0-9 and . _ - + @ :, joined by single slashes, such as app/app.env"
	if len(path) > maxFilePath {
		return violation(remedy, "path %q... has %d bytes, more than %d", path[:32], len(path), maxFilePath)
	}
	for segment := range strings.SplitSeq(path, "/") {
		switch {
		case segment == "" || segment == "." || segment == "..":
			return violation(remedy, "path %q has the segment %q", path, segment)
		case strings.Trim(segment, fileChars) != "":
			return violation(remedy, "path %q contains a character that is not permitted", path)
		}
	}
	if first, _, _ := strings.Cut(path, "/"); first == ReservedFileDir {
		return violation("use another name", "path %q is reserved for the agent", path)
	}
	return nil
}

const fileChars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-+@:"

// FileMode is the rule for permission bits of files on machines. Files may hold secrets:
// users outside the file's group have no access, and nothing is executable. Nil: mode keeps
// it.
func FileMode(mode uint32) *Violation {
	if mode&^0o660 != 0 || mode&0o400 == 0 {
		return violation("use a mode such as 0600 or 0640: readable by its owner, closed to other users, not executable", "mode %#o is not permitted", mode)
	}
	return nil
}

// SecretName is the rule for names of secrets. The names under which a cluster keeps its own
// keys are refused: a key that signs certificates never becomes a file. Nil: name keeps it.
func SecretName(name string) *Violation {
	const remedy = "use at most 64 of A-Z, a-z, 0-9, . _ and -, a letter or digit first"
	switch {
	case name == "" || len(name) > maxSecretName || strings.Trim(name, secretChars) != "" || strings.ContainsRune("._-", rune(name[0])):
		return violation(remedy, "%q is not the name of a secret", name[:min(len(name), maxSecretName)])
	case strings.HasSuffix(name, ".key") || strings.HasSuffix(name, ".crt") || strings.Contains(name, "-ca") ||
		strings.HasPrefix(name, "nonce") || name == "installation":
		return violation("use another name", "%q is a name of the cluster's own keys", name)
	}
	return nil
}

const secretChars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"

// LeastSetting is the least of a duration that nothing else bounds. A number of seconds
// that lacks its unit is less, up to eleven days.
const LeastSetting = time.Millisecond

// Duration is the rule for durations in Go, where a number without a unit is nanoseconds:
// 0, which every caller has a meaning for, or from least to most. Nil: d keeps it.
func Duration(d, least, most time.Duration) *Violation {
	switch {
	case d == 0 || d >= least && d <= most:
		return nil
	case d > 0 && d < least:
		return violation("use "+span(least)+" to "+span(most)+"; forgot the unit?", "%s is too short", d)
	}
	return violation("use 0, or "+span(least)+" to "+span(most), "%s is out of range", d)
}

// span writes a duration as settings do.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= day && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(strings.TrimSuffix(text, "0s"), "0m")
	}
	return text
}
