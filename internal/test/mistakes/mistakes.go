// Package mistakes has the exit codes of mistakes that can be made with several programs, for
// a test of each of them. docs/programs.md explains the codes.
package mistakes

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A Mistake is what the person makes who calls a program.
type Mistake string

// The mistakes, and what is none: a server that does not answer.
const (
	UnknownFlag   Mistake = "unknown flag"
	Argument      Mistake = "unexpected argument"
	BadValue      Mistake = "value of a flag that makes no sense"
	NothingNamed  Mistake = "configuration not named"
	FileMissing   Mistake = "configuration file not there"
	FileFolder    Mistake = "configuration file is a folder"
	FileInvalid   Mistake = "configuration file invalid"
	NoDirectory   Mistake = "directory is a file"
	NoAnswer      Mistake = "server does not answer"
	NotLoggedIn   Mistake = "no identity"
	NotPermitted  Mistake = "server refuses the caller"
	NothingStored Mistake = "configuration not in storage"
)

// Code returns the exit code of every program for a mistake.
func Code(m Mistake) int {
	switch m {
	case NoAnswer:
		return 5
	case NotLoggedIn, NotPermitted:
		return 4
	}
	return 2
}

// remedy returns what every program says to do about a mistake; empty: that depends on it.
func remedy(m Mistake) string {
	switch m {
	case UnknownFlag:
		return "--help"
	case NothingStored:
		return "nstance-admin config put"
	case NotLoggedIn:
		return "nstance-admin login"
	}
	return ""
}

// Require makes mistakes with a program, and requires the code and what to do on standard error.
func Require(t *testing.T, run func(t *testing.T, args []string) (code int, stderr string), commands map[Mistake][][]string) {
	t.Helper()
	for m, all := range commands {
		for _, args := range all {
			t.Run(string(m), func(t *testing.T) {
				code, errs := run(t, args)
				require.Equal(t, Code(m), code, "%s: %s", args, errs)
				require.NotEmpty(t, errs, args)
				require.Contains(t, errs, remedy(m), args)
			})
		}
	}
}
