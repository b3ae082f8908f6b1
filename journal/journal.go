// Package journal keeps events for those who read them later: operators, by the API
// of a server. No decision depends on them.
//
// A server keeps them in memory unless it is given another [Journal], such as that of
// package sqlite beside this one.
//
// Journals are safe for concurrent use; filters and notices are values.
package journal

import (
	"context"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// A Journal keeps events. Its methods may be called concurrently.
type Journal interface {
	// Append adds an event, which gets a number of the journal's own. It never
	// blocks. What e points to must not be changed any more.
	Append(e nstance.Event)

	// Events returns the matching events, oldest first, with the journal's numbers.
	// Those appended before are included, unless they cannot be kept.
	Events(ctx context.Context, f Filter) ([]nstance.Event, error)

	// Notices returns the notices that the matching events are about, each once, the
	// latest first, at most f.Limit of them. f.Newest is ignored. Those of events appended
	// before are included, as in Events.
	Notices(ctx context.Context, f Filter) ([]NoticeEntry, error)

	// Run does what Append leaves to it until ctx ends, then keeps what was appended
	// and returns. The error says why it could not.
	Run(ctx context.Context) error

	// Problems says what is wrong, in words for an operator; empty: nothing.
	Problems() []string

	// Dropped returns how many events were lost so far.
	Dropped() uint64
}

// A NoticeEntry is a notice in the journal, by its first event.
type NoticeEntry struct {
	Seq      nstance.Seq // of that event
	Instance nstance.InstanceID
	EventID  string
}

// A Filter chooses events. Empty fields match anything.
type Filter struct {
	Tenant   nstance.TenantID
	Group    nstance.GroupID
	Instance nstance.InstanceID
	Any      []nstance.InstanceID // only those of any of these, at most 10,000 of them
	Replaces []nstance.InstanceID // only those that name one of these as what is replaced, at most 10,000 of them
	EventID  string               // only those of a notice with this ID
	Types    []nstance.EventType
	Since    time.Time   // only those of this second or later
	Until    time.Time   // only those of an earlier second
	After    nstance.Seq // only later ones, by the journal's own numbers
	Before   nstance.Seq // only earlier ones; 0 means no limit
	Limit    int         // at most so many; 0 means 100, more than 10,000 means 10,000
	Newest   bool        // of more than Limit matches the newest, not the oldest
}

const (
	defaultLimit = 100

	// MaxLimit is the largest Limit of a Filter, and the most instances it names.
	MaxLimit = 10_000
)

// Max returns how many events f asks for at most.
func (f *Filter) Max() int {
	if f.Limit <= 0 {
		return defaultLimit
	}
	return min(f.Limit, MaxLimit)
}

// Matches reports whether f chooses an event. Limit and Newest are not its concern.
func (f *Filter) Matches(e *nstance.Event) bool {
	second := e.Time.Truncate(time.Second)
	switch {
	case f.Tenant != "" && e.Tenant != f.Tenant, f.Group != "" && e.Group != f.Group, f.Instance != "" && e.Instance != f.Instance:
	case !among(f.Any, e.Instance), !among(f.Replaces, e.Replaces), len(f.Types) > 0 && !slices.Contains(f.Types, e.Type):
	case f.EventID != "" && (e.Notice == nil || e.Notice.EventID != f.EventID):
	case !f.Since.IsZero() && second.Before(f.Since.Truncate(time.Second)), !f.Until.IsZero() && !second.Before(f.Until.Truncate(time.Second)):
	case e.Seq <= f.After, f.Before > 0 && e.Seq >= f.Before:
	default:
		return true
	}
	return false
}

func among(ids []nstance.InstanceID, id nstance.InstanceID) bool {
	return len(ids) == 0 || slices.Contains(ids[:min(len(ids), MaxLimit)], id)
}
