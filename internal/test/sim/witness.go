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
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// witness is the store itself, without latency or fault. It has a copy of every record
// and sees every change when it happens.
type witness struct {
	storage.Store
	w *World

	mu       sync.Mutex
	versions map[string]storage.Version
	records  map[nstance.InstanceID]*records.Instance // their contents are never changed
	keys     map[string]nstance.InstanceID
	ever     map[nstance.InstanceID]bool      // it has had a record
	marked   map[nstance.InstanceID]time.Time // since when its record is marked as deleting, also after the record is gone
	free     bool                             // the lease is released
	given    bool                             // it was released before its latest write
}

func newWitness(w *World) *witness {
	store := storage.NewMemory()
	if _, err := lease.Prepare(context.Background(), store, shard); err != nil {
		panic(err) // memory does not fail
	}
	prepared, err := store.Get(context.Background(), layout.LeaseKey(shard))
	if err != nil {
		panic(err)
	}
	return &witness{
		Store: store, w: w, versions: map[string]storage.Version{prepared.Key: prepared.Version}, records: map[nstance.InstanceID]*records.Instance{},
		keys: map[string]nstance.InstanceID{}, ever: map[nstance.InstanceID]bool{}, marked: map[nstance.InstanceID]time.Time{},
	}
}

// record returns the stored record of an instance.
func (s *witness) record(id nstance.InstanceID) (records.Instance, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rec := s.records[id]; rec != nil {
		return *rec, true
	}
	return records.Instance{}, false
}

func (s *witness) all() []*records.Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.records))
}

// members returns the records of a group, without instances on demand and stand-by ones.
func (s *witness) members(key nstance.GroupKey) (out []*records.Instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rec := range s.records {
		if keyOf(*rec) == key && !rec.OnDemand && rec.Standby == nil {
			out = append(out, rec)
		}
	}
	return out
}

// wasThere reports whether an instance ever had a record.
func (s *witness) wasThere(id nstance.InstanceID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ever[id]
}

// past returns the instances that had a record and have none.
func (s *witness) past() map[nstance.InstanceID]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := maps.Clone(s.ever)
	for id := range s.records {
		delete(out, id)
	}
	return out
}

// wasGiven reports whether the lease was released before it was last acquired.
func (s *witness) wasGiven() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.given
}

// markedSince returns since when the record is marked as deleting, or zero.
func (s *witness) markedSince(id nstance.InstanceID) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.marked[id]
}

// put executes a write for a server and checks its effect. Writes are serialized.
func (s *witness) put(p *process, t *lease.Term, key string, data []byte, had storage.Version, do func() (storage.Version, error)) (storage.Version, error) {
	s.mu.Lock()
	v, err := do()
	s.w.check.logTrace("write %s %x %v", key, sha256.Sum256(data), err)
	if err != nil {
		s.mu.Unlock()
		return v, err
	}
	if s.versions[key] != had {
		s.w.check.violated("I7", "a write of %s succeeded although its condition did not hold", key)
	}
	s.versions[key] = v
	if key == layout.LeaseKey(shard) {
		s.given, s.free = s.free, bytes.Contains(data, []byte(`"released":true`))
	}
	old, now, ok := s.putRecord(key, data)
	s.mu.Unlock()
	if key == layout.StateKey(shard) {
		s.w.check.recordHalts(data)
	}
	if ok {
		s.w.check.checkWrite(p, t, old, now)
	}
	return v, err
}

// putRecord stores a record's new content. It needs the lock.
func (s *witness) putRecord(key string, data []byte) (old *records.Instance, now records.Instance, ok bool) {
	now, err := records.DecodeInstance(key, data)
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
	s.w.check.logTrace("remove %s %v", key, err)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	had, id := s.versions[key], s.keys[key]
	delete(s.versions, key)
	delete(s.records, id)
	s.mu.Unlock()
	if had != v {
		s.w.check.violated("I7", "the delete of %s succeeded although its condition did not hold", key)
	}
	if m, err := s.w.cloud.Truth(id); id != "" && err == nil && m.Status == nstance.StatusRunning {
		s.w.check.violated("I1", "the record of %s was deleted while its machine runs", id)
	}
	return nil
}

// checkWrite checks the effect of one write on a record.
func (c *checker) checkWrite(p *process, t *lease.Term, old *records.Instance, now records.Instance) {
	c.recordDates(p, old, now)
	c.checkClock(p, old, now)
	c.checkOnDemand(old, now)
	c.checkExpiry(old, now)
	c.checkPreserved(old, now)
	if t != nil && t.Err() == nil {
		c.checkFrozenWrite(old, now)
	}
	if old == nil {
		c.checkIntent(now)
		return
	}
	id := now.ID
	switch was, is := old.Drain, now.Drain; {
	case t != nil && old.Epoch > t.Epoch():
		c.violated("I6", "the record of %s, written in term %d, was overwritten by one of term %d", id, old.Epoch, t.Epoch())
	case !old.RegisteredAt.IsZero() && now.RegisteredAt.IsZero():
		c.violated("I7", "the registration of %s was lost", id)
	case old.Deleting != nil && now.Deleting == nil:
		c.violated("I3", "the deletion of %s was reverted", id)
	case now.Generation < old.Generation:
		c.violated("I3", "the generation of %s went back from %d to %d", id, old.Generation, now.Generation)
	case was != nil && is == nil && now.Deleting == nil:
		c.checkCancel(*old, now)
	case was != nil && is != nil && was.Generation == is.Generation && is.Deadline.After(was.Deadline):
		c.violated("I3", "the deadline of drain %d of %s was extended by %v", is.Generation, id, is.Deadline.Sub(was.Deadline))
	}
	if now.Drain != nil && now.Deleting == nil { // afterwards its deadline has no meaning
		c.checkDrainEnd(*old, now)
	}
	if t != nil && t.Err() == nil {
		c.checkLeave(*old, now)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.late[id] = true // sent before the end of its term; the next leader may not see it
}

// checkCancel checks that a drain was cancelled for a reason.
func (c *checker) checkCancel(old, now records.Instance) {
	if now.Generation <= old.Drain.Generation {
		c.violated("I3", "the end of drain %d of %s left its generation valid", old.Drain.Generation, now.ID)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cause := range old.Drain.Causes {
		if cause.Kind == nstance.CauseStandby && now.Standby != nil {
			continue // it is needed again
		}
		if cause.Kind != nstance.CauseNotice || !c.withdrawn[cause.EventID] {
			c.violatedLocked("I9", "the drain of %s was cancelled although its cause (%s %s) is in force", now.ID, cause.Kind, cause.EventID)
		}
	}
}

// checkDrainEnd checks that a drain ends before the reclaim of the machine. A notice that
// arrives while the record is written applies to the next write.
func (c *checker) checkDrainEnd(old, now records.Instance) {
	d := now.Drain
	for _, n := range now.Notices {
		if n.Deadline.IsZero() || !d.Deadline.After(n.Deadline) || !d.StartedAt.Before(n.Deadline) {
			continue
		}
		known := slices.ContainsFunc(old.Notices, func(o nstance.Notice) bool {
			return o.EventID == n.EventID && o.Deadline.Equal(n.Deadline)
		})
		if known {
			c.violated("I3", "drain %d of %s ends %v after the reclaim", d.Generation, now.ID, d.Deadline.Sub(n.Deadline))
		}
	}
}

// checkLeave checks a write by which a member starts to leave: I4, and the cap on unhealthy
// members.
func (c *checker) checkLeave(old, now records.Instance) {
	if now.Standby != nil {
		return
	}
	before, after := leaving(old), leaving(now)
	if before != "" || after == "" {
		return
	}
	if after == nstance.CauseUnhealthy {
		c.checkUnhealthyCap(now)
	}
	if after != nstance.CauseRollout && after != nstance.CauseSurplus || !c.w.cloud.running()[now.ID] || !c.isHealthy(now.ID) || c.readyFor(now.ID) < reportInterval {
		return
	}
	c.checkBase(now)
	key, others := keyOf(now), 0
	for _, r := range c.w.store.members(key) {
		if r.ID != now.ID && (leaving(*r) == "" || c.lostSince(r.ID, now.ID) || c.causesWithdrawn(*r)) && c.isReliable(*r) {
			others++
		}
	}
	floor := c.w.smallest(key)
	if c.w.anyWithoutSurge(key) {
		floor--
	}
	if others < floor {
		c.violated("I4", "ready member %s leaves for %s: %d others are ready, size is %d", now.ID, after, others, c.w.smallest(key))
	}
}

// lostSince reports whether a member started to leave after the removal of another was
// decided: that decision could rely on it.
func (c *checker) lostSince(id, other nstance.InstanceID) bool {
	one, two := c.dateOf(id).left, c.dateOf(other).left
	return one.IsZero() || two.IsZero() || one.After(two)
}

// causesWithdrawn reports whether all causes of a drain are withdrawn: its cancellation is about
// to be written.
func (c *checker) causesWithdrawn(r records.Instance) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return r.Deleting == nil && r.Drain != nil && !slices.ContainsFunc(r.Drain.Causes, func(cause nstance.Cause) bool {
		return cause.Kind != nstance.CauseNotice || !c.withdrawn[cause.EventID]
	})
}

// leaving returns the strongest cause of a member's removal, or "".
func leaving(r records.Instance) nstance.CauseKind {
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

// checkUnhealthyCap checks the cap on unhealthy members that leave at once. Those kept for
// inspection are outside of their group: else one of them would block all others.
func (c *checker) checkUnhealthyCap(rec records.Instance) {
	n := 0
	for _, r := range c.w.store.members(keyOf(rec)) {
		if leaving(*r) == nstance.CauseUnhealthy && r.Preserve == nil && !c.isLate(r.ID) {
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

// isReliable reports whether a leader may still rely on a member: it has been ready, and a
// later change may be unseen.
func (c *checker) isReliable(r records.Instance) bool {
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
