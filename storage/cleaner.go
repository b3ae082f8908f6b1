package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

// Limits of one pass of a Cleaner.
const (
	maxListed    = 5000 // keys of each prefix; the next pass goes on after them
	maxCondemned = 1000 // keys on the list
	maxDeleted   = 200
	deletesWidth = 8 // at a time
	idleTurns    = 3 // without a pass of whoever cleans, until another one does
)

// A Cleaner removes definitions and fetched user data that nothing in the store
// names any more, of whatever shard. Each shard's leader has one, and they agree
// on one that works. It works with what [Contents] promises its callers:
//
//  1. what nothing names is put on a list, which everybody reads before he
//     names a thing, and takes things off;
//  2. what has been on the list for so long that nobody can name it without
//     having read the list, and is still named by nothing, is marked there;
//  3. what is marked is removed, and taken off.
//
// Any error ends a pass before that: nothing is removed then.
// docs/design/014-cleaning.md says why this is safe. Its methods are for one
// caller at a time.
type Cleaner struct {
	store Store
	shard nstance.ShardID
	opts  CleanerOptions
	doc   *Doc[condemned]

	seen  sightings
	round string            // of the last pass that was seen
	idle  int               // turns since then
	after map[string]string // by prefix: the last key that was listed
}

// CleanerOptions adjust NewCleaner. Nil means the defaults.
type CleanerOptions struct {
	Check   func() error         // asked before each write: an error means that the term is over; nil: never
	Elapsed func() time.Duration // as in RecordsOptions
	Now     func() time.Time     // of what people read; time.Now
	Log     *slog.Logger         // discarded
}

// Cleanable begins the keys of what a Cleaner may remove.
func Cleanable() []string { return []string{DefinitionKey(""), FetchedKey("")} }

// NewCleaner returns the cleaner of a shard's leader. Nothing is read yet.
func NewCleaner(s Store, shard nstance.ShardID, o *CleanerOptions) *Cleaner {
	c := &Cleaner{store: s, shard: shard, seen: sightings{}, after: map[string]string{}}
	if o != nil {
		c.opts = *o
	}
	if c.opts.Check == nil {
		c.opts.Check = func() error { return nil }
	}
	if c.opts.Now == nil {
		c.opts.Now = time.Now
	}
	if c.opts.Log == nil {
		c.opts.Log = slog.New(slog.DiscardHandler)
	}
	c.opts.Elapsed = stopwatch(c.opts.Elapsed)
	c.doc = NewDoc[condemned](s, CondemnedKey, &DocOptions{Check: c.opts.Check})
	return c
}

// Turn reports whether it is this shard that cleans at present. It is to be
// called before each pass, by all shards about equally often. An error means
// that nobody should clean.
func (c *Cleaner) Turn(ctx context.Context) (bool, error) {
	list, err := c.look(ctx)
	if err != nil {
		return false, err
	}
	if list.Round != c.round {
		c.round, c.idle = list.Round, 0
	} else {
		c.idle++
	}
	return list.By == "" || list.By == c.shard || c.idle >= idleTurns, nil
}

// look reads the list. After an error everything on it counts as put there when
// it can be read again.
func (c *Cleaner) look(ctx context.Context) (condemned, error) {
	list, err := c.doc.Load(ctx)
	if err == nil && list.Format != "" {
		err = Understood(CondemnedKey, list.Format)
	}
	if err != nil {
		clear(c.seen)
		return list, err
	}
	c.seen.see(list.Keys, c.opts.Elapsed())
	return list, nil
}

// A sentence is what one pass does to the list.
type sentence struct {
	named   []string          // to be taken off
	due     map[string]string // to be removed now: the condemnation's ID, by key
	again   map[string]string // whose removal was announced and never came about: to be put on anew
	unnamed []string          // to be put on
}

// Clean does one pass: it puts on the list what nothing names, and removes what
// has been on it for retention and half an hour. It returns how many objects it
// has removed, by the beginning of their keys.
func (c *Cleaner) Clean(ctx context.Context, retention time.Duration) (map[string]int, error) {
	list, err := c.look(ctx)
	if err != nil {
		return nil, err
	}
	listed, after, err := c.survey(ctx)
	if err != nil {
		return nil, err
	}
	began := c.opts.Elapsed()
	var refs references
	if keys := slices.AppendSeq(slices.Clone(listed), maps.Keys(list.Keys)); len(keys) > 0 {
		if refs, err = readReferences(ctx, c.store, keys); err != nil {
			return nil, err
		}
	}
	s := c.judge(list, listed, refs, began, retention+contentMemory+referenceTime)
	announced := c.opts.Elapsed()
	due, err := c.announce(ctx, s)
	if err != nil {
		return nil, err
	}
	c.after = after
	return c.carryOut(ctx, due, announced)
}

// survey lists a part of what may be removed, each time the next.
func (c *Cleaner) survey(ctx context.Context) (keys []string, after map[string]string, err error) {
	after = maps.Clone(c.after)
	for _, prefix := range Cleanable() {
		page, next, err := ListPage(ctx, c.store, prefix, c.after[prefix], maxListed)
		if err != nil {
			return nil, nil, err
		}
		for _, entry := range page {
			keys = append(keys, entry.Key)
		}
		after[prefix] = next
	}
	return keys, after, nil
}

// ListPage returns at most limit entries after a key, and the key after which the
// next page begins: the last one, or none when there is nothing more.
func ListPage(ctx context.Context, s Store, prefix, after string, limit int) (page []Entry, next string, err error) {
	for entry, err := range s.List(ctx, prefix, after) {
		if err != nil {
			return nil, "", err
		}
		if len(page) == limit {
			return page, page[limit-1].Key, nil
		}
		page = append(page, entry)
	}
	return page, "", nil
}

// digestIn returns the digest that a key of contents ends in; empty: it is none, or
// none of a kind that this version knows all about, and is never touched.
func digestIn(key string) string {
	for _, prefix := range Cleanable() {
		digest, ok := strings.CutPrefix(key, prefix)
		if ok && len(digest) == digestLen && strings.Trim(digest, "0123456789abcdef") == "" {
			return digest
		}
	}
	return ""
}

// judge decides what becomes of what is on the list or was listed, now that it is
// known what is named. Whatever the list says of an object is older than that.
func (c *Cleaner) judge(list condemned, listed []string, refs references, now, term time.Duration) sentence {
	s := sentence{due: map[string]string{}, again: map[string]string{}}
	for _, key := range slices.Sorted(maps.Keys(list.Keys)) {
		on := list.Keys[key]
		switch ripe := c.seen.age(key, on.ID, now) >= term; {
		case on.Deleting && ripe:
			s.again[key] = on.ID
		case on.Deleting:
		case refs[digestIn(key)] || digestIn(key) == "":
			s.named = append(s.named, key)
		case ripe && len(s.due) < maxDeleted:
			s.due[key] = on.ID
		}
	}
	room := maxCondemned - len(list.Keys) + len(s.named)
	for _, key := range listed {
		if _, on := list.Keys[key]; !on && len(s.unnamed) < room && digestIn(key) != "" && !refs[digestIn(key)] {
			s.unnamed = append(s.unnamed, key)
		}
	}
	return s
}

// announce writes the list, and returns what may be removed now: what has been
// taken off the list or has changed there meanwhile is let be.
func (c *Cleaner) announce(ctx context.Context, s sentence) (due map[string]string, err error) {
	round := rand.Text()
	_, err = c.doc.Update(ctx, func(l *condemned) error {
		due = map[string]string{}
		if l.Keys == nil {
			l.Keys = map[string]condemnation{}
		}
		for key, id := range s.due {
			if on := l.Keys[key]; on.ID == id && !on.Deleting {
				on.ID, on.Deleting = rand.Text(), true
				l.Keys[key], due[key] = on, on.ID
			}
		}
		for _, key := range s.named {
			if !l.Keys[key].Deleting {
				delete(l.Keys, key)
			}
		}
		for key, id := range s.again {
			if l.Keys[key].ID == id {
				l.Keys[key] = c.condemn()
			}
		}
		for _, key := range s.unnamed {
			if _, on := l.Keys[key]; !on {
				l.Keys[key] = c.condemn()
			}
		}
		l.By, l.Round = c.shard, round
		return nil
	})
	if err != nil {
		clear(c.seen)
		return nil, err
	}
	c.round, c.idle = round, 0
	held, _ := c.doc.Held()
	c.seen.see(held.Keys, c.opts.Elapsed())
	return due, nil
}

func (c *Cleaner) condemn() condemnation {
	return condemnation{ID: rand.Text(), Since: c.opts.Now().UTC()}
}

// carryOut removes what is marked on the list, if that can be done in time, and
// takes it off.
func (c *Cleaner) carryOut(ctx context.Context, due map[string]string, announced time.Duration) (map[string]int, error) {
	if len(due) == 0 {
		return nil, nil
	}
	limited, cancel := context.WithTimeout(ctx, deleteTime-(c.opts.Elapsed()-announced))
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	gone, failed, work := map[string]bool{}, error(nil), make(chan string)
	for range min(deletesWidth, len(due)) {
		wg.Go(func() {
			for key := range work {
				err := c.remove(limited, key, announced)
				mu.Lock()
				gone[key] = err == nil
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
		})
	}
	for key := range due {
		work <- key
	}
	close(work)
	wg.Wait()
	return c.count(gone), errors.Join(failed, c.discharge(ctx, due, gone))
}

// remove deletes one object that is marked on the list. That it is gone already
// is success.
func (c *Cleaner) remove(ctx context.Context, key string, announced time.Duration) error {
	page, _, err := ListPage(ctx, c.store, key, "", 1)
	if err != nil || len(page) == 0 || page[0].Key != key {
		return err
	}
	if err := c.opts.Check(); err != nil {
		return nstance.Errorf(nstance.Unavailable, "remove %s: this term is over: %w", key, err)
	}
	if c.opts.Elapsed()-announced >= deleteTime {
		return nstance.Errorf(nstance.Unavailable, "remove %s: it has taken too long since that was announced", key)
	}
	err = c.store.DeleteIfMatch(ctx, key, page[0].Version)
	if errors.Is(err, nstance.NotFound) {
		return nil
	}
	return err
}

// discharge takes off the list what is gone. What is not, or may be, stays marked,
// in case the deletion is still under way; a later pass begins anew with it.
func (c *Cleaner) discharge(ctx context.Context, due map[string]string, gone map[string]bool) error {
	_, err := c.doc.Update(ctx, func(l *condemned) error {
		for key, id := range due {
			if gone[key] && l.Keys[key].ID == id {
				delete(l.Keys, key)
			}
		}
		return nil
	})
	return err
}

func (c *Cleaner) count(gone map[string]bool) map[string]int {
	n := map[string]int{}
	for key, ok := range gone {
		if prefix, digest, _ := strings.Cut(key, "/"); ok {
			n[prefix+"/"]++
			c.opts.Log.Debug("removed what nothing named", "prefix", prefix, "digest", digest)
		}
	}
	return n
}
