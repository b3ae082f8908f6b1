package reconcile

import (
	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/loop"
)

func (r internals) Runtime(id nstance.InstanceID) (loop.Runtime, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[id]
	if m == nil || !m.group.defined() {
		return loop.Runtime{}, nstance.Errorf(nstance.NotFound, "no instance %s of a group that is known", id)
	}
	return loop.Runtime{
		Machine: m.machine, Seen: m.machine.ProviderID != "", Definition: m.group.spec.Definition, Hash: m.group.runtime,
		Frozen: r.freezeOf(m.group) != nil,
	}, nil
}

func (r internals) RuntimeHash(id nstance.InstanceID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.members[id]; m != nil && m.group.defined() {
		return m.group.runtime
	}
	return ""
}

func (r internals) RuntimeHashes() map[nstance.GroupKey]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[nstance.GroupKey]string, len(r.groups))
	for key, g := range r.groups {
		if g.defined() {
			out[key] = g.runtime
		}
	}
	return out
}
