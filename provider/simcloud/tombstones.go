package simcloud

import (
	"time"

	"github.com/nstance-go/nstance"
)

// tombstones remember the IDs of machines that are gone, as clouds remember
// idempotency tokens: a late repeat of a create makes no second machine.
type tombstones struct {
	of    map[nstance.InstanceID]tombstone
	order []nstance.InstanceID
}

type tombstone struct {
	at    time.Time
	cause nstance.LossCause
	print string // of its spec
}

// free reports whether the ID may be used again, by another spec: the machine
// had been accepted, and there was nothing to start it on.
func (t tombstone) free(spec string) bool {
	return t.print != spec && (t.cause == nstance.LossCapacity || t.cause == nstance.LossQuota)
}

const (
	tokenMemory = 24 * time.Hour
	maxTokens   = 100_000
)

func (t *tombstones) add(id nstance.InstanceID, cause nstance.LossCause, spec string, now time.Time) {
	if t.of == nil {
		t.of = map[nstance.InstanceID]tombstone{}
	}
	t.of[id] = tombstone{now, cause, spec}
	t.order = append(t.order, id)
	for len(t.order) > maxTokens || now.Sub(t.of[t.order[0]].at) > tokenMemory {
		delete(t.of, t.order[0])
		t.order = t.order[1:]
	}
}

func (t *tombstones) has(id nstance.InstanceID, now time.Time) bool {
	stone, ok := t.of[id]
	return ok && now.Sub(stone.at) <= tokenMemory
}
