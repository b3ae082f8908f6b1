package storage_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestProbe(t *testing.T) {
	t.Run("leaves nothing behind", func(t *testing.T) {
		s := storage.NewMemory()
		require.NoError(t, storage.Probe(t.Context(), s))
		for e := range s.List(t.Context(), "", "") {
			require.Fail(t, "left", "%v", e)
		}
	})
	for name, s := range map[string]storage.Store{
		"ignores if-absent":           unconditionalStore{Memory: storage.NewMemory(), absent: true},
		"ignores if-match":            unconditionalStore{Memory: storage.NewMemory(), match: true},
		"ignores if-match when gone":  unconditionalStore{Memory: storage.NewMemory(), gone: true},
		"ignores if-absent in a race": &checkThenWriteStore{Memory: storage.NewMemory(), meet: make(chan struct{})},
	} {
		t.Run("refuses a back end that "+name, func(t *testing.T) {
			err := storage.Probe(t.Context(), s)
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, "this storage cannot be used")
		})
	}
	t.Run("passes on errors that are not about conditions", func(t *testing.T) {
		for skip := range 4 {
			f := storagetest.NewFaulty(storage.NewMemory())
			f.Inject(storagetest.Fault{Skip: skip, Times: -1, Err: nstance.Errorf(nstance.Denied, "no access")})
			err := storage.Probe(t.Context(), f)
			require.ErrorIs(t, err, nstance.Denied)
			require.ErrorContains(t, err, "no access")
		}
	})
}

// TestProbeLeavesNothing: after any failed call, nothing is left or the next probe
// removes it.
func TestProbeLeavesNothing(t *testing.T) {
	left := func(t *testing.T, s storage.Store) (keys []string) {
		t.Helper()
		for e, err := range s.List(t.Context(), "", "") {
			require.NoError(t, err)
			keys = append(keys, e.Key)
		}
		return keys
	}
	const calls = 7 + 9 // of the sequence and of the race
	for _, mode := range []storagetest.Mode{storagetest.Refuse, storagetest.LoseAnswer} {
		for skip := range calls {
			mem := storage.NewMemory()
			f := storagetest.NewFaulty(mem)
			f.Inject(storagetest.Fault{Skip: skip, Mode: mode, Err: nstance.Ambiguous})
			_ = storage.Probe(t.Context(), f)
			require.Empty(t, left(t, mem), "call %d failed, mode %d", skip, mode)
		}
	}
	for name, cut := range map[string]storagetest.Fault{
		"storage that fails for good": {Skip: 1, Times: -1},
		"a lack of the right":         {Op: storagetest.Delete, Times: -1, Err: nstance.Denied},
	} {
		t.Run("objects left by "+name+" are removed by a later probe", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := storage.NewMemory()
				f := storagetest.NewFaulty(mem)
				f.Inject(cut)
				require.Error(t, storage.Probe(t.Context(), f))
				standing := left(t, mem)
				require.NotEmpty(t, standing)
				require.NoError(t, storage.Probe(t.Context(), mem))
				require.Equal(t, standing, left(t, mem), "another one may be under way")
				<-time.After(2 * time.Hour)
				require.NoError(t, storage.Probe(t.Context(), mem))
				require.Empty(t, left(t, mem))
			})
		})
	}
	t.Run("a cancelled probe cleans up", func(t *testing.T) {
		mem := storage.NewMemory()
		f := storagetest.NewFaulty(mem)
		ctx, cancel := context.WithCancel(t.Context())
		f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Pass: true, Do: cancel})
		require.ErrorIs(t, storage.Probe(ctx, f), context.Canceled)
		require.Empty(t, left(t, mem))
	})
}

// unconditionalStore overwrites where it must refuse.
type unconditionalStore struct {
	*storage.Memory
	absent, match, gone bool
}

func (s unconditionalStore) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	v, err := s.Memory.PutIfAbsent(ctx, key, data)
	if err != nil && s.absent {
		return s.force(ctx, key, data)
	}
	return v, err
}

func (s unconditionalStore) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	out, err := s.Memory.PutIfMatch(ctx, key, data, v)
	if err != nil && s.match {
		return s.force(ctx, key, data)
	}
	if err != nil && s.gone {
		if v, err := s.Memory.PutIfAbsent(ctx, key, data); err == nil {
			return v, nil
		}
	}
	return out, err
}

func (s unconditionalStore) force(ctx context.Context, key string, data []byte) (storage.Version, error) {
	obj, err := s.Get(ctx, key)
	if err != nil {
		return s.Memory.PutIfAbsent(ctx, key, data)
	}
	return s.Memory.PutIfMatch(ctx, key, data, obj.Version)
}

// checkThenWriteStore checks first and writes afterwards: the fifth and the sixth writer of an absent
// object both see it absent.
type checkThenWriteStore struct {
	*storage.Memory
	mu   sync.Mutex
	n    int
	meet chan struct{}
}

func (s *checkThenWriteStore) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	if _, err := s.Get(ctx, key); err == nil {
		return "", nstance.Conflict
	}
	s.mu.Lock()
	s.n++
	n := s.n
	s.mu.Unlock()
	switch n {
	case 2: // the first of the race
		<-s.meet
	case 3:
		defer close(s.meet)
	}
	if v, err := s.Memory.PutIfAbsent(ctx, key, data); err == nil {
		return v, nil
	}
	return storage.Version(data), nil
}

// onePerSecond is a store that permits one write a second to one object, as Google and
// Cloudflare document of theirs. What it throttles has no effect.
type onePerSecond struct {
	*storage.Memory
	counted bool // refused writes count, too

	mu   sync.Mutex
	last map[string]time.Time
}

func (s *onePerSecond) limit(key string, write func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, written := s.last[key]; written && time.Since(last) < time.Second {
		return nstance.Errorf(nstance.Throttled, "put %s: the store answers 429 rateLimitExceeded", key)
	}
	err := write()
	if err == nil || s.counted {
		s.last[key] = time.Now()
	}
	return err
}

func (s *onePerSecond) PutIfAbsent(ctx context.Context, key string, data []byte) (v storage.Version, err error) {
	err = s.limit(key, func() (err error) { v, err = s.Memory.PutIfAbsent(ctx, key, data); return err })
	return v, err
}

func (s *onePerSecond) PutIfMatch(ctx context.Context, key string, data []byte, match storage.Version) (v storage.Version, err error) {
	err = s.limit(key, func() (err error) { v, err = s.Memory.PutIfMatch(ctx, key, data, match); return err })
	return v, err
}

func (s *onePerSecond) DeleteIfMatch(ctx context.Context, key string, match storage.Version) error {
	return s.limit(key, func() error { return s.Memory.DeleteIfMatch(ctx, key, match) })
}

func TestProbeWaitsForAStoreThatThrottles(t *testing.T) {
	for name, counted := range map[string]bool{"successful writes count": false, "all writes count": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &onePerSecond{Memory: storage.NewMemory(), counted: counted, last: map[string]time.Time{}}
				began := time.Now()
				require.NoError(t, storage.Probe(t.Context(), s))
				require.Less(t, time.Since(began), time.Minute)
				for e := range s.List(t.Context(), "", "") {
					require.Fail(t, "left", "%v", e)
				}
			})
		})
	}
	t.Run("but not for ever", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := storagetest.NewFaulty(storage.NewMemory())
			f.Inject(storagetest.Fault{Times: -1, Err: nstance.Errorf(nstance.Throttled, "slow down")})
			began := time.Now()
			err := storage.Probe(t.Context(), f)
			require.ErrorIs(t, err, nstance.Throttled)
			require.Less(t, time.Since(began), 2*time.Minute)
		})
	})
}
