package storagetest

import (
	"errors"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// Bounds of a rush. A store in memory that checks, unlocks and writes has two winners in
// one of ten rounds if the writers spin until they start; behind a channel, in one of a
// thousand.
const (
	rushWriters   = 4
	rushMinRounds = 100
	rushRounds    = 20_000      // at most
	rushTime      = time.Second // after the least rounds
	rushSpins     = 100         // looks at the others before a writer gives up its processor
)

// A rush is many rounds of writers that start at the same moment, each round with a key
// of its own. It calls the store directly: to record calls would keep them apart.
type rush struct {
	prepare func(key string) error // before a round
	write   func(key string) error

	arrived atomic.Int64
	rounds  atomic.Int64
	winners [rushRounds]atomic.Int32
}

// run requires that no round has more than one winner.
func (r *rush) run(t *testing.T) {
	t.Helper()
	r.rounds.Store(rushRounds)
	var wg sync.WaitGroup
	for range rushWriters - 1 {
		wg.Go(func() { r.follow(t, func(int) {}) })
	}
	began := time.Now()
	wg.Go(func() {
		r.follow(t, func(round int) {
			if round >= rushMinRounds && time.Since(began) > rushTime {
				r.rounds.Store(int64(round))
			} else if err := r.prepare(rushKey(round)); err != nil {
				r.rounds.Store(int64(round))
				t.Errorf("before round %d: %v", round, err)
			}
		})
	})
	wg.Wait()
	for round := range r.rounds.Load() {
		require.LessOrEqual(t, r.winners[round].Load(), int32(1), "writers that succeeded in round %d: check and write under one lock, or in one conditional request", round)
	}
}

// follow writes once in each round, after before.
func (r *rush) follow(t *testing.T, before func(round int)) {
	for round := range rushRounds {
		before(round)
		key := rushKey(round)
		r.arrived.Add(1)
		for spins := 0; r.arrived.Load() < rushWriters*int64(round+1); spins++ {
			if spins > rushSpins {
				runtime.Gosched()
			}
		}
		if int64(round) >= r.rounds.Load() {
			return
		}
		switch err := r.write(key); {
		case err == nil:
			r.winners[round].Add(1)
		case !errors.Is(err, nstance.Conflict):
			t.Errorf("round %d: %v", round, err)
		}
	}
}

func rushKey(round int) string { return "rush/" + strconv.Itoa(round) }

// direct returns the store without what records its calls.
func direct(s storage.Store) storage.Store {
	if r, ok := s.(recorded); ok {
		return r.store
	}
	return s
}

func absentRush(t *testing.T, s storage.Store) {
	s = direct(s)
	r := rush{
		prepare: func(string) error { return nil },
		write: func(key string) error {
			_, err := s.PutIfAbsent(t.Context(), key, []byte("x"))
			return err
		},
	}
	r.run(t)
}

func matchRush(t *testing.T, s storage.Store) {
	s = direct(s)
	var held atomic.Value
	r := rush{
		prepare: func(key string) error {
			v, err := s.PutIfAbsent(t.Context(), key, []byte("start"))
			held.Store(v)
			return err
		},
		write: func(key string) error {
			_, err := s.PutIfMatch(t.Context(), key, []byte("x"), held.Load().(storage.Version))
			return err
		},
	}
	r.run(t)
}
