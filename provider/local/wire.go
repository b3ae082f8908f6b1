package local

import (
	"errors"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

// Bounds on messages, in bytes.
const (
	maxRequest = 4 << 20 // base64 makes user data larger by a third
	maxAnswer  = 1 << 20 // one machine, or one error
	maxMessage = 4 << 10 // text of an error
)

// The calls, as paths below /. Each is a POST of a request and is answered with
// status 200 and an answer; list, with one in each line.
const (
	pathCreate = "/create"
	pathGet    = "/get"
	pathList   = "/list"
	pathDelete = "/delete"
	pathPark   = "/park"
	pathWake   = "/wake"
)

// A request is one call, with the fields that the call needs.
type request struct {
	Spec    *nstance.MachineSpec `json:"spec,omitempty"`    // create, without its Args
	Args    []byte               `json:"args,omitempty"`    // create: unchanged, possibly not JSON
	ID      nstance.InstanceID   `json:"id,omitempty"`      // get
	Owner   nstance.Owner        `json:"owner,omitzero"`    // list
	Machine *nstance.Machine     `json:"machine,omitempty"` // delete, park, wake
	Mode    nstance.ParkMode     `json:"mode,omitempty"`    // park
}

// An answer has one of these.
type answer struct {
	Machine *nstance.Machine `json:"machine,omitempty"`
	Error   *failure         `json:"error,omitempty"`
	Done    bool             `json:"done,omitempty"` // of delete, park and wake; of list: its end
}

// A failure is an nstance.Error on the wire.
type failure struct {
	Code   nstance.Code      `json:"code"`
	Field  string            `json:"field,omitempty"`
	Msg    string            `json:"msg"`
	Remedy string            `json:"remedy,omitempty"`
	Cause  nstance.LossCause `json:"cause,omitempty"`
	Words  string            `json:"words,omitempty"`
}

func failureOf(err error) *failure {
	f := &failure{Code: nstance.CodeOf(err), Msg: err.Error()}
	if e, ok := err.(*nstance.Error); ok { //nolint:errorlint // only of the outermost error is Msg the whole text
		f.Field, f.Msg, f.Remedy = e.Field, e.Msg, e.Remedy
	}
	if e, ok := errors.AsType[*nstance.Error](err); ok {
		f.Cause, f.Words = e.Cause, clip.Text(e.Words, maxMessage)
	}
	f.Msg = clip.Text(f.Msg, maxMessage)
	return f
}

// codes are all codes: any other is from another version.
var codes = []nstance.Code{
	nstance.Invalid, nstance.NotFound, nstance.Conflict, nstance.Capacity, nstance.Quota,
	nstance.Throttled, nstance.Denied, nstance.Ambiguous, nstance.Unavailable, nstance.Internal,
}

func (f *failure) err() error {
	if !slices.Contains(codes, f.Code) {
		return nstance.Errorf(nstance.Internal, "unknown code %.64q: %s", f.Code, f.Msg)
	}
	return &nstance.Error{Code: f.Code, Field: f.Field, Msg: f.Msg, Remedy: f.Remedy, Cause: f.Cause, Words: f.Words}
}
