package ledger

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/storage"
)

// A Retention says what Prune keeps. Zero fields mean no limit.
type Retention struct {
	Age  time.Duration
	Size int64 // bytes
}

// Prune deletes the oldest days of a shard's ledger: those before now - Age, and those
// beyond Size, counted from the latest day. The latest day stays whatever its size. check
// is asked before each deletion: an error ends the pass. It may be repeated.
func Prune(ctx context.Context, store storage.Store, shard nstance.ShardID, keep Retention, now time.Time, check func() error) (removed int, err error) {
	prefix := layout.LedgerPrefix(shard)
	var all []storage.Entry
	for e, err := range store.List(ctx, prefix, "") {
		if err != nil {
			return 0, err
		}
		all = append(all, e)
	}
	first := keepFrom(prefix, all, keep, now)
	for _, e := range all {
		if dayOf(prefix, e.Key) >= first {
			break // they are listed by day
		}
		if err := check(); err != nil {
			return removed, err
		}
		if err := store.DeleteIfMatch(ctx, e.Key, e.Version); err != nil && !errors.Is(err, nstance.NotFound) {
			return removed, err
		}
		removed++
	}
	return removed, nil
}

// keepFrom returns the first day to keep.
func keepFrom(prefix string, all []storage.Entry, keep Retention, now time.Time) (first string) {
	if keep.Age > 0 {
		first = now.Add(-keep.Age).UTC().Format(time.DateOnly)
	}
	if keep.Size <= 0 || len(all) == 0 {
		return first
	}
	sizes, days := map[string]int64{}, []string{}
	for _, e := range all {
		day := dayOf(prefix, e.Key)
		if sizes[day] == 0 {
			days = append(days, day)
		}
		sizes[day] += max(1, e.Size)
	}
	kept, total := days[len(days)-1], sizes[days[len(days)-1]]
	for _, day := range slices.Backward(days[:len(days)-1]) {
		if total += sizes[day]; total > keep.Size {
			break
		}
		kept = day
	}
	return max(first, kept)
}
