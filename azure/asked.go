package azure

import (
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"github.com/nstance-go/nstance"
)

// changesAsked remembers which change of a machine was asked for last. Azure accepts a change,
// and may say later, in the instance view, that the machine's last operation has failed: the
// call that asks again quotes that. It is safe for concurrent use.
type changesAsked struct {
	mu   sync.Mutex
	last map[string]string // by name
}

// repeats reports whether a change was the last one that was asked for of a machine.
func (c *changesAsked) repeats(name, change string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil || len(c.last) >= maxSeen {
		c.last = map[string]string{}
	}
	known := c.last[name] == change
	c.last[name] = change
	return known
}

// forget forgets a machine that is gone.
func (c *changesAsked) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.last, name)
}

// failedBefore returns why the last operation on a machine has failed; nil: it has not, or this
// is not known.
func failedBefore(vm *armcompute.VirtualMachine) error {
	if vm.Properties == nil {
		return nil
	}
	if v := viewOf(vm.Properties.InstanceView); v.words != "" {
		return nstance.Errorf(nstance.Unavailable, "it was asked for again, since it has failed: %s", v.words)
	}
	return nil
}
