package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/storage"
)

const (
	readWidth  = 16       // objects read at the same time
	readAhead  = 32       // objects of several days that are read together
	cacheBytes = 16 << 20 // of objects kept in memory
)

// A Day is what was written on one day.
type Day struct {
	Date     string // such as 2026-11-23
	Lives    []Life
	Ready    []Ready
	Ignored  []Ignored
	Actions  []Action
	Problems []Problem
}

// A Problem is an object, or a line of one, that cannot be read. The rest is not
// affected.
type Problem struct {
	Key string
	Err error
}

// A Reader reads the ledger of one shard. It keeps objects and whole days in memory, since
// objects never change. Its methods may be called concurrently.
type Reader struct {
	store storage.Store
	shard nstance.ShardID
	days  *dayCache

	mu    sync.Mutex
	cache map[string]Day // by key
	order []cached       // oldest first
	bytes int
}

type cached struct {
	key  string
	size int
}

// NewReader returns a reader. Nothing is read yet.
func NewReader(store storage.Store, shard nstance.ShardID) *Reader {
	return &Reader{store: store, shard: shard, cache: map[string]Day{}, days: newDayCache(dayCacheBytes)}
}

// Days yields what was written from the day of from until the day of to, the latest
// first; zero times mean no limit. Objects are read as the loop goes on. An error ends
// it: what came before is not the whole.
//
// A life stands on the day when it ended, or on a later one if storage did not take it
// then. It is once in a day; of copies on two days the earlier one counts.
func (r *Reader) Days(ctx context.Context, from, to time.Time) iter.Seq2[Day, error] {
	return func(yield func(Day, error) bool) {
		days, err := r.list(ctx, from, to)
		if err != nil {
			yield(Day{}, err)
			return
		}
		for len(days) > 0 {
			n, unread := 0, []string(nil)
			for n < len(days) && len(unread) < readAhead {
				if r.days.find(r.dayOf(days[n]), days[n]) == nil {
					unread = append(unread, days[n]...)
				}
				n++
			}
			read := r.readAll(ctx, unread)
			for _, keys := range days[:n] {
				day, err := r.day(ctx, keys, read)
				if err != nil {
					yield(Day{}, err)
					return
				}
				if !yield(day, nil) {
					return
				}
			}
			days = days[n:]
		}
	}
}

// list returns the keys of each day, the latest day first.
func (r *Reader) list(ctx context.Context, from, to time.Time) (days [][]string, err error) {
	prefix, after, last := layout.LedgerPrefix(r.shard), "", ""
	if !from.IsZero() {
		after = prefix + from.UTC().Format(time.DateOnly)
	}
	if !to.IsZero() {
		last = to.UTC().Format(time.DateOnly)
	}
	date := ""
	for e, err := range r.store.List(ctx, prefix, after) {
		if err != nil {
			return nil, err
		}
		d := dayOf(prefix, e.Key)
		if last != "" && d > last {
			break
		}
		if d != date {
			date, days = d, append(days, nil)
		}
		days[len(days)-1] = append(days[len(days)-1], e.Key)
	}
	slices.Reverse(days)
	return days, nil
}

func dayOf(prefix, key string) string {
	day, _, _ := strings.Cut(strings.TrimPrefix(key, prefix), "/")
	return day
}

// readAll reads objects. An object that is gone is missing in the result.
func (r *Reader) readAll(ctx context.Context, keys []string) map[string]Day {
	out := make(map[string]Day, len(keys))
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, readWidth)
	for _, key := range keys {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if d, ok := r.read(ctx, key); ok {
				mu.Lock()
				defer mu.Unlock()
				out[key] = d
			}
		})
	}
	wg.Wait()
	return out
}

// dayOf returns the day that keys are of.
func (r *Reader) dayOf(keys []string) string { return dayOf(layout.LedgerPrefix(r.shard), keys[0]) }

// day returns a day from memory, or from objects that were read.
func (r *Reader) day(ctx context.Context, keys []string, read map[string]Day) (Day, error) {
	if day, ok := r.days.get(r.dayOf(keys), keys); ok {
		return day, ctx.Err()
	}
	return r.merge(ctx, keys, read)
}

// merge returns a day. Objects that are gone since the listing were merged into
// another one, or pruned: the day is listed again.
func (r *Reader) merge(ctx context.Context, keys []string, read map[string]Day) (Day, error) {
	day := Day{Date: r.dayOf(keys)}
	if slices.ContainsFunc(keys, func(key string) bool { _, ok := read[key]; return !ok }) {
		keys = nil
		for e, err := range r.store.List(ctx, layout.LedgerPrefix(r.shard)+day.Date+"/", "") {
			if err != nil {
				return day, err
			}
			keys = append(keys, e.Key)
		}
		read = r.readAll(ctx, keys)
	}
	for _, key := range keys {
		d := read[key]
		day.Lives = append(day.Lives, d.Lives...)
		day.Ready = append(day.Ready, d.Ready...)
		day.Ignored = append(day.Ignored, d.Ignored...)
		day.Actions = append(day.Actions, d.Actions...)
		day.Problems = append(day.Problems, d.Problems...)
	}
	day.Lives = earliest(day.Lives)
	r.days.keep(keys, day)
	return day, ctx.Err()
}

// earliest returns the first copy of each life: a leader that could not delete the record
// after it had written the life leaves that to the next one, which writes it again, with a
// later end.
func earliest(lives []Life) []Life {
	at, out := make(map[nstance.InstanceID]int, len(lives)), lives[:0]
	for i := range lives {
		switch j, copied := at[lives[i].ID]; {
		case !copied:
			at[lives[i].ID] = len(out)
			out = append(out, lives[i])
		case lives[i].DeletedAt.Before(out[j].DeletedAt):
			out[j] = lives[i]
		}
	}
	return out
}

// read returns one object, from memory if it is there, and false if it does not exist.
func (r *Reader) read(ctx context.Context, key string) (Day, bool) {
	r.mu.Lock()
	d, ok := r.cache[key]
	r.mu.Unlock()
	if ok {
		return d, true
	}
	obj, err := r.store.Get(ctx, key)
	if errors.Is(err, nstance.NotFound) {
		return Day{}, false
	}
	if err != nil {
		return Day{Problems: []Problem{{key, err}}}, true
	}
	d = parse(key, obj.Data)
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.cache[key]; ok {
		return d, true
	}
	r.cache[key] = d
	r.order = append(r.order, cached{key, len(obj.Data)})
	for r.bytes += len(obj.Data); r.bytes > cacheBytes && len(r.order) > 0; {
		oldest := r.order[0]
		r.order = r.order[1:]
		r.bytes -= oldest.size
		delete(r.cache, oldest.key)
	}
	return d, true
}

// parse never panics, whatever the data.
func parse(key string, data []byte) (d Day) {
	for n, line := range bytes.Split(data, []byte("\n")) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			d.Problems = append(d.Problems, Problem{key, nstance.Errorf(nstance.Invalid, "read %s: line %d: %w", key, n+1, err)})
			continue
		}
		switch {
		case e.Life != nil:
			d.Lives = append(d.Lives, *e.Life)
		case e.Ready != nil:
			d.Ready = append(d.Ready, *e.Ready)
		case e.Ignored != nil:
			d.Ignored = append(d.Ignored, *e.Ignored)
		case e.Action != nil:
			d.Actions = append(d.Actions, *e.Action)
		}
	}
	return d
}
