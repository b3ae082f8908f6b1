package nstance

import (
	"errors"
	"fmt"
)

// A LossCause says why a machine that the cloud had accepted is dead or gone, as
// far as the cloud tells. While the machine boots, LossInvalid and LossGuest speak
// against what it was made from, and so does no cause on on-demand capacity:
// everything else is a loss.
type LossCause string

// The causes. Empty: the cloud does not say.
const (
	LossReclaimed LossCause = "reclaimed" // the cloud took spot capacity back
	LossCapacity  LossCause = "capacity"  // accepted, but there was no capacity to start it
	LossQuota     LossCause = "quota"     // accepted, but beyond a limit of the account
	LossInvalid   LossCause = "invalid"   // cannot start as specified, however often it is tried
	LossHost      LossCause = "host"      // the cloud's own failure or maintenance
	LossGuest     LossCause = "guest"     // powered off from inside
	LossRequested LossCause = "requested" // stopped or deleted through the cloud's API
)

// Lost returns a NotFound error about a machine of which the cloud still says why
// it is gone.
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
