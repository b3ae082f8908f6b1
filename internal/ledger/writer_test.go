package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

const shard = nstance.ShardID("z1")

// A bed is a writer that runs in a bubble.
type bed struct {
	*testing.T
	*storagetest.Faulty
	w    *ledger.Writer
	stop func()
}

func newBed(t *testing.T, o *ledger.WriterOptions) *bed {
	b := &bed{T: t, Faulty: storagetest.NewFaulty(storage.NewMemory())}
	b.w = ledger.NewWriter(b, shard, o)
	b.stop = start(t, b.w)
	return b
}

// start runs a writer until stop is called, or the test ends.
func start(t *testing.T, w *ledger.Writer) (stop func()) {
	ctx, cancel := contextOf(t)
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(ctx) })
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

// add adds n lives at once and returns how many were written and how many failed.
func (b *bed) add(n int) (written, failed *atomic.Int64) {
	written, failed = &atomic.Int64{}, &atomic.Int64{}
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range n {
		wg.Go(func() {
			b.w.Add(lifeEntry(i), func(err error) {
				if err != nil {
					failed.Add(1)
				} else {
					written.Add(1)
				}
			})
		})
	}
	return written, failed
}

// A stuck store answers no write before its context ends.
type stuck struct{ storage.Store }

func (stuck) PutIfAbsent(ctx context.Context, _ string, _ []byte) (storage.Version, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

func lifeEntry(i int) ledger.Entry {
	return ledger.Entry{Life: &ledger.Life{ID: nstance.InstanceID(fmt.Sprintf("web%026d", i)), Tenant: "default", Group: "web"}}
}

// days returns what the ledger holds.
func days(t *testing.T, s storage.Store) (all []ledger.Day) {
	t.Helper()
	for d, err := range ledger.NewReader(s, shard).Days(t.Context(), time.Time{}, time.Time{}) {
		require.NoError(t, err)
		all = append(all, d)
	}
	return all
}

func TestWriter(t *testing.T) {
	bubble := func(name string, test func(t *testing.T)) {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
	bubble("a batch waits for more entries, and is one object", func(t *testing.T) {
		b := newBed(t, nil)
		written, _ := b.add(100)
		synctest.Wait()
		require.Zero(t, b.Count(storagetest.PutIfAbsent))
		<-time.After(time.Second)
		synctest.Wait()
		require.EqualValues(t, 100, written.Load())
		require.Equal(t, 1, b.Count(storagetest.PutIfAbsent))
		require.Len(t, days(t, b)[0].Lives, 100)
	})
	bubble("a full batch does not wait", func(t *testing.T) {
		b := newBed(t, &ledger.WriterOptions{Linger: time.Hour})
		written, _ := b.add(1000)
		synctest.Wait()
		require.EqualValues(t, 512, written.Load(), "what comes during a write does not become an object each")
		require.Equal(t, 1, b.Count(storagetest.PutIfAbsent))
		<-time.After(time.Hour)
		synctest.Wait()
		require.EqualValues(t, 1000, written.Load())
		require.Equal(t, 2, b.Count(storagetest.PutIfAbsent))
	})
	bubble("a failed batch fails each of its entries, and the next one is written", func(t *testing.T) {
		b := newBed(t, nil)
		b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent})
		written, failed := b.add(3)
		<-time.After(2 * time.Second)
		require.EqualValues(t, 3, failed.Load())
		require.Zero(t, written.Load())
		written, _ = b.add(3)
		<-time.After(2 * time.Second)
		require.EqualValues(t, 3, written.Load())
	})
	bubble("a lost answer is settled by reading", func(t *testing.T) {
		b := newBed(t, nil)
		b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.LoseAnswer, Err: nstance.Ambiguous})
		written, _ := b.add(3)
		<-time.After(2 * time.Second)
		require.EqualValues(t, 3, written.Load())
	})
	bubble("nothing is written after the term", func(t *testing.T) {
		b := newBed(t, &ledger.WriterOptions{Check: func() error { return errors.New("over") }})
		_, failed := b.add(2)
		<-time.After(2 * time.Second)
		require.EqualValues(t, 2, failed.Load())
		require.Zero(t, b.Count(""))
	})
	bubble("what waits when it ends has failed, and what comes later", func(t *testing.T) {
		b := newBed(t, &ledger.WriterOptions{Linger: time.Hour})
		_, failed := b.add(2)
		synctest.Wait()
		b.stop()
		require.EqualValues(t, 2, failed.Load())
		_, failed = b.add(1)
		require.EqualValues(t, 1, failed.Load())
		require.Zero(t, b.Count(""))
	})
	ready := func(b *bed, n int) {
		for i := range n {
			b.w.Add(ledger.Entry{Ready: &ledger.Ready{ID: nstance.InstanceID(fmt.Sprint("web", i))}}, nil)
		}
	}
	requireReady := func(t *testing.T, b *bed, n int) {
		t.Helper()
		all := days(t, b)
		require.Len(t, all, 1)
		require.Len(t, all[0].Ready, n)
		for i, r := range all[0].Ready {
			require.Equal(t, fmt.Sprint("web", i), string(r.ID), "in order")
		}
	}
	bubble("what a failed batch has beside lives is written again, before later entries", func(t *testing.T) {
		b := newBed(t, nil)
		b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent})
		ready(b, 1)
		_, failed := b.add(1)
		<-time.After(1100 * time.Millisecond)
		require.EqualValues(t, 1, failed.Load(), "its record remains: the reconciler adds it again")
		b.w.Add(ledger.Entry{Ready: &ledger.Ready{ID: "web1"}}, nil)
		<-time.After(3 * time.Second)
		requireReady(t, b, 2)
		require.Equal(t, 2, b.Count(storagetest.PutIfAbsent))
	})
	bubble("storage that refuses every write is asked less and less often", func(t *testing.T) {
		b := newBed(t, nil)
		b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Times: -1})
		ready(b, 600)
		<-time.After(time.Hour)
		require.LessOrEqual(t, b.Count(storagetest.PutIfAbsent), 130)
		b.ClearFaults()
		<-time.After(time.Minute)
		requireReady(t, b, 600)
	})
	bubble("a resigned term writes once more what no other term repeats", func(t *testing.T) {
		b := newBed(t, &ledger.WriterOptions{Linger: time.Hour, FinalCheck: func() error { return nil }, Check: func() error { return errors.New("resigned") }})
		_, failed := b.add(1)
		ready(b, 511)
		synctest.Wait() // refused, since the term is over
		ready(b, 511)
		b.stop()
		require.EqualValues(t, 1, failed.Load())
		require.Len(t, days(t, b)[0].Ready, 1022)
		require.Equal(t, 2, b.Count(storagetest.PutIfAbsent))
	})
	bubble("a lost term writes nothing at its end", func(t *testing.T) {
		lost := false
		b := newBed(t, &ledger.WriterOptions{Linger: time.Hour, Check: func() error {
			if lost {
				return errors.New("lost")
			}
			return nil
		}})
		ready(b, 1)
		synctest.Wait()
		lost = true
		b.stop()
		require.Zero(t, b.Count(""))
	})
	bubble("storage that does not answer delays the end of a term by seconds", func(t *testing.T) {
		store := stuck{storage.NewMemory()}
		w := ledger.NewWriter(store, shard, &ledger.WriterOptions{Linger: time.Hour})
		stop := start(t, w)
		for range 2000 {
			w.Add(ledger.Entry{Ready: &ledger.Ready{ID: "web1"}}, nil)
		}
		synctest.Wait()
		began := time.Now()
		stop()
		require.LessOrEqual(t, time.Since(began), 5*time.Second)
	})
	bubble("a write that is not answered is repeated, and success makes the pace as it was", func(t *testing.T) {
		b := newBed(t, nil)
		b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Times: 12})
		ready(b, 1)
		<-time.After(10 * time.Minute)
		requireReady(t, b, 1)
		require.Equal(t, 13, b.Count(storagetest.PutIfAbsent))
		b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent})
		b.w.Add(ledger.Entry{Ready: &ledger.Ready{ID: "web1"}}, nil)
		<-time.After(5 * time.Second)
		requireReady(t, b, 2)
	})
	bubble("storage that does not answer ends a write within 30 s", func(t *testing.T) {
		w := ledger.NewWriter(stuck{storage.NewMemory()}, shard, nil)
		start(t, w)
		var failed error
		w.Add(lifeEntry(1), func(err error) { failed = err })
		<-time.After(40 * time.Second)
		synctest.Wait()
		require.ErrorIs(t, failed, context.DeadlineExceeded, "the reconciler adds the life again")
	})
	bubble("entries without a record of their own are bounded", func(t *testing.T) {
		b := newBed(t, &ledger.WriterOptions{Check: func() error { return nil }})
		release := make(chan struct{})
		b.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Pass: true, Do: func() { <-release }})
		written, _ := b.add(512)
		synctest.Wait() // it is being written
		for range 10_000 {
			b.w.Add(ledger.Entry{Ready: &ledger.Ready{ID: "web1"}}, nil)
		}
		last, _ := b.add(1)
		close(release)
		<-time.After(2 * time.Second)
		require.EqualValues(t, 512, written.Load())
		require.EqualValues(t, 1, last.Load(), "a life is never refused")
		require.Len(t, days(t, b)[0].Ready, 8192)
	})
}

// TestReadyTimes: only the term in which a member registered knows when it became ready.
func TestReadyTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, nil)
		s := ledger.NewStories(b.w)
		at := time.Now().UTC()
		s.Event(nstance.Event{Type: nstance.EventReady, Instance: "web1", Time: at})
		s.Event(nstance.Event{Type: nstance.EventRegistered, Instance: "web2"})
		s.Event(nstance.Event{Type: nstance.EventReady, Instance: "web2", Replaces: "web0", Time: at})
		s.Event(nstance.Event{Type: nstance.EventReady, Instance: "web2", Time: at.Add(time.Hour)})
		for i := range 20 {
			n := nstance.Notice{Kind: nstance.Rebalance, EventID: fmt.Sprint(i)}
			s.Event(nstance.Event{Type: nstance.EventNoticeIgnored, Instance: "web2", Notice: &n, Time: at})
		}
		<-time.After(2 * time.Second)
		got := days(t, b)[0]
		require.Equal(t, []ledger.Ready{{ID: "web2", Replaces: "web0", At: at}}, got.Ready)
		require.Len(t, got.Ignored, 16, "an agent cannot fill the ledger")
	})
}

func TestReader(t *testing.T) {
	put := func(t *testing.T, s storage.Store, key, text string) {
		_, err := s.PutIfAbsent(t.Context(), layout.LedgerPrefix(shard)+key+".jsonl", []byte(text))
		require.NoError(t, err)
	}
	line := func(id string) string { return `{"life":{"id":"` + id + `"},"added_later":1}` + "\n" }
	t.Run("days, the latest first, within bounds", func(t *testing.T) {
		s := storage.NewMemory()
		for _, day := range []string{"2026-10-01", "2026-10-02", "2026-10-04"} {
			put(t, s, day+"/A", line(day))
			put(t, s, day+"/B", line(day+"b"))
		}
		at := func(day string) time.Time {
			v, err := time.Parse(time.DateOnly, day)
			require.NoError(t, err)
			return v.Add(12 * time.Hour)
		}
		var got []string
		for d, err := range ledger.NewReader(s, shard).Days(t.Context(), at("2026-10-02"), at("2026-10-04")) {
			require.NoError(t, err)
			require.Len(t, d.Lives, 2)
			got = append(got, d.Date)
		}
		require.Equal(t, []string{"2026-10-04", "2026-10-02"}, got)
		got = nil
		for d := range ledger.NewReader(s, shard).Days(t.Context(), time.Time{}, at("2026-10-03")) {
			got = append(got, d.Date)
		}
		require.Equal(t, []string{"2026-10-02", "2026-10-01"}, got)
	})
	t.Run("what cannot be read hides nothing else", func(t *testing.T) {
		f := storagetest.NewFaulty(storage.NewMemory())
		put(t, f, "2026-10-01/A", line("a"))
		put(t, f, "2026-10-01/B", line("b")+"{\n"+line("c")+`{"life":7}`+"\n\x00\n")
		put(t, f, "2026-10-01/C", line("d"))
		f.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: layout.LedgerPrefix(shard) + "2026-10-01/C"})
		r := ledger.NewReader(f, shard)
		for d, err := range r.Days(t.Context(), time.Time{}, time.Time{}) {
			require.NoError(t, err)
			require.Len(t, d.Lives, 3)
			require.Len(t, d.Problems, 4)
		}
		for d := range r.Days(t.Context(), time.Time{}, time.Time{}) {
			require.Len(t, d.Lives, 4, "an error of storage is not kept")
			require.Len(t, d.Problems, 3)
		}
	})
	t.Run("objects are read once", func(t *testing.T) {
		f := storagetest.NewFaulty(storage.NewMemory())
		put(t, f, "2026-10-01/A", line("a"))
		r := ledger.NewReader(f, shard)
		for range 3 {
			for _, err := range r.Days(t.Context(), time.Time{}, time.Time{}) {
				require.NoError(t, err)
			}
		}
		require.Equal(t, 1, f.Count(storagetest.Get))
	})
	t.Run("objects of a large ledger are read once", func(t *testing.T) {
		f := storagetest.NewFaulty(storage.NewMemory())
		blank := "\n" + strings.Repeat(" ", 60<<10) // counts, and costs no time to read
		life := func(day, n int) {
			id := fmt.Sprintf("%d-%d", day, n)
			put(t, f, time.Date(2026, 1, 1+day, 0, 0, 0, 0, time.UTC).Format(time.DateOnly)+"/"+id, `{"life":{"id":"`+id+`"}}`+blank)
		}
		for i := range 300 { // 18 MB, more than is kept object by object
			life(i/10, i%10)
		}
		r := ledger.NewReader(f, shard)
		gets := func() int {
			f.Reset()
			seen := map[nstance.InstanceID]bool{}
			for d, err := range r.Days(t.Context(), time.Time{}, time.Time{}) {
				require.NoError(t, err)
				for i := range d.Lives {
					seen[d.Lives[i].ID] = true
				}
			}
			require.GreaterOrEqual(t, len(seen), 300)
			return f.Count(storagetest.Get)
		}
		require.Equal(t, 300, gets())
		require.Zero(t, gets())
		life(29, 10)
		require.LessOrEqual(t, gets(), 11, "the latest day")
		life(3, 10)
		require.LessOrEqual(t, gets(), 11, "by a leader whose clock is wrong")
		require.Zero(t, gets())
	})
	t.Run("only as far as the loop goes", func(t *testing.T) {
		f := storagetest.NewFaulty(storage.NewMemory())
		for day := range 300 {
			put(t, f, time.Date(2026, 1, 1+day, 0, 0, 0, 0, time.UTC).Format(time.DateOnly)+"/A", line("a"))
		}
		for _, err := range ledger.NewReader(f, shard).Days(t.Context(), time.Time{}, time.Time{}) {
			require.NoError(t, err)
			break
		}
		require.LessOrEqual(t, f.Count(storagetest.Get), 32)
	})
	t.Run("objects that were merged meanwhile are found", func(t *testing.T) {
		mem := storage.NewMemory()
		f := storagetest.NewFaulty(mem)
		put(t, f, "2026-10-01/A", line("a"))
		f.Inject(storagetest.Fault{Op: storagetest.Get, Pass: true, Do: func() {
			obj, err := mem.Get(t.Context(), layout.LedgerPrefix(shard)+"2026-10-01/A.jsonl")
			require.NoError(t, err)
			put(t, mem, "2026-10-01/all", string(obj.Data))
			require.NoError(t, mem.DeleteIfMatch(t.Context(), obj.Key, obj.Version))
		}})
		require.Len(t, days(t, f)[0].Lives, 1)
	})
	t.Run("a failed listing is no end", func(t *testing.T) {
		f := storagetest.NewFaulty(storage.NewMemory())
		f.Inject(storagetest.Fault{Op: storagetest.List})
		for _, err := range ledger.NewReader(f, shard).Days(t.Context(), time.Time{}, time.Time{}) {
			require.ErrorIs(t, err, nstance.Unavailable)
		}
	})
}

func TestOutcomes(t *testing.T) {
	at := time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)
	drain := &nstance.Drain{}
	ack := func(o nstance.Outcome) *records.DrainEnd { return &records.DrainEnd{Outcome: o} }
	notices := []nstance.Notice{{EventID: "e"}}
	for want, recs := range map[ledger.Outcome][]records.Instance{
		ledger.Drained: {
			{Drain: drain, End: &records.End{Drained: ack(nstance.OutcomeDrained)}},
			{Drain: drain, End: &records.End{Drained: ack(nstance.OutcomeDrained), GoneAt: at}},
		},
		ledger.CutShort: {
			{Drain: drain, CutShort: true, End: &records.End{}},
			{Drain: drain, CutShort: true, End: &records.End{Drained: ack(nstance.OutcomeFailed)}},
			{Drain: drain, Notices: notices, End: &records.End{GoneAt: at}},
		},
		ledger.DrainFailed:   {{Drain: drain, End: &records.End{Drained: ack(nstance.OutcomeFailed)}}},
		ledger.NotDrained:    {{RegisteredAt: at}, {End: &records.End{LaunchedAt: at}}, {ProviderID: "i-1"}},
		ledger.Gone:          {{RegisteredAt: at, End: &records.End{GoneAt: at}}},
		ledger.GoneNoDrain:   {{RegisteredAt: at, Notices: notices, End: &records.End{GoneAt: at}}},
		ledger.NeverLaunched: {{}, {End: &records.End{}}},
	} {
		for i, rec := range recs {
			require.Equal(t, want, ledger.LifeOf(rec, "", at).Outcome, "%s, %d", want, i)
		}
	}
}
