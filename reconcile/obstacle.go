package reconcile

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

// A step that is refused so often, or for so long, needs attention.
const (
	obstacleAttempts = 5
	obstacleAfter    = 5 * time.Minute
)

// unfinishedAfter is for how long a provider may carry out what it has accepted before that
// needs attention: a machine with much memory is hibernated in minutes.
const unfinishedAfter = 15 * time.Minute

// An obstacle is why a step of a member does not end: it is refused again and again, or
// accepted and not carried out. The zero obstacle is none.
type obstacle struct {
	of       stepKind
	since    time.Time // of the first refusal; without one: since it was accepted
	refusals int
	err      error // the latest refusal, in the words of the provider or the storage; else errAccepted
}

// record records how an attempt at a step ended. What a provider accepts and does
// not carry out is no end: it may refuse it at the next call.
func (o *obstacle) record(step stepKind, err error, now time.Time) {
	switch {
	case errors.Is(err, errAccepted) && o.of != step:
		*o = obstacle{of: step, since: now, err: err}
	case errors.Is(err, errAgain), errors.Is(err, errOutdated):
	case err == nil && o.of == step:
		*o = obstacle{}
	case err == nil:
	case o.of != step, o.refusals == 0:
		*o = obstacle{of: step, since: now, refusals: 1, err: err}
	default:
		o.refusals++
		o.err = err
	}
}

// obstructed reports whether a step of m is refused, or not carried out, for long. A create that is slowed down
// is not meant, and one that is refused for good has ended: its group's hold has the reason.
// A stand-by member that did not wake sleeps meanwhile.
func (m *member) obstructed(now time.Time) bool {
	o := m.obstacle
	owed := o.of == m.step || o.of == stepCreate && m.step == stepNone || o.of == stepWake && m.parkedOrMoving()
	lasts := now.Sub(o.since)
	long := o.refusals >= obstacleAttempts || o.refusals > 0 && lasts >= obstacleAfter || lasts >= unfinishedAfter
	slowed := o.of == stepCreate && nstance.CodeOf(o.err) == nstance.Throttled
	return o.err != nil && owed && long && !slowed
}

// observeStart records what the provider says of why the machine of m does not start yet: it
// has accepted the create, and is refused something by itself.
func (m *member) observeStart(now time.Time) {
	words := m.machine.CauseText
	switch {
	case m.step != stepNone || m.state.Leaving():
	case m.machine.Status == nstance.StatusPending && words != "":
		m.obstacle.record(stepCreate, nstance.Errorf(nstance.Unavailable, "%s", clip.Words(words)), now)
	default:
		m.obstacle.record(stepCreate, nil, now)
	}
}

// obstacleAttention lists the steps of members that are refused for long, one entry
// for each kind of step, with the words of the one that waits longest.
func (at *snapshot) obstacleAttention() (out []Attention) {
	longest, count := map[stepKind]*trouble{}, map[stepKind]int{}
	for i := range at.troubles {
		t := &at.troubles[i]
		if !t.obstructed {
			continue
		}
		of := t.obstacle.of
		if count[of]++; longest[of] == nil || t.compareObstacles(longest[of]) < 0 {
			longest[of] = t
		}
	}
	for _, of := range slices.Sorted(maps.Keys(longest)) {
		t, others := longest[of], ""
		if n := count[of] - 1; n > 0 {
			others = fmt.Sprintf(", and %d more of its group", n)
		}
		out = append(out, Attention{
			Kind: attentionObstacle, ID: t.id, Since: t.obstacle.since, Remedy: t.obstacle.remedy(),
			Why: fmt.Sprintf("step %s of %s%s %s", of, t.id, others, t.obstacle.text(t.status)),
		})
	}
	return out
}

func (o *obstacle) text(shown nstance.MachineStatus) string {
	since := o.since.UTC().Format(time.RFC3339)
	if o.refusals == 0 {
		return fmt.Sprintf("was accepted, and is not carried out since %s: the provider shows the machine as %s", since, cmp.Or(string(shown), "unknown"))
	}
	return fmt.Sprintf("was refused %d times since %s: %v", o.refusals, since, o.err)
}

func (o *obstacle) remedy() string {
	if o.refusals == 0 {
		return "look at the machine with the provider's own tools: something that this program does not see keeps it"
	}
	return "do what the refusal says; the step is repeated until it is accepted"
}

func (t *trouble) compareObstacles(o *trouble) int {
	return cmp.Or(t.obstacle.since.Compare(o.obstacle.since), cmp.Compare(t.id, o.id))
}
