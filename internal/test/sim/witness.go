package sim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// A witness is the store itself, without delay or fault. It holds a copy of
// every record and sees every change at the moment in which it happens.
type witness struct {
	storage.Store
	w *World

	mu       sync.Mutex
	versions map[string]storage.Version
	records  map[nstance.InstanceID]*storage.Instance // what they lead to is never changed
	keys     map[string]nstance.InstanceID
	ever     map[nstance.InstanceID]bool      // it has had a record
	marked   map[nstance.InstanceID]time.Time // since when its record has said deleting, even if there is none any more
	free     bool                             // the lease has been given back
	given    bool                             // it had been before its latest write
}

func newWitness(w *World) *witness {
	store := storage.NewMemory()
	if _, err := lease.Prepare(context.Background(), store, shard); err != nil {
		panic(err) // memory does not fail
	}
	prepared, err := store.Get(context.Background(), storage.LeaseKey(shard))
	if err != nil {
		panic(err)
	}
	return &witness{
		Store: store, w: w, versions: map[string]storage.Version{prepared.Key: prepared.Version}, records: map[nstance.InstanceID]*storage.Instance{},
		keys: map[string]nstance.InstanceID{}, ever: map[nstance.InstanceID]bool{}, marked: map[nstance.InstanceID]time.Time{},
	}
}

// record returns what storage really holds for an instance.
func (s *witness) record(id nstance.InstanceID) (storage.Instance, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rec := s.records[id]; rec != nil {
		return *rec, true
	}
	return storage.Instance{}, false
}

func (s *witness) all() []*storage.Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.records))
}

// members returns the records of a group, instances on demand apart.
func (s *witness) members(key nstance.GroupKey) (out []*storage.Instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rec := range s.records {
		if keyOf(*rec) == key && !rec.OnDemand {
			out = append(out, rec)
		}
	}
	return out
}

// wasThere reports whether an instance has ever had a record.
func (s *witness) wasThere(id nstance.InstanceID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ever[id]
}

// wasGiven reports whether the lease was given back before it was last taken.
func (s *witness) wasGiven() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.given
}

// markedSince returns since when the record has said that it is being deleted,
// or zero.
func (s *witness) markedSince(id nstance.InstanceID) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.marked[id]
}

// put does a write for a server and looks at what it did. Writes are done one
// at a time.
func (s *witness) put(p *process, t *lease.Term, key string, data []byte, had storage.Version, do func() (storage.Version, error)) (storage.Version, error) {
	s.mu.Lock()
	v, err := do()
	s.w.check.tell("write %s %x %v", key, sha256.Sum256(data), err)
	if err != nil {
		s.mu.Unlock()
		return v, err
	}
	if s.versions[key] != had {
		s.w.check.violated("I7", "a write of %s was taken although its condition did not hold", key)
	}
	s.versions[key] = v
	if key == storage.LeaseKey(shard) {
		s.given, s.free = s.free, bytes.Contains(data, []byte(`"released":true`))
	}
	old, now, ok := s.note(key, data)
	s.mu.Unlock()
	if key == storage.StateKey(shard) {
		s.w.check.judged(data)
	}
	if ok {
		s.w.check.written(p, t, old, now)
	}
	return v, err
}

// note keeps a record's new content. It needs the lock.
func (s *witness) note(key string, data []byte) (old *storage.Instance, now storage.Instance, ok bool) {
	now, err := storage.DecodeInstance(key, data)
	if err != nil {
		return nil, now, false // not a record
	}
	old = s.records[now.ID]
	s.records[now.ID], s.keys[key] = &now, now.ID
	s.ever[now.ID] = true
	if now.Deleting != nil && s.marked[now.ID].IsZero() {
		s.marked[now.ID] = time.Now()
	}
	return old, now, true
}

func (s *witness) remove(ctx context.Context, key string, v storage.Version) error {
	s.mu.Lock()
	err := s.DeleteIfMatch(ctx, key, v)
	s.w.check.tell("remove %s %v", key, err)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	had, id := s.versions[key], s.keys[key]
	delete(s.versions, key)
	delete(s.records, id)
	s.mu.Unlock()
	if had != v {
		s.w.check.violated("I7", "the delete of %s was taken although its condition did not hold", key)
	}
	if m, err := s.w.cloud.Truth(id); id != "" && err == nil && m.Status == nstance.StatusRunning {
		s.w.check.violated("I1", "the record of %s was deleted while its machine runs", id)
	}
	return nil
}

// written checks what one write did to a record.
func (c *checker) written(p *process, t *lease.Term, old *storage.Instance, now storage.Instance) {
	c.date(p, old, now)
	c.patient(p, old, now)
	c.ordered(old, now)
	c.aged(old, now)
	c.untouched(old, now)
	if t != nil && t.Err() == nil {
		c.unmoved(old, now)
	}
	if old == nil {
		c.chosen(now)
		return
	}
	id := now.ID
	switch was, is := old.Drain, now.Drain; {
	case t != nil && old.Epoch > t.Epoch():
		c.violated("I6", "the record of %s, written in term %d, was overwritten by one of term %d", id, old.Epoch, t.Epoch())
	case !old.RegisteredAt.IsZero() && now.RegisteredAt.IsZero():
		c.violated("I7", "the registration of %s was lost", id)
	case old.Deleting != nil && now.Deleting == nil:
		c.violated("I3", "the deletion of %s was taken back", id)
	case now.Generation < old.Generation:
		c.violated("I3", "the generation of %s went back from %d to %d", id, old.Generation, now.Generation)
	case was != nil && is == nil && now.Deleting == nil:
		c.cancelled(*old, now)
	case was != nil && is != nil && was.Generation == is.Generation && is.Deadline.After(was.Deadline):
		c.violated("I3", "the deadline of drain %d of %s was put off by %v", is.Generation, id, is.Deadline.Sub(was.Deadline))
	}
	if now.Drain != nil && now.Deleting == nil { // afterwards its deadline means nothing any more
		c.intime(*old, now)
	}
	if t != nil && t.Err() == nil {
		c.leaves(*old, now)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.late[id] = true // it was sent before the term was over; the successor may not know
}

// cancelled checks that a drain was cancelled for a reason.
func (c *checker) cancelled(old, now storage.Instance) {
	if now.Generation <= old.Drain.Generation {
		c.violated("I3", "the end of drain %d of %s left its generation valid", old.Drain.Generation, now.ID)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cause := range old.Drain.Causes {
		if cause.Kind != nstance.CauseNotice || !c.withdrawn[cause.EventID] {
			c.note("I9", "the drain of %s was cancelled although its cause (%s %s) stands", now.ID, cause.Kind, cause.EventID)
		}
	}
}

// intime checks that a drain ends before the cloud takes the machine. A notice
// that came while the record was written is for the next write to obey.
func (c *checker) intime(old, now storage.Instance) {
	d := now.Drain
	for _, n := range now.Notices {
		if n.Deadline.IsZero() || !d.Deadline.After(n.Deadline) || !d.StartedAt.Before(n.Deadline) {
			continue
		}
		known := slices.ContainsFunc(old.Notices, func(o nstance.Notice) bool {
			return o.EventID == n.EventID && o.Deadline.Equal(n.Deadline)
		})
		if known {
			c.violated("I3", "drain %d of %s ends %v after the machine is taken", d.Generation, now.ID, d.Deadline.Sub(n.Deadline))
		}
	}
}

// leaves checks a write by which a member leaves: I4, and the limit on those
// that leave for being unhealthy.
func (c *checker) leaves(old, now storage.Instance) {
	before, after := leaving(old), leaving(now)
	if before != "" || after == "" {
		return
	}
	if after == nstance.CauseUnhealthy {
		c.capped(now)
	}
	if after != nstance.CauseRollout && after != nstance.CauseSurplus || !c.w.cloud.running()[now.ID] || !c.sound(now.ID) || c.readyFor(now.ID) < reportInterval {
		return
	}
	c.baseLeft(now)
	key, others := keyOf(now), 0
	for _, r := range c.w.store.members(key) {
		if r.ID != now.ID && (leaving(*r) == "" || c.lostSince(r.ID, now.ID) || c.returns(*r)) && c.believed(*r) {
			others++
		}
	}
	floor := c.w.smallest(key)
	if c.w.surgeless(key) {
		floor--
	}
	if others < floor {
		c.violated("I4", "ready member %s leaves for %s: %d others are ready, of %d wanted", now.ID, after, others, c.w.smallest(key))
	}
}

// lostSince reports whether a member began to leave after it was decided that
// another does: whoever decided that could rely on it.
func (c *checker) lostSince(id, other nstance.InstanceID) bool {
	one, two := c.dateOf(id).left, c.dateOf(other).left
	return one.IsZero() || two.IsZero() || one.After(two)
}

// returns reports whether everything is withdrawn for which a member is drained:
// that it stays is about to be written.
func (c *checker) returns(r storage.Instance) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return r.Deleting == nil && r.Drain != nil && !slices.ContainsFunc(r.Drain.Causes, func(cause nstance.Cause) bool {
		return cause.Kind != nstance.CauseNotice || !c.withdrawn[cause.EventID]
	})
}

// leaving returns the strongest cause for which a member leaves, or "".
func leaving(r storage.Instance) nstance.CauseKind {
	switch {
	case r.Drain != nil && len(r.Drain.Causes) > 0:
		return r.Drain.Causes[0].Kind
	case r.Drain != nil:
		return nstance.CauseSurplus
	case r.Deleting != nil:
		return r.Deleting.Why.Kind
	}
	return ""
}

// capped checks the limit on members that leave for being unhealthy at once.
func (c *checker) capped(rec storage.Instance) {
	n := 0
	for _, r := range c.w.store.members(keyOf(rec)) {
		if leaving(*r) == nstance.CauseUnhealthy && !c.isLate(r.ID) {
			n++
		}
	}
	if limit := max(1, c.w.largest(keyOf(rec))/5); n > limit {
		c.violated("I10", "%s is the %dth member that leaves for being unhealthy, of %d at most", rec.ID, n, limit)
	}
}

func (c *checker) isLate(id nstance.InstanceID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.late[id]
}

// believed reports whether a leader may still rely on a member: it has been
// ready, and what has become of it since may not be known yet.
func (c *checker) believed(r storage.Instance) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !r.RegisteredAt.IsZero() && !c.first[r.ID].IsZero() && time.Since(c.reported[r.ID]) < 90*time.Second
}

// readyFor returns for how long a machine has been ready.
func (c *checker) readyFor(id nstance.InstanceID) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first[id].IsZero() {
		return 0
	}
	return time.Since(c.first[id])
}
