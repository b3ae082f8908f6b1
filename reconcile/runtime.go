package reconcile

import (
	"github.com/nstance-go/nstance"
)

// Runtime returns what an instance should have now, by its group. It fails with
// NotFound when there is no such instance, or its group has no
// definition. The caller must not change it.
func (r *Admin) Runtime(id nstance.InstanceID) (RuntimeView, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[id]
	if m == nil || !m.group.defined() {
		return RuntimeView{}, nstance.Errorf(nstance.NotFound, "no instance %s of a group that is known", id)
	}
	return RuntimeView{
		Machine: m.machine, Seen: m.machine.ProviderID != "", Definition: m.group.spec.Definition, Hash: m.group.runtime,
		Frozen: r.freezeOf(m.group) != nil,
	}, nil
}

// RuntimeHashes returns what every group wants.
func (r *Admin) RuntimeHashes() map[nstance.GroupKey]string {
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
