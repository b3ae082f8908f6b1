package simcloud

import (
	"time"

	"github.com/nstance-go/nstance"
)

// A Call is one entry of the log of calls.
type Call struct {
	At   time.Time // when it was made
	Took time.Duration
	Op   Op
	ID   nstance.InstanceID // empty for lists
	Code nstance.Code       // "" for success
}

// Calls returns the last calls that ended, oldest first. The log is bounded by
// Options.Log; Count is not.
func (c *calls) Calls() []Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.all()
}

// Count returns how many calls of op have ended, ever.
func (c *calls) Count(op Op) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.counts[op]
}

// A journal is a ring of calls.
type journal struct {
	max    int
	ring   []Call
	next   int // index of the next one once the ring is full
	counts map[Op]int
}

func (j *journal) add(c Call) {
	if j.counts == nil {
		j.counts = map[Op]int{}
	}
	j.counts[c.Op]++
	j.counts[OpAny]++
	if len(j.ring) < j.max {
		j.ring = append(j.ring, c)
		return
	}
	j.ring[j.next] = c
	j.next = (j.next + 1) % j.max
}

func (j *journal) all() []Call {
	out := make([]Call, 0, len(j.ring))
	return append(append(out, j.ring[j.next:]...), j.ring[:j.next]...)
}

// logCall adds a call that has ended to the log.
func (c *calls) logCall(op Op, id nstance.InstanceID, start time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	took := time.Since(start)
	c.log.add(Call{At: c.o.Now().Add(-took), Took: took, Op: op, ID: id, Code: nstance.CodeOf(err)})
}
