package registration

import (
	"errors"
	"fmt"

	"github.com/nstance-go/nstance"
)

// Results of a conditional write. They are not returned to callers.
var (
	errIssued     = errors.New("a certificate has been issued already")
	errSuperseded = errors.New("certificate has been superseded")
)

// foreign returns a Denied error about a nonce.
func foreign(remedy, format string, args ...any) error {
	return refuseField(nstance.Denied, "nonce", remedy, format, args...)
}

func refuseField(code nstance.Code, field, remedy, format string, args ...any) error {
	return &nstance.Error{Code: code, Field: field, Remedy: remedy, Msg: fmt.Sprintf(format, args...)}
}
