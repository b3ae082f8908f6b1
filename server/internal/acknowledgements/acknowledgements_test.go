package acknowledgements_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server/internal/acknowledgements"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// A shard is what needs attention, and the storage of its acknowledgements.
type shard struct {
	*storagetest.Faulty
	mu    sync.Mutex
	list  []reconcile.Attention
	ahead time.Duration // of the leader's clock, which is known to be wrong unless 0
}

func (s *shard) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.ahead)
}

func (s *shard) clockRight() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ahead == 0
}

func (s *shard) setClock(ahead time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead = ahead
}

func newShard(entries ...reconcile.Attention) *shard {
	return &shard{Faulty: storagetest.NewFaulty(storage.NewMemory()), list: entries}
}

func (s *shard) set(entries ...reconcile.Attention) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = entries
}

func (s *shard) entries() []reconcile.Attention {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list)
}

// lead runs the book of a leader until the end of the test, or until it is stopped.
func (s *shard) lead(t *testing.T, epoch uint64) (b *acknowledgements.Book, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	b = acknowledgements.New(s, acknowledgements.Options{
		Shard: "s1", Epoch: epoch, Check: ctx.Err, Now: s.now, ClockRight: s.clockRight, List: s.entries, Log: slog.New(slog.DiscardHandler),
	})
	var wg sync.WaitGroup
	wg.Go(func() { b.Run(ctx) })
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	synctest.Wait()
	return b, stop
}

// known returns how many of the entries are acknowledged.
func (s *shard) known(b *acknowledgements.Book) (n int) {
	for _, e := range b.Mark(s.entries()) {
		if e.Acknowledged != nil {
			n++
		}
	}
	return n
}

// stored returns what is durable.
func (s *shard) stored(t *testing.T) []attention.Acknowledgement {
	type document struct {
		records.Header
		Acknowledged []attention.Acknowledgement `json:"acknowledged"`
	}
	d, err := records.NewDoc[document](s, layout.AttentionKey("s1"), nil).Load(t.Context())
	require.NoError(t, err)
	return d.Acknowledged
}

func want(kind reconcile.AttentionKind, d time.Duration) attention.Acknowledgement {
	return attention.Acknowledgement{Kind: kind, Subject: "shard", At: time.Now().UTC(), Until: time.Now().Add(d).UTC(), By: "eve"}
}

func put(t *testing.T, b *acknowledgements.Book, a attention.Acknowledgement) {
	t.Helper()
	_, changed, err := b.Put(t.Context(), a, false)
	require.NoError(t, err)
	require.True(t, changed)
}

// pass lets time pass: the bubble's clock goes on when all else waits.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

var clock = reconcile.Attention{Kind: "clock", Subject: "shard"}

func TestItEndsByItself(t *testing.T) {
	t.Run("when its time is over", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newShard(clock)
			b, _ := s.lead(t, 1)
			put(t, b, want("clock", time.Hour))
			pass(time.Hour - time.Second)
			require.Equal(t, 1, s.known(b))
			pass(time.Second)
			require.Zero(t, s.known(b))
			pass(time.Minute)
			require.Empty(t, s.stored(t))
		})
	})
	t.Run("when its entry is gone for 20 minutes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newShard(clock)
			b, _ := s.lead(t, 1)
			put(t, b, want("clock", 24*time.Hour))
			pass(time.Hour)
			s.set()
			pass(19 * time.Minute)
			s.set(clock)
			pass(2 * time.Minute)
			require.Equal(t, 1, s.known(b), "it was back in time")
			s.set()
			pass(22 * time.Minute)
			require.Empty(t, s.stored(t))
			s.set(clock)
			require.Zero(t, s.known(b), "it is another one")
		})
	})
	t.Run("but not while the list is not whole", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newShard(clock)
			b, _ := s.lead(t, 1)
			put(t, b, want("clock", 24*time.Hour))
			s.set(reconcile.Attention{Kind: attention.Loading, Subject: "shard"})
			pass(2 * time.Hour)
			require.Len(t, s.stored(t), 1)
		})
	})
}

// TestWrongClock: a clock that is known to be wrong ends no acknowledgement, and shortens none.
func TestWrongClock(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"ahead": 48 * time.Hour, "behind": -48 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShard(clock)
				b, _ := s.lead(t, 1)
				until := time.Now().Add(attention.Longest).UTC()
				if ahead > 0 {
					until = time.Now().Add(time.Hour).UTC()
				}
				put(t, b, attention.Acknowledgement{Kind: "clock", Subject: "shard", At: time.Now().UTC(), Until: until, By: "eve"})
				s.setClock(ahead)
				require.Equal(t, 1, s.known(b))
				pass(5 * time.Minute)
				s.setClock(0)
				require.Equal(t, 1, s.known(b))
				require.True(t, until.Equal(s.stored(t)[0].Until), s.stored(t)[0].Until)
			})
		})
	}
}

// TestLeaderChange: the next leader continues with it, and waits for the entry for as long
// as the last one would have.
func TestLeaderChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(clock)
		b, stop := s.lead(t, 1)
		put(t, b, want("clock", 24*time.Hour))
		stop()
		s.set()
		b, stop = s.lead(t, 2)
		pass(18 * time.Minute)
		s.set(clock)
		pass(time.Hour)
		require.Equal(t, 1, s.known(b))
		stop()

		// The clock of that leader was ahead.
		s.set(clock)
		ahead := want("clock", time.Hour)
		ahead.At, ahead.Until = ahead.At.Add(90*24*time.Hour), ahead.Until.Add(90*24*time.Hour)
		b, stop = s.lead(t, 3)
		put(t, b, ahead)
		pass(2 * time.Minute)
		require.WithinDuration(t, time.Now().Add(30*24*time.Hour), s.stored(t)[0].Until, 5*time.Minute)
		stop()
	})
}

// TestUnansweredWrite: what is durable is in force, as soon as storage answers.
func TestUnansweredWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(clock)
		b, _ := s.lead(t, 1)
		s.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.LoseAnswer, Err: nstance.Ambiguous}, storagetest.Fault{Op: storagetest.Get})
		_, _, err := b.Put(t.Context(), want("clock", time.Hour), false)
		require.Error(t, err)
		pass(5 * time.Second)
		require.Len(t, s.stored(t), s.known(b))
		require.Equal(t, 1, s.known(b))
	})
}

func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var entries []reconcile.Attention
		for n := range 129 {
			entries = append(entries, reconcile.Attention{Kind: "short", Subject: fmt.Sprintf("group t/g%d", n)})
		}
		s := newShard(entries...)
		b, _ := s.lead(t, 1)
		ack := func(n int) error {
			a := want("short", time.Hour)
			a.Subject = entries[n].Subject
			_, _, err := b.Put(t.Context(), a, false)
			return err
		}
		for n := range 128 {
			require.NoError(t, ack(n))
		}
		require.ErrorIs(t, ack(128), nstance.Conflict)
		require.ErrorContains(t, ack(128), "nstance-admin attention unack")
		require.NoError(t, ack(0), "it stands already")

		_, _, err := b.Remove(t.Context(), "short", "", false)
		require.ErrorIs(t, err, nstance.Invalid, "128 subjects")
		_, _, err = b.Remove(t.Context(), "", "", false)
		require.ErrorIs(t, err, nstance.Invalid)
		_, removed, err := b.Remove(t.Context(), "short", "group t/g7", true)
		require.NoError(t, err)
		require.True(t, removed)
		require.Equal(t, 128, s.known(b), "a dry run")
		_, removed, err = b.Remove(t.Context(), "short", "group t/g7", false)
		require.NoError(t, err)
		require.True(t, removed)
		require.NoError(t, ack(128))
	})
}
