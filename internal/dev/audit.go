package dev

import (
	"context"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
)

// A balance is what deaths have cost. All of it must be zero.
type balance struct {
	leaked     int // machines without a record
	duplicated int // machines more than one for an instance, or for a need
	lost       int // instances that should be there, and are not
}

// records reads what is in storage.
func (p *play) records(ctx context.Context) (map[nstance.InstanceID]records.Instance, error) {
	list, problems, err := records.New(p.depot.store, shardID, nil).Load(ctx)
	if err != nil {
		return nil, err
	}
	for _, problem := range problems {
		return nil, problem.Err
	}
	out := map[nstance.InstanceID]records.Instance{}
	for _, rec := range list {
		out[rec.ID] = rec
	}
	return out, nil
}

// audit compares storage, cloud and processes with what should be.
func (p *play) audit(ctx context.Context) error { return p.auditSize(ctx, p.size) }

// auditSize is audit with that many members of all groups.
func (p *play) auditSize(ctx context.Context, size int) error {
	p.stage = "audit"
	found, err := p.find(ctx)
	if err != nil {
		return err
	}
	b := found.weigh(size, p.failoverState.fresh, p.failoverState.stay)
	p.balance = &b
	if b != (balance{}) {
		return nstance.Errorf(nstance.Internal, "%d machines leaked, %d are superfluous, %d instances were lost", b.leaked, b.duplicated, b.lost)
	}
	return nil
}

// find looks into storage, cloud and processes.
func (p *play) find(ctx context.Context) (f findings, err error) {
	recs, err := p.records(ctx)
	if err != nil {
		return f, err
	}
	machines, err := p.list(ctx)
	if err != nil {
		return f, err
	}
	if f.running, err = p.home.running(); err != nil {
		return f, err
	}
	f.made = p.cloud.front().count()
	for id := range recs {
		f.records = append(f.records, id)
	}
	for _, m := range machines {
		f.machines = append(f.machines, m.ID)
	}
	return f, nil
}

// findings are what there is in the end.
type findings struct {
	records, machines []nstance.InstanceID       // in storage, and in the cloud
	running           map[nstance.InstanceID]int // processes of machines
	made              map[nstance.InstanceID]int // machines made, for each instance that one was asked for
}

// any number of new instances may have been asked for.
const anyNumber = -1

// weigh compares the findings with what should be: so many members, at most so
// many new ones asked for, and some that are as they were.
func (f findings) weigh(size, fresh int, stay map[nstance.InstanceID]int) (b balance) {
	machines := map[nstance.InstanceID]int{}
	for _, id := range f.machines {
		machines[id]++
	}
	for id := range f.running {
		machines[id] = max(1, machines[id])
	}
	for id, n := range machines {
		if !slices.Contains(f.records, id) {
			b.leaked += n
		}
		b.duplicated += n - 1
	}
	for _, n := range f.made {
		b.duplicated += max(0, n-1)
	}
	if fresh != anyNumber {
		b.duplicated += max(0, len(f.made)-fresh)
	}
	whole := 0 // records with all that belongs to them
	for _, id := range f.records {
		pid, was := stay[id]
		if machines[id] > 0 && f.running[id] != 0 && (!was || pid == f.running[id]) {
			whole++
		}
	}
	b.lost = max(0, size-whole)
	return b
}
