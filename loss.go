package nstance

import (
	"errors"
	"fmt"
)

// A LossCause says why a machine that the cloud had accepted is dead or gone, if
// the cloud reports it. Until the machine is ready, LossInvalid, LossGuest and an unknown
// cause are a failed create, and count against its definition. Every other cause is a loss
// of capacity: a provider gives one only for a word of its cloud that says so.
type LossCause string

// The causes. Empty: the cloud does not say.
const (
	LossReclaimed LossCause = "reclaimed" // the cloud took spot capacity back
	LossCapacity  LossCause = "capacity"  // accepted, but there was no capacity to start it
	LossQuota     LossCause = "quota"     // accepted, but beyond a limit of the account
	LossInvalid   LossCause = "invalid"   // cannot start as specified, however often it is tried
	LossHost      LossCause = "host"      // the cloud's own failure or maintenance
	LossGuest     LossCause = "guest"     // powered off from inside
	LossThrottled LossCause = "throttled" // accepted, then refused for the rate of such creates
	LossRequested LossCause = "requested" // stopped or deleted through the cloud's API
)

// Known reports whether c is one of the causes above.
func (c LossCause) Known() bool {
	switch c {
	case LossReclaimed, LossCapacity, LossQuota, LossInvalid, LossHost, LossGuest, LossThrottled, LossRequested:
		return true
	}
	return false
}

// Lost returns a NotFound error about a machine for which the cloud reports the
// cause.
func Lost(cause LossCause, format string, args ...any) error {
	wrapped := fmt.Errorf(format, args...)
	return &Error{Code: NotFound, Msg: wrapped.Error(), Cause: cause, Err: errors.Unwrap(wrapped)}
}

// LossCauseOf returns the cause that err, the answer about a machine, carries; ""
// if it carries none.
func LossCauseOf(err error) LossCause {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Cause
	}
	return ""
}
