package keyring

import (
	"fmt"

	"github.com/nstance-go/nstance"
)

// refuse returns an error about a nonce.
func refuse(code nstance.Code, remedy, format string, args ...any) error {
	return refuseField(code, "nonce", remedy, format, args...)
}

func refuseField(code nstance.Code, field, remedy, format string, args ...any) error {
	return &nstance.Error{Code: code, Field: field, Remedy: remedy, Msg: fmt.Sprintf(format, args...)}
}
