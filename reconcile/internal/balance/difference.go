package balance

import (
	"cmp"
	"errors"
	"slices"

	"github.com/nstance-go/nstance"
)

// A difference is what has to join and to leave one load balancer.
type difference struct {
	join, leave []nstance.Machine
}

// difference compares b's members with those that it should have. Members that
// are not this shard's are left alone. Machines that are to join count as members
// from now on, until the call is answered: members are asked for twice, so that
// one whose deletion began in between is not joined.
func (k *Keeper) difference(b *balancer) difference {
	k.mu.Lock()
	t, all := b.target(), b.compareAll
	b.dirty, b.compareAll = false, false
	k.mu.Unlock()
	candidates := k.source.Members(t, all)
	k.mu.Lock()
	joining := map[string]bool{}
	for _, m := range candidates {
		if id := m.Machine.ProviderID; m.Membership == In && !b.members[id] {
			joining[id] = true
		}
	}
	b.joining = joining
	k.mu.Unlock()
	if len(joining) > 0 {
		candidates = k.source.Members(t, all)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var d difference
	b.joining = map[string]bool{}
	named := map[string]bool{} // of the deleted ones: the source decides about them
	for _, m := range candidates {
		id := m.Machine.ProviderID
		if _, deleted := b.deleted[id]; deleted {
			named[id] = true
		}
		switch {
		case m.Membership == In && joining[id]:
			d.join, b.joining[id] = append(d.join, m.Machine), true
		case m.Membership == In && !b.members[id]:
			b.dirty = true // it became ready in between
		case m.Membership == Out && b.members[id]:
			d.leave = append(d.leave, m.Machine)
		}
	}
	for id, m := range b.deleted {
		switch {
		case !b.members[id]:
			delete(b.deleted, id)
		case !named[id]:
			d.leave = append(d.leave, m)
		}
	}
	byID := func(a, b nstance.Machine) int { return cmp.Compare(a.ID, b.ID) }
	slices.SortFunc(d.join, byID)
	slices.SortFunc(d.leave, byID)
	return d
}

// ended records the end of one call. After an error the list is to be read again;
// until then a machine that may have joined counts as a member.
func (k *Keeper) ended(b *balancer, machines []nstance.Machine, in bool, err error) {
	k.mu.Lock()
	b.relist = b.relist || err != nil
	unknown := err != nil && !in
	for _, m := range machines {
		switch {
		case unknown:
		case in:
			b.members[m.ProviderID] = true
		default:
			delete(b.members, m.ProviderID)
			delete(b.deleted, m.ProviderID)
		}
	}
	k.mu.Unlock()
	if !in && !unknown {
		k.source.Withdrawn(machines)
	}
}

// batch is how many machines one call of a nstance.Balancer is given at most.
const batch = 100

// inBatches makes calls about some machines each. A batch that is refused for
// one of them is taken apart, so that it delays none of the others.
func (k *Keeper) inBatches(machines []nstance.Machine, call func([]nstance.Machine) error) error {
	var first error
	for some := range slices.Chunk(machines, batch) {
		if err := k.o.Check(); err != nil {
			return err
		}
		err := call(some)
		if len(some) > 1 && (errors.Is(err, nstance.NotFound) || errors.Is(err, nstance.Invalid)) {
			err = k.oneByOne(some, call)
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}

// oneByOne makes a call for each machine, and reports those that the provider does
// not know. An answer that is about no machine is that of the others, too.
func (k *Keeper) oneByOne(machines []nstance.Machine, call func([]nstance.Machine) error) error {
	var first error
	for i, m := range machines {
		if err := k.o.Check(); err != nil {
			return err
		}
		err := call(machines[i : i+1])
		switch nstance.CodeOf(err) {
		case nstance.Throttled, nstance.Unavailable:
			return cmp.Or(first, err)
		case nstance.NotFound:
			k.source.Suspect(m.ID)
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}
