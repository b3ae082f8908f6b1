package avoid

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

const (
	// Longest is for how long a pool may be avoided by request.
	Longest = 30 * 24 * time.Hour

	maxEntries = 64  // by request, and for the cloud
	maxReason  = 256 // bytes of what the cloud says

	// shiftMemory is how long a zone of which the cloud does not say when its shift ends is
	// avoided after the last answer.
	shiftMemory = 15 * time.Minute

	// checkInterval is how often ends are compared with the clock, which may be set.
	checkInterval = time.Minute
)

// A Book holds what is avoided. The zero Book holds nothing. It is not safe for concurrent use.
//
// Functions called reached report whether an instant has come.
type Book struct {
	requested []Entry // replaced, never changed
	shifted   []Entry // by the cloud, as last read; likewise
	all       []Entry // both, sorted; likewise
	readAt    time.Time
}

// Requested returns what operators avoid, which must not be changed.
func (b *Book) Requested() []Entry { return b.requested }

// All returns what operators and the cloud avoid, sorted, which must not be changed.
func (b *Book) All() []Entry { return b.all }

// set replaces what is avoided.
func (b *Book) set(requested, shifted []Entry) {
	byName := func(x, y Entry) int { return strings.Compare(x.String(), y.String()) }
	b.requested, b.shifted = requested, shifted
	b.all = slices.Concat(slices.SortedFunc(slices.Values(requested), byName), slices.SortedFunc(slices.Values(shifted), byName))
}

// Check returns what is avoided if a request is accepted, and whether it changes anything. Fails
// with Invalid for a pool or an end that makes no sense, and with Conflict when 64 are avoided.
func (b *Book) Check(e Entry, now time.Time) (stands Entry, changed bool, err error) {
	if err := e.Validate(); err != nil {
		return e, false, err
	}
	if left := e.Until.Sub(now); left <= 0 || left > Longest+time.Minute { // the caller has another clock
		return e, false, nstance.FieldError("duration", "use more than 0 and at most 720h", "a pool cannot be avoided until %s", e.Until.UTC().Format(time.RFC3339))
	}
	e.Since, e.Until, e.Cloud = now.UTC(), e.Until.UTC(), false
	switch i := index(b.requested, e.Pool); {
	case i >= 0:
		e.Since = b.requested[i].Since
		if b.requested[i].repeats(e) {
			return b.requested[i], false, nil
		}
	case len(b.requested) >= maxEntries:
		return e, false, &nstance.Error{
			Code: nstance.Conflict, Remedy: "nstance-admin pool release",
			Msg: fmt.Sprintf("%d pools are avoided already, which is the most", maxEntries),
		}
	}
	return e, true, nil
}

// Put has what Check returned be avoided.
func (b *Book) Put(e Entry) { b.set(append(b.without(e.Pool), e), b.shifted) }

// Find returns what operators avoid in a pool, and whether they do. Fails with Conflict when only
// the cloud avoids it.
func (b *Book) Find(p Pool) (e Entry, known bool, err error) {
	if i := index(b.requested, p); i >= 0 {
		return b.requested[i], true, nil
	}
	if index(b.shifted, p) >= 0 {
		return Entry{}, false, &nstance.Error{Code: nstance.Conflict, Remedy: "end the zonal shift there", Msg: p.String() + " is avoided for the cloud"}
	}
	return Entry{}, false, nil
}

// Remove ends what operators avoid in a pool.
func (b *Book) Remove(p Pool) { b.set(b.without(p), b.shifted) }

func (b *Book) without(p Pool) []Entry {
	return slices.DeleteFunc(slices.Clone(b.requested), func(e Entry) bool { return e.Pool == p })
}

func index(all []Entry, p Pool) int {
	return slices.IndexFunc(all, func(e Entry) bool { return e.Pool == p })
}

// Restore restores what operators avoid. Another leader's clock may have been ahead: nothing
// stands for longer than until latest; zero: that is not known.
func (b *Book) Restore(all []Entry, latest time.Time) {
	all = slices.Clone(all)
	for i := range all {
		if e := &all[i]; !latest.IsZero() && e.Until.After(latest) {
			e.Until = latest.UTC()
		}
	}
	b.set(all, b.shifted)
}

// Shift replaces what the cloud avoids. It returns what is avoided since now and what is not any
// more, and whether anything has changed.
func (b *Book) Shift(shifts []nstance.ZoneShift, now time.Time, reached func(time.Time) bool) (changes []Change, changed bool) {
	b.readAt = now
	var all []Entry
	for _, shift := range shifts {
		e := b.entryFor(shift, now)
		if e.Validate() == nil && e.stands(reached) && index(all, e.Pool) < 0 && len(all) < maxEntries {
			all = append(all, e)
		}
	}
	if slices.Equal(all, b.shifted) {
		return nil, false
	}
	for _, e := range b.shifted {
		if index(all, e.Pool) < 0 {
			changes = append(changes, Change{e, true, "the cloud has ended it"})
		}
	}
	for _, e := range all {
		if index(b.shifted, e.Pool) < 0 {
			changes = append(changes, Change{Entry: e})
		}
	}
	b.set(b.requested, all)
	return changes, true
}

// entryFor returns what a zone that is shifted away from means. It began when it was first read,
// if the cloud does not say when.
func (b *Book) entryFor(shift nstance.ZoneShift, now time.Time) Entry {
	e := Entry{Pool: Pool{Zone: shift.Zone}, Since: shift.Since.UTC(), Until: shift.Until.UTC(), Reason: cmp.Or(clip.Text(shift.Reason, maxReason), "zonal shift"), Cloud: true}
	if i := index(b.shifted, e.Pool); i >= 0 && e.Since.IsZero() {
		e.Since = b.shifted[i].Since
	}
	if e.Since.IsZero() {
		e.Since = now.UTC()
	}
	return e
}

func (e *Entry) stands(reached func(time.Time) bool) bool {
	return e.Until.IsZero() || !reached(e.Until)
}

// Standing returns what operators and the cloud avoid, sorted, without what has ended.
func (b *Book) Standing(reached func(time.Time) bool) []Entry {
	return slices.DeleteFunc(slices.Clone(b.all), func(e Entry) bool { return !e.stands(reached) })
}

// A Change is an Entry that begins or has ended.
type Change struct {
	Entry
	Ended bool   // false: it begins
	Why   string // it has ended
}

// End ends what has stood for its time, and what the cloud could not be asked about for 15 min
// and has no end of its own.
func (b *Book) End(reached func(time.Time) bool) (ended []Change) {
	if len(b.all) == 0 {
		return nil
	}
	over := func(e Entry) bool {
		if e.stands(reached) {
			return false
		}
		ended = append(ended, Change{e, true, "its time is over"})
		return true
	}
	forgotten := func(e Entry) bool {
		if !e.Until.IsZero() || !reached(b.readAt.Add(shiftMemory)) {
			return false
		}
		ended = append(ended, Change{e, true, "the cloud could not be asked for " + shiftMemory.String()})
		return true
	}
	requested := slices.DeleteFunc(slices.Clone(b.requested), over)
	shifted := slices.DeleteFunc(slices.Clone(b.shifted), func(e Entry) bool { return forgotten(e) || over(e) })
	b.set(requested, shifted)
	return ended
}

// NextEnd returns how long to wait until End is to be called again.
func (b *Book) NextEnd(now time.Time) time.Duration {
	wait := time.Hour
	for _, e := range b.all {
		wait = min(wait, checkInterval)
		if left := e.Until.Sub(now); left > 0 {
			wait = min(wait, left)
		}
	}
	return wait
}
