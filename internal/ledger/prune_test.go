package ledger_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestPrune(t *testing.T) {
	now := time.Date(2026, 11, 10, 12, 0, 0, 0, time.UTC)
	// ten days, the latest one today, with two objects of 50 bytes each
	fill := func(t *testing.T) *storagetest.Faulty {
		s := storagetest.NewFaulty(storage.NewMemory())
		for day := range 10 {
			for _, name := range []string{"A", "B"} {
				_, err := s.PutIfAbsent(t.Context(), layout.LedgerKey(shard, now.AddDate(0, 0, -day), name), []byte(strings.Repeat("\n", 50)))
				require.NoError(t, err)
			}
		}
		_, err := s.PutIfAbsent(t.Context(), layout.LedgerKey("other", now.AddDate(-9, 0, 0), "A"), nil)
		require.NoError(t, err)
		return s
	}
	left := func(t *testing.T, s storage.Store) (days []string) {
		for e, err := range s.List(t.Context(), layout.LedgerPrefix(shard), "") {
			require.NoError(t, err)
			if day := strings.Split(e.Key, "/")[2]; len(days) == 0 || days[len(days)-1] != day {
				days = append(days, day)
			}
		}
		return days
	}
	always := func() error { return nil }
	const day = 24 * time.Hour
	for name, c := range map[string]struct {
		keep  ledger.Retention
		first string
		days  int
	}{
		"no limit":                     {ledger.Retention{}, "2026-11-01", 10},
		"by age":                       {ledger.Retention{Age: 3 * day}, "2026-11-07", 4},
		"by size":                      {ledger.Retention{Size: 299}, "2026-11-09", 2},
		"by size, to the byte":         {ledger.Retention{Size: 300}, "2026-11-08", 3},
		"the stricter one":             {ledger.Retention{Age: 5 * day, Size: 200}, "2026-11-09", 2},
		"the other one":                {ledger.Retention{Age: day, Size: 800}, "2026-11-09", 2},
		"the latest day always stays":  {ledger.Retention{Size: 1}, "2026-11-10", 1},
		"everything within the limits": {ledger.Retention{Age: 400 * day, Size: 1 << 30}, "2026-11-01", 10},
	} {
		t.Run(name, func(t *testing.T) {
			s := fill(t)
			n, err := ledger.Prune(t.Context(), s, shard, c.keep, now, always)
			require.NoError(t, err)
			require.Equal(t, 2*(10-c.days), n)
			days := left(t, s)
			require.Len(t, days, c.days)
			require.Equal(t, c.first, days[0])
			_, err = s.Get(t.Context(), layout.LedgerKey("other", now.AddDate(-9, 0, 0), "A"))
			require.NoError(t, err, "another shard's")
		})
	}
	t.Run("not after the term", func(t *testing.T) {
		s, over := fill(t), errors.New("over")
		_, err := ledger.Prune(t.Context(), s, shard, ledger.Retention{Age: day}, now, func() error { return over })
		require.ErrorIs(t, err, over)
		require.Len(t, left(t, s), 10)
	})
	t.Run("a failed listing deletes nothing", func(t *testing.T) {
		s := fill(t)
		s.Inject(storagetest.Fault{Op: storagetest.List, Mode: storagetest.LoseAnswer})
		_, err := ledger.Prune(t.Context(), s, shard, ledger.Retention{Size: 1}, now, always)
		require.ErrorIs(t, err, nstance.Unavailable)
		require.Zero(t, s.Count(storagetest.Delete))
	})
}

// TestPruneAsksBeforeEachDeletion: the term may end, or the clock turn out to be wrong,
// between two of them.
func TestPruneAsksBeforeEachDeletion(t *testing.T) {
	now := time.Date(2026, 11, 10, 12, 0, 0, 0, time.UTC)
	s := storage.NewMemory()
	for day := range 10 {
		_, err := s.PutIfAbsent(t.Context(), layout.LedgerKey(shard, now.AddDate(0, 0, -day), "A"), nil)
		require.NoError(t, err)
	}
	asked, wrong := 0, errors.New("the clock is wrong")
	removed, err := ledger.Prune(t.Context(), s, shard, ledger.Retention{Age: 24 * time.Hour}, now, func() error {
		if asked++; asked > 3 {
			return wrong
		}
		return nil
	})
	require.ErrorIs(t, err, wrong)
	require.Equal(t, 3, removed)
}

// TestPruneBesideAnotherLeader: what is gone already is no error; any other error ends the pass.
func TestPruneBesideAnotherLeader(t *testing.T) {
	now := time.Date(2026, 11, 10, 12, 0, 0, 0, time.UTC)
	for code, ok := range map[nstance.Code]bool{nstance.NotFound: true, nstance.Conflict: false, nstance.Denied: false} {
		s := storagetest.NewFaulty(storage.NewMemory())
		for day := range 10 {
			_, err := s.PutIfAbsent(t.Context(), layout.LedgerKey(shard, now.AddDate(0, 0, -day), "A"), nil)
			require.NoError(t, err)
		}
		s.Inject(storagetest.Fault{Op: storagetest.Delete, Skip: 2, Err: code})
		_, err := ledger.Prune(t.Context(), s, shard, ledger.Retention{Age: 3 * 24 * time.Hour}, now, func() error { return nil })
		if ok {
			require.NoError(t, err)
			require.Equal(t, 6, s.Count(storagetest.Delete))
		} else {
			require.ErrorIs(t, err, code)
			require.Equal(t, 3, s.Count(storagetest.Delete))
		}
	}
}

// TestPruneWithoutSizes: a store that does not say how large objects are keeps some days all the same.
func TestPruneWithoutSizes(t *testing.T) {
	now := time.Date(2026, 11, 10, 12, 0, 0, 0, time.UTC)
	s := storage.NewMemory()
	for day := range 10 {
		_, err := s.PutIfAbsent(t.Context(), layout.LedgerKey(shard, now.AddDate(0, 0, -day), "A"), nil)
		require.NoError(t, err)
	}
	removed, err := ledger.Prune(t.Context(), s, shard, ledger.Retention{Size: 3}, now, func() error { return nil })
	require.NoError(t, err)
	require.Equal(t, 7, removed, "each object counts")
}
