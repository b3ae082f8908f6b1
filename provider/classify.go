package provider

import (
	"context"
	"errors"

	"github.com/nstance-go/nstance"
)

// codeOf returns the code that the provider itself gave err, or "".
func codeOf(err error) nstance.Code {
	code := nstance.Code("")
	if e, ok := errors.AsType[*nstance.Error](err); ok {
		code = e.Code
	} else if c, ok := errors.AsType[nstance.Code](err); ok {
		code = c
	}
	switch code {
	case nstance.Invalid, nstance.NotFound, nstance.Conflict, nstance.Capacity, nstance.Quota,
		nstance.Throttled, nstance.Denied, nstance.Ambiguous, nstance.Unavailable, nstance.Internal:
		return code
	}
	return ""
}

// expired reports whether err is the error of an ended context.
func expired(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// classify gives an error of Get or Delete a code if the provider gave none.
func classify(err error) error {
	switch {
	case codeOf(err) != "":
		return err
	case expired(err):
		return nstance.Errorf(nstance.Unavailable, "no answer: %w", err)
	}
	return nstance.Errorf(nstance.Internal, "the provider did not classify this error: %w", err)
}

// classifyCreate does the same for Create: without an answer in time it is unknown
// whether the machine exists. A definite answer that came late stays definite.
// NotFound becomes Internal, because callers take it as proof of absence.
func classifyCreate(ctx context.Context, err error) error {
	code := codeOf(err)
	late := ctx.Err() != nil && (code == nstance.Unavailable || code == nstance.Internal)
	switch {
	case late, code == "" && (ctx.Err() != nil || expired(err)):
		return nstance.Errorf(nstance.Ambiguous, "no answer in time, the machine may exist: %w", err)
	case code == nstance.NotFound:
		return nstance.Errorf(nstance.Internal, "the provider refused a create as not found: %w", err)
	}
	return classify(err)
}

// classifyList does the same for List. NotFound becomes Internal: it is about a
// resource that the listing needs and says nothing about machines.
func classifyList(err error) error {
	if codeOf(err) == nstance.NotFound {
		return nstance.Errorf(nstance.Internal, "the provider answered a list with not found: %w", err)
	}
	return classify(err)
}
