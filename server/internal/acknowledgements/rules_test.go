package acknowledgements_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage/storagetest"
)

var short = reconcile.Attention{Kind: "short", Subject: "group t/web"}

// TestRepeated: a call whose answer was lost changes nothing; another one, or one that comes when
// the first is over, does.
func TestRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(clock)
		b, _ := s.lead(t, 1)
		first := want("clock", time.Hour)
		put(t, b, first)
		pass(time.Second)
		again := first
		again.At, again.Until = time.Now().UTC(), first.Until.Add(time.Second)
		stands, changed, err := b.Put(t.Context(), again, false)
		require.NoError(t, err)
		require.False(t, changed)
		require.True(t, first.Until.Equal(stands.Until), "what stands is returned")
		require.True(t, first.Until.Equal(s.stored(t)[0].Until))

		other := again
		other.By, other.Until = "ann", first.Until.Add(time.Hour)
		stands, changed, err = b.Put(t.Context(), other, true)
		require.NoError(t, err)
		require.True(t, changed)
		require.Equal(t, "ann", stands.By)
		require.Equal(t, "eve", s.stored(t)[0].By, "it was a dry run")
		put(t, b, other)
		require.Len(t, s.stored(t), 1, "it is in place of the first")
		require.Equal(t, "ann", s.stored(t)[0].By)
		require.True(t, other.Until.Equal(s.stored(t)[0].Until))

		for _, refused := range []attention.Acknowledgement{want("unknown", time.Hour), want("clock", 0)} {
			_, _, err = b.Put(t.Context(), refused, false)
			require.Error(t, err)
		}
		require.Len(t, s.stored(t), 1)
	})
}

// TestRemove ends one acknowledgement and no other; without a subject the only one of its kind.
func TestRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(clock, short)
		b, _ := s.lead(t, 1)
		put(t, b, want("clock", time.Hour))
		group := want("short", time.Hour)
		group.Subject = short.Subject
		put(t, b, group)

		of, removed, err := b.Remove(t.Context(), "short", "", true)
		require.NoError(t, err)
		require.Equal(t, []any{short.Subject, true}, []any{of, removed})
		require.Equal(t, 2, s.known(b))
		for _, c := range []struct {
			kind    reconcile.AttentionKind
			subject string
		}{{"short", "shard"}, {"clock", short.Subject}} {
			_, removed, err = b.Remove(t.Context(), c.kind, c.subject, false)
			require.NoError(t, err)
			require.False(t, removed, "%s of %s", c.kind, c.subject)
		}
		of, removed, err = b.Remove(t.Context(), "short", "", false)
		require.NoError(t, err)
		require.Equal(t, []any{short.Subject, true}, []any{of, removed})
		require.Len(t, s.stored(t), 1)
		require.Equal(t, reconcile.AttentionKind("clock"), s.stored(t)[0].Kind)
		_, removed, err = b.Remove(t.Context(), "short", short.Subject, false)
		require.NoError(t, err)
		require.False(t, removed, "it has ended already")
	})
}

// TestOrder: what is acknowledged comes after what is not.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(clock, short)
		b, _ := s.lead(t, 1)
		put(t, b, want("clock", time.Hour))
		marked := b.Mark(s.entries())
		require.Equal(t, short.Subject, marked[0].Subject)
		require.Nil(t, marked[0].Acknowledged)
		require.Equal(t, "eve", marked[1].Acknowledged.By)
	})
}

// TestUnreadable: a damaged document is reported, is not overwritten and is not asked for in a
// loop; once it has been repaired it is used.
func TestUnreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(clock)
		_, err := s.PutIfAbsent(t.Context(), layout.AttentionKey("s1"), []byte("{"))
		require.NoError(t, err)
		s.Reset()
		b, _ := s.lead(t, 1)
		require.Len(t, b.Problems(), 1)
		require.Contains(t, b.Problems()[0], "attention/s1.json cannot be used")
		_, _, err = b.Put(t.Context(), want("clock", time.Hour), false)
		require.ErrorIs(t, err, nstance.Invalid)
		pass(time.Hour)
		require.LessOrEqual(t, s.Count(""), 150, "about once a minute")
		require.Zero(t, s.Count(storagetest.PutIfMatch)+s.Count(storagetest.PutIfAbsent))

		obj, err := s.Get(t.Context(), layout.AttentionKey("s1"))
		require.NoError(t, err)
		require.Equal(t, "{", string(obj.Data))
		require.NoError(t, s.DeleteIfMatch(t.Context(), obj.Key, obj.Version))
		pass(time.Minute)
		require.Empty(t, b.Problems())
		put(t, b, want("clock", time.Hour))
	})
}

// TestStorageOutage: a leader that could not read what is acknowledged reads it within seconds
// after storage answers, and not at the next minute.
func TestStorageOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(clock)
		b, stop := s.lead(t, 1)
		put(t, b, want("clock", time.Hour))
		stop()
		s.Inject(storagetest.Fault{Times: -1})
		b, _ = s.lead(t, 2)
		pass(10 * time.Second)
		require.Empty(t, b.Problems(), "storage that does not answer is no damage")
		require.Zero(t, s.known(b))
		require.LessOrEqual(t, s.Count(""), 200, "it is asked about once a second")
		s.ClearFaults()
		pass(2 * time.Second)
		require.Equal(t, 1, s.known(b))
	})
}

// TestEntriesByName: an entry that is gone ends its own acknowledgement only, twenty minutes after
// it was last listed, and an acknowledgement that ends and is given again has its whole time.
func TestEntriesByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(clock, short)
		b, _ := s.lead(t, 1)
		put(t, b, want("clock", 24*time.Hour))
		group := want("short", 24*time.Hour)
		group.Subject = short.Subject
		put(t, b, group)
		pass(10 * time.Minute)
		s.set(clock, reconcile.Attention{Kind: "short", Subject: "group t/other"}, reconcile.Attention{Kind: "other", Subject: short.Subject})
		pass(19 * time.Minute)
		require.Len(t, s.stored(t), 2)
		pass(2 * time.Minute)
		require.Len(t, s.stored(t), 1)
		require.Equal(t, reconcile.AttentionKind("clock"), s.stored(t)[0].Kind)

		s.set(clock, short)
		group.At, group.Until = time.Now().UTC(), time.Now().Add(24*time.Hour).UTC()
		put(t, b, group)
		s.set(clock)
		pass(15 * time.Minute)
		require.Len(t, s.stored(t), 2, "its twenty minutes begin anew")
		pass(7 * time.Minute)
		require.Len(t, s.stored(t), 1)
	})
}

// TestAcknowledgedAgain: of an acknowledgement that was ended, nothing is left for the next one.
func TestAcknowledgedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(clock)
		b, _ := s.lead(t, 1)
		put(t, b, want("clock", 24*time.Hour))
		pass(5 * time.Minute)
		_, removed, err := b.Remove(t.Context(), "clock", "shard", false)
		require.NoError(t, err)
		require.True(t, removed)
		pass(time.Hour)
		put(t, b, want("clock", 24*time.Hour))
		s.set()
		pass(15 * time.Minute)
		require.Len(t, s.stored(t), 1)
		pass(4 * time.Minute)
		for len(s.stored(t)) > 0 {
			pass(time.Second)
		}
		s.set(clock)
		put(t, b, want("clock", 24*time.Hour))
		s.set()
		pass(15 * time.Minute)
		require.Len(t, s.stored(t), 1, "put at once after the other has ended")
	})
}
