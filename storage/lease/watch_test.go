package lease_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
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

// wire is a watch of one elector that tests can break.
type wire struct {
	from  *lease.Lease
	store *storagetest.Faulty // of the holder
	cut   atomic.Bool         // breaks at the next announcement, and cannot be opened
	mute  atomic.Bool         // drops announcements
	opens atomic.Int32        // times it was opened
}

func (w *wire) listen(ctx context.Context, _ lease.Holder) iter.Seq2[lease.Announcement, error] {
	return func(yield func(lease.Announcement, error) bool) {
		w.opens.Add(1)
		if w.cut.Load() {
			yield(lease.Announcement{}, nstance.Unavailable)
			return
		}
		for a := range w.from.Announcements(ctx) {
			switch {
			case w.cut.Load():
				yield(lease.Announcement{}, nstance.Unavailable)
				return
			case w.mute.Load():
			case !yield(a, nil):
				return
			}
		}
	}
}

// watchedElectors returns a holder, a standby that watches it and counts its requests, and the
// next term of the standby.
func watchedElectors(t *testing.T) (w *wire, f *storagetest.Faulty, granted <-chan *lease.Term) {
	mem := newShardStore(t)
	w, f = &wire{store: storagetest.NewFaulty(mem)}, storagetest.NewFaulty(mem)
	w.from = candidate(t, w.store, lease.Options{Peer: "a:1"})
	campaign(t, w.from)
	granted = startCampaign(t, candidate(t, f, lease.Options{Watch: w.listen}))
	after(t.Context(), 10*time.Second+time.Millisecond)
	return w, f, granted
}

// watchable is foreign, with an address for the watch.
const watchable = `{"format":"1.0","epoch":%d,"write_id":%q,"holder":"H","peer":"a:1","ttl_ms":%d,"released":%t}`

func TestWatch(t *testing.T) {
	bubble(t, "saves the reads", func(t *testing.T) {
		w, f, granted := watchedElectors(t)
		require.Equal(t, 1, f.Count(""), "one look to know whom to listen to")
		after(t.Context(), time.Hour)
		require.Equal(t, 1, f.Count(""))
		require.EqualValues(t, 1, w.opens.Load())
		require.Empty(t, granted)
	})
	bubble(t, "announces a handover at once, without a read", func(t *testing.T) {
		w, f, granted := watchedElectors(t)
		began := time.Now()
		require.NoError(t, w.from.Resign(t.Context()))
		require.EqualValues(t, 2, (<-granted).Epoch())
		require.Zero(t, time.Since(began))
		require.Equal(t, 2, f.Count(""))
	})
	bubble(t, "a broken watch causes a read at once", func(t *testing.T) {
		w, _, granted := watchedElectors(t)
		w.cut.Store(true)
		began := time.Now()
		require.NoError(t, w.from.Resign(t.Context())) // not received by a standby
		<-granted
		require.Zero(t, time.Since(began))
	})
	bubble(t, "after a broken watch it polls, and takes nothing", func(t *testing.T) {
		w, f, granted := watchedElectors(t)
		w.cut.Store(true)
		after(t.Context(), 2*time.Second)
		f.Reset()
		after(t.Context(), 40*time.Second)
		require.InDelta(t, 100, f.Count(storagetest.Get), 5)
		require.Equal(t, f.Count(""), f.Count(storagetest.Get), "nothing is written")
		require.InDelta(t, 100, w.opens.Load(), 10, "it is opened again and again")
		require.Empty(t, granted)
		w.cut.Store(false)
		after(t.Context(), time.Second)
		f.Reset()
		after(t.Context(), time.Minute)
		require.Zero(t, f.Count(""), "it listens again")
	})
	bubble(t, "a watch that broke with its holder lets it take after the ttl", func(t *testing.T) {
		w, _, granted := watchedElectors(t)
		w.cut.Store(true)
		began := time.Now()
		w.store.Inject(storagetest.Fault{Times: -1})
		require.EqualValues(t, 2, (<-granted).Epoch())
		require.InDelta(t, 6*time.Second, time.Since(began), float64(time.Second))
	})
	bubble(t, "silent for half the ttl is ignored", func(t *testing.T) {
		w, f, granted := watchedElectors(t)
		w.mute.Store(true)
		after(t.Context(), 3*time.Second)
		f.Reset()
		after(t.Context(), 40*time.Second)
		require.InDelta(t, 100, f.Count(storagetest.Get), 5)
		require.Empty(t, granted)
	})
	bubble(t, "an announcement of another term causes a read, and nothing else", func(t *testing.T) {
		mem := storage.NewMemory()
		putForeign(t, mem, watchable, 4, "w", 6000, false)
		f := storagetest.NewFaulty(mem)
		lies := func(ctx context.Context, _ lease.Holder) iter.Seq2[lease.Announcement, error] {
			return func(yield func(lease.Announcement, error) bool) {
				for i := 0; after(ctx, 100*time.Millisecond); i++ {
					if !yield(lease.Announcement{Epoch: uint64(i%2)*2 + 3, Version: storage.Version(fmt.Sprint(i)), Released: true}, nil) {
						return
					}
				}
			}
		}
		d, term := campaignDuration(t, candidate(t, f, lease.Options{Watch: lies}))
		require.Equal(t, 6*time.Second, d)
		require.EqualValues(t, 5, term.Epoch())
		require.Equal(t, 1, f.Count(storagetest.PutIfMatch))
	})
	bubble(t, "a late announcement after a release revives no holder", func(t *testing.T) {
		for range 20 { // it is received or not, by chance
			mem := storage.NewMemory()
			held := putForeign(t, mem, watchable, 4, "w1", 6000, false)
			f := storagetest.NewFaulty(mem)
			late := func(ctx context.Context, _ lease.Holder) iter.Seq2[lease.Announcement, error] {
				return func(yield func(lease.Announcement, error) bool) {
					after(ctx, time.Second)
					released, err := mem.PutIfMatch(ctx, leaseKey, fmt.Appendf(nil, watchable, 4, "w2", 6000, true), held)
					require.NoError(t, err)
					f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch}) // it is not taken at once
					if yield(lease.Announcement{Epoch: 4, Version: released, WriteID: "w2", Released: true}, nil) {
						<-ctx.Done()
						yield(lease.Announcement{Epoch: 4, Version: held, WriteID: "w1"}, nil)
					}
				}
			}
			d, term := campaignDuration(t, candidate(t, f, lease.Options{Watch: late}))
			require.EqualValues(t, 5, term.Epoch())
			require.Less(t, d, 2*time.Second, "the release is seen after one second")
		}
	})
	bubble(t, "a read that it causes may show this process's own write", func(t *testing.T) {
		f := storagetest.NewFaulty(storage.NewMemory())
		putForeign(t, f, watchable, 4, "w", 6000, false)
		f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.LoseAnswer}, storagetest.Fault{Op: storagetest.Get, Skip: 15})
		newer := func(ctx context.Context, _ lease.Holder) iter.Seq2[lease.Announcement, error] {
			return func(yield func(lease.Announcement, error) bool) {
				if after(ctx, 6100*time.Millisecond) && yield(lease.Announcement{Epoch: 9}, nil) {
					<-ctx.Done()
				}
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		began := time.Now()
		term, err := candidate(t, f, lease.Options{Watch: newer}).Campaign(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 5, term.Epoch())
		require.Equal(t, 6100*time.Millisecond, time.Since(began), "before it would try again")
		require.Equal(t, 1, f.Count(storagetest.PutIfMatch))
	})
	bubble(t, "what comes with an error is ignored", func(t *testing.T) {
		mem := storage.NewMemory()
		held := putForeign(t, mem, watchable, 4, "w", 6000, false)
		broken := func(ctx context.Context, _ lease.Holder) iter.Seq2[lease.Announcement, error] {
			return func(yield func(lease.Announcement, error) bool) {
				after(ctx, time.Second)
				yield(lease.Announcement{Epoch: 4, Version: held, WriteID: "w", Released: true}, nstance.Unavailable)
			}
		}
		d, _ := campaignDuration(t, candidate(t, mem, lease.Options{Watch: broken}))
		require.Equal(t, 6*time.Second, d)
	})
	bubble(t, "cannot replace an unseen lease", func(t *testing.T) {
		mem := storage.NewMemory()
		putForeign(t, mem, watchable, 4, "w", 6000, false)
		lie := func(ctx context.Context, _ lease.Holder) iter.Seq2[lease.Announcement, error] {
			return func(yield func(lease.Announcement, error) bool) {
				yield(lease.Announcement{Epoch: 4, Version: "m99", WriteID: "x", Released: true}, nil)
				<-ctx.Done()
			}
		}
		granted := startCampaign(t, candidate(t, mem, lease.Options{Watch: lie}))
		after(t.Context(), 5*time.Second)
		require.Empty(t, granted)
		require.Contains(t, content(t, mem), `"epoch":4`)
	})
	bubble(t, "is not opened without the address", func(t *testing.T) {
		mem := newShardStore(t)
		w := &wire{from: candidate(t, mem, lease.Options{})}
		campaign(t, w.from)
		startCampaign(t, candidate(t, mem, lease.Options{Watch: w.listen}))
		after(t.Context(), time.Minute)
		require.Zero(t, w.opens.Load())
	})
}

func TestAnnouncements(t *testing.T) {
	bubble(t, "start with the latest and end with the release", func(t *testing.T) {
		s := newShardStore(t)
		l := candidate(t, s, lease.Options{})
		require.Empty(t, slices.Collect(l.Announcements(t.Context())), "there is no term")
		campaign(t, l)
		var got []lease.Announcement
		done := make(chan struct{})
		after(t.Context(), time.Second)
		go func() { got = slices.Collect(l.Announcements(t.Context())); close(done) }()
		after(t.Context(), 4*time.Second)
		obj, err := s.Get(t.Context(), leaseKey)
		require.NoError(t, err)
		last := lease.Announcement{Epoch: 1, Version: obj.Version, WriteID: writeID(t, s)}
		require.NoError(t, l.Resign(t.Context()))
		<-done
		require.Len(t, got, 4)
		require.Equal(t, last, got[2])
		require.True(t, got[3].Released)
		require.Equal(t, got[3:], slices.Collect(l.Announcements(t.Context())), "a late receiver gets the end")
	})
	bubble(t, "of a term end when its process campaigns again", func(t *testing.T) {
		l := candidate(t, newShardStore(t), lease.Options{TakeAtOnce: true})
		campaign(t, l)
		done := make(chan []lease.Announcement, 1)
		go func() { done <- slices.Collect(l.Announcements(t.Context())) }()
		synctest.Wait()
		campaign(t, l)
		for _, a := range <-done {
			require.EqualValues(t, 1, a.Epoch)
			require.False(t, a.Released)
		}
	})
	bubble(t, "skip what a slow listener missed", func(t *testing.T) {
		l := candidate(t, newShardStore(t), lease.Options{})
		campaign(t, l)
		var n int
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for range l.Announcements(ctx) {
			n++
			after(t.Context(), 20*time.Second)
		}
		require.LessOrEqual(t, n, 4)
	})
	bubble(t, "end with their context, and with the loop", func(t *testing.T) {
		l := candidate(t, newShardStore(t), lease.Options{})
		campaign(t, l)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { _ = slices.Collect(l.Announcements(ctx)); close(done) }()
		synctest.Wait()
		cancel()
		<-done
		for range l.Announcements(t.Context()) {
			break
		}
	})
}
