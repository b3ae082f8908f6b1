package main

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// A shelf is the shortest provider that keeps the contract: machines in memory.
type shelf struct {
	mu       sync.Mutex
	machines map[nstance.InstanceID]item
}

type item struct {
	machine nstance.Machine
	spec    string // fingerprint of what it was made from
}

func (s *shelf) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	if err := provider.ValidateSpec(spec, 16<<10); err != nil {
		return nstance.Machine{}, err
	}
	if err := provider.DecodeArgs(spec.Args, &struct{}{}); err != nil {
		return nstance.Machine{}, err
	}
	if spec.Market == nstance.Spot {
		return nstance.Machine{}, nstance.FieldError("market.type", "use on-demand", "a shelf has no spot capacity")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return nstance.Machine{}, nstance.Errorf(nstance.Unavailable, "nothing was done: %w", ctx.Err())
	}
	made := provider.Fingerprint(spec)
	if known, exists := s.machines[spec.ID]; exists {
		if known.spec != made {
			return nstance.Machine{}, nstance.Errorf(nstance.Conflict, "machine %s exists with other parameters", spec.ID)
		}
		return known.machine, nil
	}
	m := nstance.Machine{
		ID: spec.ID, ProviderID: "shelf/" + string(spec.ID), Owner: spec.Owner, Group: spec.Group, CreatedAt: spec.CreatedAt,
		Epoch: spec.Epoch, Status: nstance.StatusRunning, InstanceType: spec.InstanceType, Market: nstance.OnDemand,
	}
	s.machines[spec.ID] = item{m, made}
	return m, nil
}

func (s *shelf) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return nstance.Machine{}, nstance.Errorf(nstance.Unavailable, "nothing was read: %w", ctx.Err())
	}
	known, exists := s.machines[id]
	if !exists {
		return nstance.Machine{}, nstance.Errorf(nstance.NotFound, "no machine %s", id)
	}
	return known.machine, nil
}

func (s *shelf) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		s.mu.Lock()
		all := slices.Collect(maps.Values(s.machines)) // no lock while it yields
		s.mu.Unlock()
		for _, known := range all {
			if ctx.Err() != nil {
				yield(nstance.Machine{}, nstance.Errorf(nstance.Unavailable, "the list is incomplete: %w", ctx.Err()))
				return
			}
			if owner.Owns(known.machine.Owner) && !yield(known.machine, nil) {
				return
			}
		}
	}
}

func (s *shelf) Delete(ctx context.Context, m nstance.Machine) error {
	known, err := s.Get(ctx, cmp.Or(nstance.InstanceID(strings.TrimPrefix(m.ProviderID, "shelf/")), m.ID))
	if err != nil {
		return err
	}
	if known.Owner != m.Owner || known.ID != m.ID {
		return nstance.Errorf(nstance.Conflict, "%s is not machine %s of this owner", m.ProviderID, m.ID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.machines, m.ID)
	return nil
}
