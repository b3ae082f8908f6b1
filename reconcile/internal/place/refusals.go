package place

import "time"

const (
	// firstRefusal and longestRefusal are the pauses between two creates of a shape that
	// the provider refuses for a reason other than capacity.
	firstRefusal   = time.Minute
	longestRefusal = 30 * time.Minute

	// refusalTTL is how long a refusal is remembered after the last create. No attempt
	// follows while there is no request for the shape.
	refusalTTL = 24 * time.Hour
)

// refusals are what the provider definitely refuses to make of a definition, for reasons
// other than capacity, by definition and shape. An entry is dropped when it is stale.
type refusals map[string]map[Shape]*refusal

// A refusal is the memory of one shape. It stands until a create that was sent later is
// accepted, and its pause is forgotten once a machine of it has become ready.
type refusal struct {
	since, at time.Time // first in a row, and last
	retryAt   time.Time
	pause     time.Duration
	accepted  bool // a create that was sent after the last one
	definite  bool // false: the provider gave no definite answer, and made nothing
	answer    string
}

func (r *refusal) stale(now time.Time) bool { return now.Sub(r.at) > refusalTTL }

// stands reports whether the provider refuses the shape, as far as is known.
func (r *refusal) stands(now time.Time) bool { return r != nil && !r.accepted && !r.stale(now) }

// waits reports whether it is too early to try the shape again.
func (r *refusal) waits(now time.Time) bool { return r.stands(now) && now.Before(r.retryAt) }

func (f refusals) of(definition string, shape Shape) *refusal { return f[definition][shape] }

// RefusedFor records that the provider definitely refuses to make this shape from a
// definition, for another reason than capacity or quota: a create that was sent then, or the
// machine that came of it. Answers to creates that were sent before the last refusal say the
// same once more.
func (m *Map) RefusedFor(definition string, shape Shape, sent time.Time, answer string, now time.Time) {
	m.refuseFor(definition, shape, sent, refusal{definite: true, answer: answer}, now)
}

// UnansweredFor records that creates of this shape made nothing, again and again, without a
// definite answer. Other shapes are tried first for a moment; it is no failure of the definition.
func (m *Map) UnansweredFor(definition string, shape Shape, sent time.Time, answer string, now time.Time) {
	m.refuseFor(definition, shape, sent, refusal{answer: answer}, now)
}

func (m *Map) refuseFor(definition string, shape Shape, sent time.Time, is refusal, now time.Time) {
	r := m.refusals.of(definition, shape)
	switch {
	case r == nil || r.stale(now):
		r = &refusal{since: now}
		m.refusals.add(definition, shape, r, now)
	case !sent.After(r.at):
		return
	case r.accepted:
		r.since = now
	}
	r.pause = min(max(firstRefusal, 2*r.pause), longestRefusal)
	if !is.definite {
		r.pause = firstRefusal
	}
	r.at, r.retryAt, r.accepted, r.definite, r.answer = now, now.Add(r.pause), false, is.definite, is.answer
}

// add drops what is stale first, so that there is at most one entry for each definition and
// shape of the last day.
func (f refusals) add(definition string, shape Shape, r *refusal, now time.Time) {
	for key, shapes := range f {
		for shape, old := range shapes {
			if old.stale(now) {
				delete(shapes, shape)
			}
		}
		if len(shapes) == 0 {
			delete(f, key)
		}
	}
	if f[definition] == nil {
		f[definition] = map[Shape]*refusal{}
	}
	f[definition][shape] = r
}

// AcceptedFor records that the provider accepted a create of a definition that was sent
// then.
func (m *Map) AcceptedFor(definition string, shape Shape, sent time.Time) {
	if r := m.refusals.of(definition, shape); r != nil && sent.After(r.at) {
		r.accepted = true
	}
}

// Forgive forgets what the provider refused of a definition in a shape; the zero shape: in
// all.
func (m *Map) Forgive(definition string, shape Shape) {
	if shape == (Shape{}) {
		delete(m.refusals, definition)
		return
	}
	delete(m.refusals[definition], shape)
}
