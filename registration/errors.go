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

// refuse returns an error about a nonce.
func refuse(code nstance.Code, remedy, format string, args ...any) error {
	return refuseField(code, "nonce", remedy, format, args...)
}

func refuseField(code nstance.Code, field, remedy, format string, args ...any) error {
	return &nstance.Error{Code: code, Field: field, Remedy: remedy, Msg: fmt.Sprintf(format, args...)}
}
