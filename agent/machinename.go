package agent

import (
	"context"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// A machineNamer is a detector that knows what the cloud calls this machine: a kind of
// provider, a slash, and a name.
type machineNamer interface {
	Machine(ctx context.Context) (string, error)
}

const (
	// maxNameWait bounds how long the first session waits for the name of the machine.
	maxNameWait = 2 * time.Second
	// maxNameBackoff is the longest pause between two attempts to read it.
	maxNameBackoff = time.Minute
)

// A machineName is what the cloud calls this machine. Sessions carry it, so that the server
// can refuse a machine that was made from another one with all that is on its disk, the
// instance ID included. Sessions that begin before it can be read go without.
type machineName struct {
	settled chan struct{} // closed when sessions wait for the name no longer
	once    sync.Once

	mu   sync.Mutex
	name string // empty: not known
}

func newMachineName() *machineName { return &machineName{settled: make(chan struct{})} }

// learn reads the name from the metadata service until it answers or ctx ends.
func (n *machineName) learn(ctx context.Context, d nstance.SpotDetector) {
	defer n.settle("")
	namer, can := d.(machineNamer)
	if !can {
		return
	}
	for failures := 0; ctx.Err() == nil; failures++ {
		name, err := namer.Machine(ctx)
		switch nstance.CodeOf(err) {
		case "":
			n.settle(name)
			return
		case nstance.NotFound, nstance.Internal:
			return // the service is an imitation
		}
		n.settle("")
		sleep.For(ctx, backoff(failures, maxNameBackoff))
	}
}

func (n *machineName) settle(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if name != "" {
		n.name = name
	}
	n.once.Do(func() { close(n.settled) })
}

// wait returns the name, for which the first call waits a moment.
func (n *machineName) wait(ctx context.Context) string {
	timer := time.NewTimer(maxNameWait)
	defer timer.Stop()
	select {
	case <-n.settled:
	case <-ctx.Done():
	case <-timer.C:
		n.settle("")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.name
}
