package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/storage"
)

// fill makes a shard of registered instances, each with its machine. What is
// random in real records is random here, so that it packs no better.
func (b *bench) fill(ctx context.Context) error {
	b.epoch++
	recs := records.New(b.store, owner.Shard, &records.Options{Epoch: b.epoch})
	now := time.Now().UTC().Truncate(time.Millisecond)
	def, err := recs.PutDefinition(ctx, nstance.Definition{Kind: "web", Arch: nstance.AMD64})
	if err != nil {
		return err
	}
	for i := range b.n {
		id, err := nstance.NewInstanceID("web", now)
		if err != nil {
			return err
		}
		rec := records.Instance{
			ID: id, Tenant: nstance.DefaultTenant, Group: nstance.GroupID(fmt.Sprintf("web-%d", i%20)), Reason: "size",
			CreatedAt: now, CreatedEpoch: b.epoch, Definition: def, InfraHash: "v1:sha256:" + hex(32), RuntimeHash: "v1:sha256:" + hex(32),
			UserDataDigest: hex(32), Shape: records.Shape{InstanceType: "m7g.large", Subnet: "subnet-1", Market: nstance.Spot},
			Token: string(id) + "-" + hex(4), RegisteredAt: now, Hostname: "ip-10-0-0-1",
			Current: &records.KeyRecord{
				Fingerprint: hex(32), PublicKey: random(32), Serial: hex(16), Issuer: hex(20), NotBefore: now, NotAfter: now.Add(24 * time.Hour),
				Certificate: random(500),
			},
		}
		spec := nstance.MachineSpec{ID: id, Owner: owner, Group: rec.Group, CreatedAt: now, Arch: nstance.AMD64, Market: nstance.Spot, InstanceType: "m7g.large", Token: rec.Token}
		spec.Owner.Tenant = rec.Tenant
		mach, err := b.cloud.Create(ctx, spec)
		if err != nil {
			return err
		}
		rec.ProviderID = mach.ProviderID
		if _, err := recs.Create(ctx, rec); err != nil {
			return err
		}
		b.ids = append(b.ids, id)
	}
	return nil
}

// load returns the records as a leader of a term before has them.
func (b *bench) load(ctx context.Context) (*records.Records, error) {
	b.epoch++
	recs := records.New(b.store, owner.Shard, &records.Options{Epoch: b.epoch})
	_, problems, err := recs.Load(ctx)
	if err == nil && len(problems) > 0 {
		err = problems[0].Err
	}
	return recs, err
}

// save writes a snapshot.
func (b *bench) save(ctx context.Context) error {
	recs, err := b.load(ctx)
	if err == nil {
		_, err = recs.SaveSnapshot(ctx)
	}
	return err
}

// change changes two records in a hundred.
func (b *bench) change(ctx context.Context) error {
	recs, err := b.load(ctx)
	if err != nil {
		return err
	}
	for _, id := range b.ids[:b.n/50] {
		if _, err := recs.Update(ctx, id, func(rec *records.Instance) error { rec.Hostname = "renamed"; return nil }); err != nil {
			return err
		}
	}
	return nil
}

func random(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.Read(data) // never fails, by crypto/rand's documentation
	return data
}

func hex(n int) string { return fmt.Sprintf("%x", random(n)) }

// slow is a store whose answers take their time, as those of a service do.
type slow struct {
	storage.Store
	latency time.Duration
	gets    atomic.Int64
}

func (s *slow) reads() int { return int(s.gets.Load()) }

func (s *slow) wait(ctx context.Context) {
	sleep.For(ctx, s.latency)
}

// Get implements storage.Store.
func (s *slow) Get(ctx context.Context, key string) (storage.Object, error) {
	if strings.HasPrefix(key, "instance/") {
		s.gets.Add(1)
	}
	s.wait(ctx)
	return s.Store.Get(ctx, key)
}

// PutIfAbsent implements storage.Store.
func (s *slow) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	s.wait(ctx)
	return s.Store.PutIfAbsent(ctx, key, data)
}

// PutIfMatch implements storage.Store.
func (s *slow) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	s.wait(ctx)
	return s.Store.PutIfMatch(ctx, key, data, v)
}

// List implements storage.Store: each page takes an answer.
func (s *slow) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		n := 0
		s.wait(ctx)
		for e, err := range s.Store.List(ctx, prefix, after) {
			if n > 0 && n%page == 0 {
				s.wait(ctx)
			}
			if n++; !yield(e, err) {
				return
			}
		}
	}
}
