package lease_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// slow is a store with latency: half of it before the effect.
type slow struct {
	storage.Store
	mu       sync.Mutex
	get, put time.Duration
	bounds   []time.Duration // time until each request's context was done, if it was
	causes   []error         // their causes
}

func (s *slow) wait(ctx context.Context, d time.Duration) error {
	began := time.Now()
	if !after(ctx, d) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.bounds, s.causes = append(s.bounds, time.Since(began)), append(s.causes, context.Cause(ctx))
		return nstance.Errorf(nstance.Ambiguous, "slow: %w", ctx.Err())
	}
	return nil
}

func (s *slow) pace(get, put time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.get, s.put = get, put
}

func (s *slow) paces() (get, put time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.get, s.put
}

func (s *slow) Get(ctx context.Context, key string) (storage.Object, error) {
	d, _ := s.paces()
	if err := s.wait(ctx, d/2); err != nil {
		return storage.Object{}, err
	}
	obj, err := s.Store.Get(ctx, key)
	if err := s.wait(ctx, d/2); err != nil {
		return storage.Object{}, err
	}
	return obj, err
}

func (s *slow) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	_, d := s.paces()
	if err := s.wait(ctx, d/2); err != nil {
		return "", err
	}
	out, err := s.Store.PutIfMatch(ctx, key, data, v)
	if err := s.wait(ctx, d/2); err != nil {
		return "", err
	}
	return out, err
}

func (s *slow) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	_, d := s.paces()
	if err := s.wait(ctx, d); err != nil {
		return "", err
	}
	return s.Store.PutIfAbsent(ctx, key, data)
}

// stuck is a store whose writes do not end with their context while it hangs.
type stuck struct {
	storage.Store
	hangs   atomic.Bool
	release chan struct{}
}

func (s *stuck) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	if s.hangs.Load() {
		<-s.release
	}
	return s.Store.PutIfMatch(ctx, key, data, v)
}

func writeID(t *testing.T, s storage.Store) string {
	var w written
	require.NoError(t, json.Unmarshal([]byte(content(t, s)), &w))
	return w.WriteID
}

// termDuration returns how long the term lasts, by its context alone.
func termDuration(term *lease.Term) time.Duration {
	began := time.Now()
	<-term.Context().Done()
	return time.Since(began)
}

func TestTermOfTheHolder(t *testing.T) {
	bubble(t, "is renewed every third of the ttl, without a read", func(t *testing.T) {
		f := storagetest.NewFaulty(newShardStore(t))
		term := campaign(t, candidate(t, f, lease.Options{}))
		f.Reset()
		after(t.Context(), 60*time.Second+time.Millisecond)
		require.NoError(t, term.Err())
		require.Equal(t, 30, f.Count(storagetest.PutIfMatch))
		require.Equal(t, 30, f.Count(""))
	})
	bubble(t, "is as old as its last renewal", func(t *testing.T) {
		s := &slow{Store: newShardStore(t)}
		l := candidate(t, s, lease.Options{})
		after(t.Context(), time.Hour)
		term := campaign(t, l)
		after(t.Context(), 1500*time.Millisecond)
		require.Equal(t, 1500*time.Millisecond, term.Age())
		after(t.Context(), time.Second) // renewed after 2 s
		require.Equal(t, 500*time.Millisecond, term.Age())
		s.pace(0, time.Hour)
		after(t.Context(), 2*time.Second)
		require.Equal(t, 2500*time.Millisecond, term.Age(), "an attempt is no renewal")
	})
	bubble(t, "gives every write an ID of its own", func(t *testing.T) {
		s := newShardStore(t)
		campaign(t, candidate(t, s, lease.Options{}))
		ids := map[string]bool{}
		for range 10 {
			ids[writeID(t, s)] = true
			after(t.Context(), 2*time.Second)
			synctest.Wait()
		}
		require.Len(t, ids, 10)
	})
	bubble(t, "lasts ttl less a sixth from the send time of the take, and ends by itself", func(t *testing.T) {
		s := &slow{Store: newShardStore(t), put: 700 * time.Millisecond}
		term := campaign(t, candidate(t, s, lease.Options{TTL: 9 * time.Second}))
		s.pace(0, time.Hour)
		require.Equal(t, 9*time.Second-1500*time.Millisecond-700*time.Millisecond, termDuration(term))
		require.ErrorIs(t, term.Err(), nstance.Unavailable)
		require.ErrorContains(t, term.Err(), "term 1 is over: it was not renewed in time")
	})
	bubble(t, "counts whole milliseconds of its ttl, as standbys do", func(t *testing.T) {
		s := &slow{Store: newShardStore(t)}
		term := campaign(t, candidate(t, s, lease.Options{TTL: 6*time.Second + 999*time.Microsecond}))
		s.pace(0, time.Hour)
		require.Equal(t, 5*time.Second, termDuration(term))
	})
	bubble(t, "lasts as long from the send time of the last renewal", func(t *testing.T) {
		s := &slow{Store: newShardStore(t)}
		term := campaign(t, candidate(t, s, lease.Options{}))
		s.pace(0, 800*time.Millisecond)
		after(t.Context(), 3*time.Second) // one renewal: sent at 2s, answered at 2.8s
		s.pace(0, time.Hour)
		require.Equal(t, 4*time.Second, termDuration(term))
	})
	bubble(t, "bounds each attempt by a sixth of the ttl", func(t *testing.T) {
		s := &slow{Store: newShardStore(t)}
		term := campaign(t, candidate(t, s, lease.Options{}))
		s.pace(0, time.Hour)
		termDuration(term)
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		require.Equal(t, []time.Duration{time.Second, time.Second, 500 * time.Millisecond}, s.bounds, "the last by the term")
		require.Equal(t, []error{context.DeadlineExceeded, context.DeadlineExceeded, lease.ErrRanOut}, s.causes, "a store learns that nothing answers")
	})
	bubble(t, "ends by the clock before any timer", func(t *testing.T) {
		c := &manualClock{now: time.Hour}
		s := newShardStore(t)
		l := candidate(t, s, lease.Options{Clock: c})
		term := campaign(t, l)
		c.set(time.Hour + 5*time.Second - 1)
		require.NoError(t, term.Err())
		c.set(time.Hour + 5*time.Second)
		require.ErrorIs(t, term.Err(), nstance.Unavailable)
		<-term.Context().Done()
		c.set(time.Hour)
		require.Error(t, term.Err(), "there is no way back")
	})
	bubble(t, "continues after its campaign", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		term, err := candidate(t, newShardStore(t), lease.Options{}).Campaign(ctx)
		require.NoError(t, err)
		cancel()
		after(t.Context(), time.Minute)
		require.NoError(t, term.Err())
	})
	bubble(t, "no server leads while storage is unreachable", func(t *testing.T) {
		f := storagetest.NewFaulty(newShardStore(t))
		a, b := candidate(t, f, lease.Options{}), candidate(t, f, lease.Options{})
		first := campaign(t, a)
		granted := startCampaign(t, b)
		after(t.Context(), time.Second)
		f.Inject(storagetest.Fault{Times: -1})
		after(t.Context(), time.Hour)
		require.Error(t, first.Err())
		require.Empty(t, granted)
		f.ClearFaults()
		began := time.Now()
		require.EqualValues(t, 2, (<-granted).Epoch())
		require.LessOrEqual(t, time.Since(began), time.Second)
	})
}

// manualClock is a clock that only tests advance, and whose timers never fire.
type manualClock struct {
	mu  sync.Mutex
	now time.Duration
}

func (c *manualClock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *manualClock) set(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = d
}

func (c *manualClock) AfterFunc(time.Duration, func()) func() bool {
	return func() bool { return true }
}

var codes = []nstance.Code{
	nstance.Conflict, nstance.Ambiguous, nstance.Unavailable, nstance.Throttled, nstance.Denied, nstance.Internal, nstance.NotFound,
}

func TestRenewalAnswers(t *testing.T) {
	// start returns a term two seconds before its first renewal.
	start := func(t *testing.T) (*storagetest.Faulty, *lease.Lease, *lease.Term) {
		f := storagetest.NewFaulty(newShardStore(t))
		l := candidate(t, f, lease.Options{})
		term := campaign(t, l)
		f.Reset()
		return f, l, term
	}
	for _, code := range codes {
		bubble(t, fmt.Sprintf("%s after it landed counts from when it was sent", code), func(t *testing.T) {
			f, _, term := start(t)
			f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.LoseAnswer, Err: code},
				storagetest.Fault{Op: storagetest.PutIfMatch, Times: -1},
				storagetest.Fault{Op: storagetest.Get, Times: 2})
			require.Equal(t, 7*time.Second, termDuration(term))
			require.NotContains(t, term.Err().Error(), "another process")
		})
		bubble(t, fmt.Sprintf("%s when it did not land is tried again", code), func(t *testing.T) {
			f, _, term := start(t)
			f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Times: 3, Err: code})
			after(t.Context(), 20*time.Second)
			require.NoError(t, term.Err())
			require.Equal(t, 3, f.Count(storagetest.Get))
		})
		bubble(t, fmt.Sprintf("%s when another process has written ends the term", code), func(t *testing.T) {
			f, l, term := start(t)
			f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Err: code, Do: func() { overwriteLease(t, f) }})
			require.Equal(t, 2*time.Second, termDuration(term))
			require.ErrorIs(t, term.Err(), lease.ErrLost)
			synctest.Wait()
			require.EqualValues(t, 9, l.Holder().Epoch)
			require.False(t, l.Holder().Self)
			require.NoError(t, l.Resign(t.Context()))
			require.Contains(t, content(t, f), `"write_id":"usurper"`, "there is nothing to release")
		})
	}
	bubble(t, "an older write that lands late counts from its own time", func(t *testing.T) {
		f, _, term := start(t)
		f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.Late}, // sent at 2s
			storagetest.Fault{Op: storagetest.PutIfMatch, Do: f.ApplyLate, Pass: true}, // sent at 2.25s, and is refused
			storagetest.Fault{Op: storagetest.PutIfMatch, Times: -1})
		require.Equal(t, 7*time.Second, termDuration(term))
	})
	bubble(t, "a renewal that landed too late does not count", func(t *testing.T) {
		f, _, term := start(t)
		f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.LoseAnswer},
			storagetest.Fault{Op: storagetest.PutIfMatch, Times: -1},
			storagetest.Fault{Op: storagetest.Get, Times: 12}) // for three seconds
		require.Equal(t, 5*time.Second, termDuration(term))
	})
	bubble(t, "a renewal that the machine slept over does not count", func(t *testing.T) {
		clock := &suspended{Clock: lease.GoClock()}
		f := storagetest.NewFaulty(newShardStore(t))
		term := campaign(t, candidate(t, f, lease.Options{Clock: clock}))
		f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: leaseKey, Pass: true, Do: func() { clock.slept.Add(int64(3500 * time.Millisecond)) }})
		after(t.Context(), 2001*time.Millisecond) // sent at 2s, for five seconds from then
		require.Error(t, term.Err(), "it was over at 5s")
	})
	bubble(t, "a missing lease is lost", func(t *testing.T) {
		f, l, term := start(t)
		obj, err := f.Get(t.Context(), leaseKey)
		require.NoError(t, err)
		require.NoError(t, f.DeleteIfMatch(t.Context(), leaseKey, obj.Version))
		require.Equal(t, 2*time.Second, termDuration(term))
		require.ErrorIs(t, term.Err(), lease.ErrLost)
		synctest.Wait()
		require.Zero(t, l.Holder())
	})
	bubble(t, "an unreadable lease is lost", func(t *testing.T) {
		f, l, term := start(t)
		was := l.Holder()
		obj, err := f.Get(t.Context(), leaseKey)
		require.NoError(t, err)
		_, err = f.PutIfMatch(t.Context(), leaseKey, []byte("?"), obj.Version)
		require.NoError(t, err)
		require.Equal(t, 2*time.Second, termDuration(term))
		require.ErrorIs(t, term.Err(), lease.ErrLost)
		synctest.Wait()
		require.Equal(t, was, l.Holder(), "as it was last seen")
	})
}

// overwriteLease takes a lease that is held, as no program does.
func overwriteLease(t *testing.T, f *storagetest.Faulty) {
	obj, err := f.Get(t.Context(), leaseKey)
	require.NoError(t, err)
	f.ClearFaults()
	_, err = f.PutIfMatch(t.Context(), leaseKey, fmt.Appendf(nil, foreign, 9, "usurper", 6000, false), obj.Version)
	require.NoError(t, err)
}

func TestHandover(t *testing.T) {
	pair := func(t *testing.T, s storage.Store) (a, b *lease.Lease, term *lease.Term, granted <-chan *lease.Term) {
		a, b = candidate(t, s, lease.Options{}), candidate(t, s, lease.Options{})
		term = campaign(t, a)
		granted = startCampaign(t, b)
		after(t.Context(), 12345*time.Millisecond)
		return a, b, term, granted
	}
	bubble(t, "is done within half a second", func(t *testing.T) {
		s := &slow{Store: newShardStore(t), get: 30 * time.Millisecond, put: 30 * time.Millisecond}
		a, _, _, granted := pair(t, s)
		began := time.Now()
		require.NoError(t, a.Resign(t.Context()))
		require.EqualValues(t, 2, (<-granted).Epoch())
		require.LessOrEqual(t, time.Since(began), 500*time.Millisecond)
	})
	bubble(t, "after a crash within the ttl and a second", func(t *testing.T) {
		for crash := time.Duration(0); crash < 2*time.Second; crash += 130 * time.Millisecond {
			mem := newShardStore(t)
			f := storagetest.NewFaulty(mem)
			a := candidate(t, f, lease.Options{})
			b := candidate(t, &slow{Store: mem, get: 30 * time.Millisecond, put: 30 * time.Millisecond}, lease.Options{})
			campaign(t, a)
			granted := startCampaign(t, b)
			after(t.Context(), 8*time.Second+crash)
			f.Inject(storagetest.Fault{Times: -1})
			began := time.Now()
			<-granted
			require.LessOrEqual(t, time.Since(began), 7*time.Second)
			require.NoError(t, b.Resign(t.Context()))
		}
	})
	bubble(t, "ends the term before any request", func(t *testing.T) {
		f := storagetest.NewFaulty(newShardStore(t))
		l := candidate(t, f, lease.Options{})
		term := campaign(t, l)
		var err error
		f.Inject(storagetest.Fault{Pass: true, Do: func() { err = term.Err() }})
		f.Reset()
		require.NoError(t, l.Resign(t.Context()))
		require.Equal(t, 1, f.Count(""), "and takes one")
		require.ErrorIs(t, err, lease.ErrResigned)
		require.Contains(t, content(t, f), `"released":true`)
		require.NoError(t, l.Resign(t.Context()), "nothing to release any more")
	})
	bubble(t, "does not wait for a renewal in flight", func(t *testing.T) {
		s := &slow{Store: newShardStore(t)}
		a, _, _, granted := pair(t, s)
		s.pace(0, 1800*time.Millisecond)
		after(t.Context(), 1700*time.Millisecond) // the renewal is being answered
		s.pace(0, 0)
		began := time.Now()
		require.NoError(t, a.Resign(t.Context()))
		require.Zero(t, time.Since(began))
		<-granted
		require.LessOrEqual(t, time.Since(began), 500*time.Millisecond)
	})
	bubble(t, "overtakes a renewal that landed without an answer", func(t *testing.T) {
		mem := newShardStore(t)
		s := &slow{Store: mem}
		a, _, _, granted := pair(t, s)
		id := writeID(t, mem)
		s.pace(0, 1000*time.Millisecond)
		after(t.Context(), 2300*time.Millisecond)
		require.NotEqual(t, id, writeID(t, mem), "it has landed")
		s.pace(0, 0)
		require.NoError(t, a.Resign(t.Context()))
		require.Contains(t, content(t, mem), `"released":true`)
		require.EqualValues(t, 2, (<-granted).Epoch())
	})
	for _, mode := range []storagetest.Mode{storagetest.Refuse, storagetest.LoseAnswer} {
		bubble(t, fmt.Sprintf("settles a release without an answer, mode %d", mode), func(t *testing.T) {
			f := storagetest.NewFaulty(newShardStore(t))
			l := candidate(t, f, lease.Options{Standby: func() bool { return true }})
			campaign(t, l)
			var received []lease.Announcement
			listened := make(chan struct{})
			go func() {
				defer close(listened)
				received = slices.Collect(l.Announcements(t.Context()))
			}()
			f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Mode: mode, Err: nstance.Conflict}, storagetest.Fault{Op: storagetest.Get})
			require.NoError(t, l.Resign(t.Context()))
			require.Contains(t, content(t, f), `"released":true`)
			<-listened
			obj, err := f.Get(t.Context(), leaseKey)
			require.NoError(t, err)
			last := lease.Announcement{Epoch: 1, Version: obj.Version, WriteID: writeID(t, f), Released: true}
			require.Equal(t, last, received[len(received)-1], "it is announced as this process's own")
			d, _ := campaignDuration(t, l)
			require.Greater(t, d, 11*time.Second, "and left to others")
		})
	}
	bubble(t, "repeats a write that did not land", func(t *testing.T) {
		f := storagetest.NewFaulty(newShardStore(t))
		l := candidate(t, f, lease.Options{})
		campaign(t, l)
		f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Times: 3})
		require.NoError(t, l.Resign(t.Context()))
		require.Contains(t, content(t, f), `"released":true`)
	})
	bubble(t, "gives up likewise after a renewal that landed late", func(t *testing.T) {
		f := storagetest.NewFaulty(newShardStore(t))
		l := candidate(t, f, lease.Options{})
		campaign(t, l)
		f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.LoseAnswer}, storagetest.Fault{Op: storagetest.Get, Times: -1})
		after(t.Context(), 3*time.Second) // the renewal has landed
		f.ClearFaults()
		f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Times: -1})
		began := time.Now()
		require.ErrorIs(t, l.Resign(t.Context()), nstance.Unavailable)
		require.Equal(t, 6*time.Second, time.Since(began))
	})
	bubble(t, "gives up when the lease has expired", func(t *testing.T) {
		f := storagetest.NewFaulty(newShardStore(t))
		l := candidate(t, f, lease.Options{})
		term := campaign(t, l)
		f.Inject(storagetest.Fault{Times: -1})
		began := time.Now()
		require.ErrorIs(t, l.Resign(t.Context()), nstance.Unavailable)
		require.Equal(t, 6*time.Second, time.Since(began))
		require.Error(t, term.Err())
	})
	bubble(t, "waits no longer than its context for a renewal that does not end", func(t *testing.T) {
		s := &stuck{Store: newShardStore(t), release: make(chan struct{})}
		l := candidate(t, s, lease.Options{})
		term := campaign(t, l)
		s.hangs.Store(true)
		after(t.Context(), 3*time.Second) // the renewal is stuck since a second
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		require.ErrorIs(t, l.Resign(ctx), nstance.Unavailable)
		require.Equal(t, time.Second, time.Since(began))
		require.ErrorIs(t, term.Err(), lease.ErrResigned)
		_, err := l.Campaign(ctx)
		require.ErrorIs(t, err, nstance.Unavailable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		s.hangs.Store(false)
		close(s.release)
		require.NoError(t, l.Resign(t.Context()))
		require.Contains(t, content(t, s), `"released":true`)
	})
	bubble(t, "gives up with its context", func(t *testing.T) {
		f := storagetest.NewFaulty(newShardStore(t))
		l := candidate(t, f, lease.Options{})
		campaign(t, l)
		f.Inject(storagetest.Fault{Times: -1})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		require.ErrorIs(t, l.Resign(ctx), nstance.Unavailable)
		require.Equal(t, time.Second, time.Since(began))
	})
	bubble(t, "releases an expired lease that is still stored", func(t *testing.T) {
		f := storagetest.NewFaulty(newShardStore(t))
		l := candidate(t, f, lease.Options{})
		term := campaign(t, l)
		f.Inject(storagetest.Fault{Times: -1})
		termDuration(term)
		f.ClearFaults()
		require.NoError(t, l.Resign(t.Context()))
		require.Contains(t, content(t, f), `"released":true`)
	})
	bubble(t, "does not release a successor's lease", func(t *testing.T) {
		mem := newShardStore(t)
		f := storagetest.NewFaulty(mem)
		a := candidate(t, f, lease.Options{Standby: func() bool { return true }})
		term := campaign(t, a)
		f.Inject(storagetest.Fault{Times: -1})
		termDuration(term)
		b := candidate(t, mem, lease.Options{})
		campaign(t, b)
		f.ClearFaults()
		require.NoError(t, a.Resign(t.Context()))
		require.Contains(t, content(t, mem), `"epoch":2`)
		require.Contains(t, content(t, mem), `"released":false`)
		require.Equal(t, b.Holder().ID, a.Holder().ID)
		require.NoError(t, b.Resign(t.Context()))
		d, _ := campaignDuration(t, a)
		require.Zero(t, d, "it has given nothing away")
	})
}
