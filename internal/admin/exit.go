package admin

import (
	"github.com/nstance-go/nstance"
)

// The exit codes. Scripts rely on them: docs/nstance-admin.md lists them.
const (
	exitOK          = 0
	exitFailed      = 1 // anything else
	exitUsage       = 2 // the command line, or what it asks for, is wrong: repeating is useless
	exitNotFound    = 3 // there is no such group or instance
	exitDenied      = 4 // not logged in, or not permitted
	exitUnavailable = 5 // nobody answered in time: repeat later
	exitConflict    = 6 // it exists, or changed meanwhile: look, then decide again
)

func exitCode(err error) int {
	switch nstance.CodeOf(err) {
	case "":
		return exitOK
	case nstance.Invalid:
		return exitUsage
	case nstance.NotFound:
		return exitNotFound
	case nstance.Denied:
		return exitDenied
	case nstance.Unavailable, nstance.Throttled:
		return exitUnavailable
	case nstance.Conflict:
		return exitConflict
	}
	return exitFailed
}

// fault returns an error with a remedy.
func fault(code nstance.Code, err error, remedy, msg string) error {
	return &nstance.Error{Code: code, Msg: msg, Remedy: remedy, Err: err}
}
