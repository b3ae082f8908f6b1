package sim

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

var _ storage.Dated = linkedStore{}

// linkedStore is the store behind a server's link.
type linkedStore struct {
	*witness
	p *process
	l *link
}

func (s linkedStore) Get(ctx context.Context, key string) (obj storage.Object, err error) {
	sent := time.Now()
	if lerr := s.l.carry(ctx, func() { obj, err = s.Store.Get(ctx, key) }); lerr != nil {
		return storage.Object{}, readLost(lerr)
	}
	s.p.recordDate(sent)
	return obj, err
}

func (s linkedStore) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	return s.write(ctx, key, data, "", func() (storage.Version, error) {
		return s.Store.PutIfAbsent(context.WithoutCancel(ctx), key, data)
	})
}

func (s linkedStore) PutIfMatch(ctx context.Context, key string, data []byte, old storage.Version) (storage.Version, error) {
	return s.write(ctx, key, data, old, func() (storage.Version, error) {
		return s.Store.PutIfMatch(context.WithoutCancel(ctx), key, data, old)
	})
}

// write executes a write, again if the client library repeats it: a write that landed
// already is then refused.
func (s linkedStore) write(ctx context.Context, key string, data []byte, old storage.Version, do func() (storage.Version, error)) (v storage.Version, err error) {
	s.checkTermAtSend(key)
	t, _ := s.p.last()
	for {
		sent := time.Now()
		lerr := s.l.carry(ctx, func() { v, err = s.put(s.p, t, key, data, old, do) })
		switch {
		case lerr == nil:
			s.p.recordDate(sent)
			return v, err
		case nstance.CodeOf(lerr) != nstance.Ambiguous || !s.l.repeats():
			return "", lerr
		}
	}
}

// checkTermAtSend checks the term of a server that writes. Writes of the lease need no term.
func (s linkedStore) checkTermAtSend(key string) {
	if !strings.Contains(key, "lease") {
		s.w.check.checkTermAtSend(s.p, "a write of "+key)
	}
}

func (s linkedStore) DeleteIfMatch(ctx context.Context, key string, v storage.Version) (err error) {
	s.checkTermAtSend(key)
	sent := time.Now()
	if lerr := s.l.carry(ctx, func() { err = s.remove(context.WithoutCancel(ctx), key, v) }); lerr != nil {
		return lerr
	}
	s.p.recordDate(sent)
	return err
}

func (s linkedStore) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		var entries []storage.Entry
		var failed error
		err := s.l.carry(ctx, func() {
			for e, err := range s.Store.List(ctx, prefix, after) {
				if err != nil {
					failed = err
					return
				}
				entries = append(entries, e)
			}
		})
		if err == nil {
			err = failed
		}
		for _, e := range entries {
			if err == nil && !yield(e, nil) {
				return
			}
		}
		if err != nil {
			yield(storage.Entry{}, readLost(err))
		}
	}
}

// readLost is the error of a lost read: it is never ambiguous.
func readLost(err error) error {
	if errors.Is(err, nstance.Throttled) {
		return err
	}
	return &nstance.Error{Code: nstance.Unavailable, Msg: err.Error(), Err: err}
}

// linkedProvider is a provider behind a link, watched by the checker.
type linkedProvider struct {
	cloud truthCloud
	p     *process
	l     *link
	c     *checker
}

func (p linkedProvider) Create(ctx context.Context, spec nstance.MachineSpec) (m nstance.Machine, err error) {
	if p.c.checkTermAtSend(p.p, "a create") {
		p.c.checkCreate(spec)
	}
	lerr := p.l.carry(ctx, func() {
		m, err = p.cloud.Create(context.WithoutCancel(ctx), spec)
		p.c.recordCreateAnswer(err)
		p.c.logTrace("create %s for %s: %v", spec.ID, p.p.name, err)
	})
	if lerr != nil {
		return nstance.Machine{}, lerr
	}
	return m, err
}

func (p linkedProvider) Get(ctx context.Context, id nstance.InstanceID) (m nstance.Machine, err error) {
	if lerr := p.l.carry(ctx, func() {
		m, err = p.cloud.Get(ctx, id)
		p.c.recordLoss(cmp.Or(m.Cause, nstance.LossCauseOf(err)))
		p.c.logTrace("get %s for %s: %s %v", id, p.p.name, m.Status, err)
	}); lerr != nil {
		return nstance.Machine{}, readLost(lerr)
	}
	return m, err
}

func (p linkedProvider) Delete(ctx context.Context, m nstance.Machine) (err error) {
	p.c.checkTermAtSend(p.p, "a delete")
	lerr := p.l.carry(ctx, func() {
		p.c.checkDelete(m)
		err = p.cloud.Delete(context.WithoutCancel(ctx), m)
		p.c.logTrace("delete %s for %s: %v", m.ID, p.p.name, err)
	})
	if lerr != nil {
		return lerr
	}
	return err
}

func (p linkedProvider) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		if err := p.l.carry(ctx, func() {}); err != nil {
			yield(nstance.Machine{}, readLost(err))
			return
		}
		for m, err := range p.cloud.List(ctx, owner) {
			p.c.recordLoss(m.Cause)
			if !yield(m, err) {
				return
			}
		}
	}
}
