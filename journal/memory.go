package journal

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/nstance-go/nstance"
)

// Memory is a Journal that ends with the process, and keeps the latest events only: where
// there are too many, the oldest of the tenants with the most events go first. It is
// safe for concurrent use.
type Memory struct {
	keep int

	mu     sync.Mutex
	last   nstance.Seq
	events []nstance.Event
}

var _ Journal = (*Memory)(nil)

// NewMemory returns a journal of the latest so many events; 0 or less means 10,000.
func NewMemory(events int) *Memory {
	if events <= 0 {
		events = 10_000
	}
	return &Memory{keep: events}
}

// Append implements [Journal].
func (m *Memory) Append(e nstance.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	e.Seq = m.last
	if m.events = append(m.events, e); len(m.events) > m.keep+m.keep/10 { // so that not every event moves all others
		m.trim()
	}
}

// trim leaves as many events as are kept. It needs the lock.
func (m *Memory) trim() {
	count := map[nstance.TenantID]int{}
	for i := range m.events {
		count[m.events[i].Tenant]++
	}
	share := fairShare(slices.Sorted(maps.Values(count)), m.keep)
	m.events = slices.DeleteFunc(m.events, func(e nstance.Event) bool {
		if count[e.Tenant] > share {
			count[e.Tenant]--
			return true
		}
		return false
	})
}

// fairShare returns how many of its events each tenant keeps where keep are kept in all;
// sizes are how many each has, the fewest first.
func fairShare(sizes []int, keep int) int {
	for i, n := range sizes {
		share := keep / (len(sizes) - i)
		if n > share {
			return share
		}
		keep -= n
	}
	return sizes[len(sizes)-1]
}

// Events implements [Journal].
func (m *Memory) Events(_ context.Context, f Filter) (found []nstance.Event, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kept := m.kept()
	for i := range kept {
		e := &kept[i]
		if f.Newest {
			e = &kept[len(kept)-1-i]
		}
		if len(found) == f.Max() {
			break
		}
		if f.Matches(e) {
			found = append(found, *e)
		}
	}
	if f.Newest {
		slices.Reverse(found)
	}
	return found, nil
}

// Notices implements [Journal].
func (m *Memory) Notices(_ context.Context, f Filter) (found []NoticeEntry, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := map[NoticeEntry]bool{}
	for _, e := range m.kept() {
		if e.Notice == nil || e.Notice.EventID == "" || !f.Matches(&e) {
			continue
		}
		n := NoticeEntry{Instance: e.Instance, EventID: e.Notice.EventID}
		if !known[n] {
			known[n] = true
			n.Seq = e.Seq
			found = append(found, n)
		}
	}
	slices.Reverse(found)
	return found[:min(len(found), f.Max())], nil
}

// kept returns the events that are kept. It needs the lock.
func (m *Memory) kept() []nstance.Event {
	if len(m.events) > m.keep {
		m.trim()
	}
	return m.events
}

// Run implements [Journal]: there is nothing to do.
func (m *Memory) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Problems implements [Journal]: there are none.
func (m *Memory) Problems() []string { return nil }

// Dropped implements [Journal]: what is too old is not lost.
func (m *Memory) Dropped() uint64 { return 0 }
