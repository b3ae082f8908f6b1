package reconcile_test

import (
	"context"
	"iter"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// outside is the cloud of a crash enumeration: the provider under test, and controls
// that bypass all faults. simulated is the cloud in memory; wired (crash_wire_test.go)
// is a test cloud behind its real client.
type outside interface {
	nstance.Provider
	nstance.Balancer

	// Machines returns every machine that exists.
	Machines() []nstance.Machine

	// Existed reports whether there ever was a machine with that ID.
	Existed(id nstance.InstanceID) bool

	// Notices yields what the machine's metadata service announces.
	Notices(ctx context.Context, id nstance.InstanceID) iter.Seq2[nstance.Notice, error]

	Reclaim(id nstance.InstanceID, notice time.Duration) error
	Withdraw(id nstance.InstanceID) error
	Kill(id nstance.InstanceID) error

	// SetCapacity limits the number of machines.
	SetCapacity(n int)

	// AttachedTo returns the members of a load balancer, DeletedWhileMember the machines
	// that were deleted while they were members.
	AttachedTo(lb string) []string
	DeletedWhileMember() []nstance.InstanceID

	Close()
}

// simulated is the cloud in memory.
type simulated struct{ *simcloud.Cloud }

var _ outside = simulated{}

func (s simulated) Existed(id nstance.InstanceID) bool {
	_, exists := s.Spec(id)
	return exists
}

func (s simulated) Notices(ctx context.Context, id nstance.InstanceID) iter.Seq2[nstance.Notice, error] {
	return s.Detector(id).Watch(ctx)
}

func (s simulated) SetCapacity(n int) {
	s.Cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, n)
}
