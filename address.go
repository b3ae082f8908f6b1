package nstance

import "context"

// An AddressMover is a Provider of a cloud where an address can move from one
// machine to another, such as a secondary address of a network interface. It
// is an ability that a Provider may have beside its own methods: callers find it
// by type assertion. It acts for the machine on which it runs.
//
// Implementations are safe for concurrent use, return promptly when ctx is
// done, and classify every error with a Code. provider/providertest checks
// this contract.
type AddressMover interface {
	// TakeAddress moves address to this machine, wherever it is now. Nil means
	// that the cloud has accepted it. Taking an address that is at this machine
	// already changes nothing. Fails with NotFound when there is no such address,
	// Invalid when it is not an address, Denied, Throttled, and Ambiguous when it
	// may have been moved: repeat the call.
	TakeAddress(ctx context.Context, address string) error

	// HoldsAddress reports whether address is at this machine. An error is not
	// a no. Fails with NotFound when there is no such address.
	HoldsAddress(ctx context.Context, address string) (bool, error)
}
