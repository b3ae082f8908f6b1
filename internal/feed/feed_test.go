package feed_test

import (
	"context"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/feed"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// change is one step of a small key-value state, as an owner would publish it.
type change struct {
	key   string
	value int // zero removes
}

// table is such an owner.
type table struct {
	mu    sync.Mutex
	state map[string]int
	feed  *feed.Feed[change]
}

func newTable(backlog int) *table {
	return &table{state: map[string]int{}, feed: feed.New[change](backlog)}
}

func (o *table) set(key string, value int) nstance.Seq {
	o.mu.Lock()
	defer o.mu.Unlock()
	apply(o.state, change{key, value})
	return o.feed.Publish(change{key, value})
}

func (o *table) snapshot() ([]change, nstance.Seq) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []change
	for k, v := range o.state {
		all = append(all, change{k, v})
	}
	return all, o.feed.Last()
}

func (o *table) view() feed.View[change] {
	return feed.View[change]{Snapshot: func() (iter.Seq[change], nstance.Seq) {
		all, at := o.snapshot()
		return slices.Values(all), at
	}}
}

func apply(state map[string]int, c change) {
	if c.value == 0 {
		delete(state, c.key)
		return
	}
	state[c.key] = c.value
}

// take returns the first n items of a subscription.
func take(t *testing.T, o *table, after nstance.Seq, n int) []feed.Item[change] {
	t.Helper()
	var got []feed.Item[change]
	for item, err := range o.feed.Subscribe(t.Context(), after, o.view()) {
		require.NoError(t, err)
		if got = append(got, item); len(got) == n {
			break
		}
	}
	return got
}

func TestNumbersGrowByOne(t *testing.T) {
	f := feed.New[int](4)
	first := f.Publish(1)
	for i := range 10 {
		require.Equal(t, first+nstance.Seq(i)+1, f.Publish(i))
	}
	require.Equal(t, first+10, f.Last())
}

func TestBeginningIsSnapshotThenSynced(t *testing.T) {
	o := newTable(0)
	o.set("a", 1)
	last := o.set("a", 2)
	got := take(t, o, 0, 2)
	require.Equal(t, feed.Item[change]{Kind: feed.Snapshot, Value: change{"a", 2}}, got[0])
	require.Equal(t, feed.Item[change]{Kind: feed.Synced, Seq: last}, got[1])
}

func TestResume(t *testing.T) {
	t.Run("goes on after a number that is still known", func(t *testing.T) {
		o := newTable(3)
		first := o.set("a", 1)
		for i := 2; i <= 4; i++ {
			o.set("a", i)
		}
		got := take(t, o, first, 3)
		for i, item := range got {
			require.Equal(t, feed.Item[change]{Seq: first + nstance.Seq(i) + 1, Value: change{"a", i + 2}}, item)
		}
	})
	t.Run("begins again when the events have been overwritten", func(t *testing.T) {
		o := newTable(3)
		first := o.set("a", 1)
		for i := 2; i <= 5; i++ {
			o.set("a", i)
		}
		require.Equal(t, feed.Snapshot, take(t, o, first, 1)[0].Kind)
	})
	t.Run("begins again for a number from the future", func(t *testing.T) {
		o := newTable(3)
		last := o.set("a", 1)
		require.Equal(t, feed.Snapshot, take(t, o, last+1, 1)[0].Kind)
	})
	t.Run("begins again for a number of another feed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			old := newTable(3)
			seen := old.set("a", 1)
			<-time.After(time.Millisecond)
			o := newTable(3)
			o.set("b", 1)
			require.Equal(t, feed.Snapshot, take(t, o, seen, 1)[0].Kind)
		})
	})
	t.Run("works from the number of an empty snapshot", func(t *testing.T) {
		o := newTable(3)
		synced := take(t, o, 0, 1)[0]
		require.Equal(t, feed.Synced, synced.Kind)
		next := o.set("a", 1)
		require.Equal(t, feed.Item[change]{Seq: next, Value: change{"a", 1}}, take(t, o, synced.Seq, 1)[0])
	})
}

func TestKeepSelects(t *testing.T) {
	o := newTable(8)
	o.set("a", 1)
	o.set("b", 1)
	view := o.view()
	view.Keep = func(c change) bool { return c.key == "b" }
	var got []change
	for item, err := range o.feed.Subscribe(t.Context(), 0, view) {
		require.NoError(t, err)
		if item.Kind == feed.Synced {
			o.set("a", 2)
			o.set("b", 2)
			continue
		}
		if got = append(got, item.Value); len(got) == 2 {
			break
		}
	}
	require.Equal(t, []change{{"b", 1}, {"b", 2}}, got)
}

func TestWaitingSubscribersAreWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTable(8)
		var wg sync.WaitGroup
		got := make([][]feed.Item[change], 5)
		for i := range got {
			wg.Go(func() { got[i] = take(t, o, 0, 2) })
		}
		synctest.Wait()
		last := o.set("a", 1)
		wg.Wait()
		for _, items := range got {
			require.Equal(t, feed.Item[change]{Seq: last, Value: change{"a", 1}}, items[1])
		}
	})
}

func TestEndOfContextIsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTable(8)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		items := 0
		for _, err := range o.feed.Subscribe(ctx, 0, o.view()) {
			require.NoError(t, err)
			items++
		}
		require.Equal(t, 1, items)
	})
}

func TestEndOfContextCutsASnapshotShort(t *testing.T) {
	o := newTable(8)
	o.set("a", 1)
	o.set("b", 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	items := 0
	for range o.feed.Subscribe(ctx, 0, o.view()) {
		cancel()
		items++
	}
	require.Equal(t, 1, items)
}

func TestSlowSubscriberIsDroppedAndNeverBlocks(t *testing.T) {
	o := newTable(4)
	var last error
	var seen nstance.Seq
	for item, err := range o.feed.Subscribe(t.Context(), 0, o.view()) {
		if last = err; err != nil {
			break
		}
		seen = item.Seq
		for i := range 5 { // one more than the backlog, while the subscriber is busy
			o.set("a", i+1)
		}
	}
	require.ErrorIs(t, last, nstance.Unavailable)
	require.NotZero(t, seen)
	require.Equal(t, feed.Snapshot, take(t, o, seen, 1)[0].Kind, "it may come back")
}

func TestSubscriberAtTheEndOfTheBacklog(t *testing.T) {
	o := newTable(4)
	got := 0
	for item, err := range o.feed.Subscribe(t.Context(), 0, o.view()) {
		require.NoError(t, err)
		if item.Kind == feed.Synced {
			for i := range 4 {
				o.set("a", i+1)
			}
			continue
		}
		if got++; got == 4 {
			break
		}
	}
}

func TestWithoutSnapshotOnlyNewEvents(t *testing.T) {
	f := feed.New[int](-1)
	f.Publish(1)
	for item, err := range f.Subscribe(t.Context(), 0, feed.View[int]{}) {
		require.NoError(t, err)
		if item.Kind == feed.Synced {
			f.Publish(2)
			continue
		}
		require.Equal(t, 2, item.Value)
		break
	}
}

func TestSnapshotEventsAreNotRepeated(t *testing.T) {
	o := newTable(8)
	view := feed.View[change]{Snapshot: func() (iter.Seq[change], nstance.Seq) {
		o.set("a", 1) // an event while the subscriber is on its way in
		state, at := o.snapshot()
		o.set("a", 2) // and one right after
		return slices.Values(state), at
	}}
	var got []change
	for item, err := range o.feed.Subscribe(t.Context(), 0, view) {
		require.NoError(t, err)
		if item.Kind == feed.Synced {
			continue
		}
		if got = append(got, item.Value); len(got) == 2 {
			break
		}
	}
	require.Equal(t, []change{{"a", 1}, {"a", 2}}, got)
}

// TestNoEventIsLostOrRepeated lets subscribers join, fall away and resume while the
// owner publishes, and compares what they rebuilt with what the owner holds.
func TestNoEventIsLostOrRepeated(t *testing.T) {
	o := newTable(256)
	var wg sync.WaitGroup
	final := make([]map[string]int, 4)
	for i := range final {
		wg.Go(func() { final[i] = rebuild(t, o) })
	}
	for range 4000 {
		o.set(string(rune('a'+rand.IntN(16))), rand.IntN(3))
	}
	o.set("end", 1)
	wg.Wait()
	for _, state := range final {
		require.Equal(t, o.state, state)
	}
}

// rebuild follows o to its end, in sessions that break off for no reason now
// and then, and returns the state it arrived at.
func rebuild(t *testing.T, o *table) map[string]int {
	state := map[string]int{}
	var at nstance.Seq
	for state["end"] == 0 {
		fresh := map[string]int{}
		for item, err := range o.feed.Subscribe(t.Context(), at, o.view()) {
			if err != nil {
				break // too slow: resume
			}
			switch item.Kind {
			case feed.Snapshot:
				apply(fresh, item.Value)
			case feed.Synced:
				state, at = fresh, item.Seq
			case feed.Event:
				if item.Seq != at+1 {
					t.Errorf("event %d follows %d", item.Seq, at)
				}
				apply(state, item.Value)
				at = item.Seq
			}
			if state["end"] != 0 || rand.IntN(50) == 0 {
				break
			}
		}
	}
	return state
}

// turns counts those who have the turn.
type turns struct{ taken int }

func (l *turns) Take(context.Context) error { l.taken++; return nil }
func (l *turns) Give()                      { l.taken-- }

func TestTurnIsReleasedWhenASubscriberLeaves(t *testing.T) {
	o := newTable(10)
	o.set("a", 1)
	o.set("b", 2)
	for items := range 4 { // two of the snapshot, Synced, an event
		var l turns
		view := o.view()
		view.Turn = &l
		left := items
		for _, err := range o.feed.Subscribe(t.Context(), 0, view) {
			require.NoError(t, err)
			require.Equal(t, 1, l.taken)
			if left--; left < 0 {
				break
			}
			if left == 0 {
				o.set("c", items)
			}
		}
		require.Zero(t, l.taken, "it left at item %d", items)
	}
}

// TestTurnIsFreeWhileASubscriberWaits: the turn is held while there is something to tell, and at no
// other time.
func TestTurnIsFreeWhileASubscriberWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, told := newTable(10), 0
		var l turns
		view := o.view()
		view.Turn = &l
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for item, err := range o.feed.Subscribe(ctx, 0, view) {
				assert.NoError(t, err)
				assert.Equal(t, 1, l.taken)
				if item.Kind == feed.Event {
					told++
				}
			}
		}()
		for n := range 3 {
			synctest.Wait()
			require.Zero(t, l.taken)
			require.Equal(t, n, told)
			o.set("a", n+1)
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		require.Zero(t, l.taken)
		require.Equal(t, 3, told)
	})
}

func BenchmarkPublish(b *testing.B) {
	f := feed.New[int](1024)
	b.ReportAllocs()
	for i := range b.N {
		f.Publish(i)
	}
}
