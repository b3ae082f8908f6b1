package simcloud

import (
	"time"

	"github.com/nstance-go/nstance"
)

// idHistory keeps the IDs of machines that are gone, as clouds keep idempotency
// tokens: a late repeat of a create makes no second machine.
type idHistory struct {
	of    map[nstance.InstanceID]usedID
	order []nstance.InstanceID
}

type usedID struct {
	at          time.Time
	cause       nstance.LossCause
	fingerprint string // of its spec
	token       string // likewise
}

// reusableBy reports whether another spec may use the ID again: the machine was
// accepted, and there was no capacity to start it.
func (t usedID) reusableBy(spec string) bool {
	return t.fingerprint != spec && (t.cause == nstance.LossCapacity || t.cause == nstance.LossQuota)
}

const (
	tokenMemory = 24 * time.Hour
	maxTokens   = 100_000
)

func (t *idHistory) add(id nstance.InstanceID, used usedID, now time.Time) {
	if t.of == nil {
		t.of = map[nstance.InstanceID]usedID{}
	}
	used.at = now
	t.of[id] = used
	t.order = append(t.order, id)
	for len(t.order) > maxTokens || now.Sub(t.of[t.order[0]].at) > tokenMemory {
		delete(t.of, t.order[0])
		t.order = t.order[1:]
	}
}

func (t *idHistory) has(id nstance.InstanceID, now time.Time) bool {
	used, ok := t.of[id]
	return ok && now.Sub(used.at) <= tokenMemory
}
