package nstance

import (
	"context"
	"errors"
	"fmt"
)

// A Code says what the caller does next. The set is closed, and a Code is
// itself an error, so errors.Is(err, nstance.Capacity) is how callers decide.
type Code string

// The codes. docs/errors.md lists which method returns which.
const (
	Invalid     Code = "invalid"     // the request is wrong: fix it, repeating is useless
	NotFound    Code = "not_found"   // definitely absent; never used for a failed read
	Conflict    Code = "conflict"    // exists already, or changed meanwhile: read, then decide again
	Capacity    Code = "capacity"    // sold out here: try another shape or place
	Quota       Code = "quota"       // an account limit: raise it at the cloud
	Throttled   Code = "throttled"   // too many calls: slow down, then repeat
	Denied      Code = "denied"      // the caller's credentials or role do not permit it
	Ambiguous   Code = "ambiguous"   // it may have happened: look before repeating
	Unavailable Code = "unavailable" // no answer: repeat with backoff
	Internal    Code = "internal"    // unclassified: report it
)

// Error makes a Code usable as the target of errors.Is.
func (c Code) Error() string { return string(c) }

// An Error is a classified failure. Adapters classify once, at the edge; the
// layers above add context with %w and leave the code alone.
type Error struct {
	Code               Code
	Field              string    // the input that is wrong, as a path such as groups.default.web.size; may be empty
	Msg                string    // lower case, free of secrets
	Remedy             string    // what to do about it; may be empty
	Leader             string    // with Unavailable from a standby: the leader's operator API address; empty: unknown
	LeaderRegistration string    // with Leader: the leader's registration address, for callers without certificate; empty: unknown
	Cause              LossCause // with NotFound about a machine: why it is gone; empty: the cloud does not say
	Words              string    // with NotFound about a machine: what the cloud says of its end, in its own words; empty: nothing
	Err                error     // the wrapped error, already part of Msg; may be nil
}

// Error returns field, message and remedy in one line.
func (e *Error) Error() string {
	s := e.Msg
	if e.Field != "" {
		s = e.Field + ": " + s
	}
	if e.Remedy != "" {
		s += " (" + e.Remedy + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is the error's own code.
func (e *Error) Is(target error) bool {
	c, ok := target.(Code)
	return ok && c == e.Code
}

// Errorf returns an Error of the given code. It is for the edge where an error
// is classified: wrap a cause that has no code with %w. Above that edge add
// context with fmt.Errorf and leave the code alone.
func Errorf(code Code, format string, args ...any) error {
	wrapped := fmt.Errorf(format, args...)
	return &Error{Code: code, Msg: wrapped.Error(), Err: errors.Unwrap(wrapped)}
}

// FieldError returns an Invalid error that names the field and the remedy.
func FieldError(field, remedy, format string, args ...any) error {
	return &Error{Code: Invalid, Field: field, Remedy: remedy, Msg: fmt.Sprintf(format, args...)}
}

// CodeOf returns the code of err: the outermost one in its chain, Internal for
// an error without any, and "" for nil. Contexts that ended are Unavailable.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	if c, ok := errors.AsType[Code](err); ok {
		return c
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return Unavailable
	}
	return Internal
}
