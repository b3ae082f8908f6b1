package providertest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
)

// An Answer is what a cloud answers to a call in place of doing it, or after that.
type Answer string

// The answers. Each is of a kind that no list of a cloud's codes can have.
const (
	AnswerRefused Answer = "refused" // a status of 400 to 499 with a code that is made up, and the words Words; nothing is done
	AnswerClash   Answer = "clash"   // likewise, with status 409
	AnswerFailed  Answer = "failed"  // as AnswerRefused, with a status of 500 or more that is no limit of a rate
	AnswerCut     Answer = "cut"     // it is done, and the answer ends in the middle
	AnswerLost    Answer = "lost"    // it is done, and the connection ends without an answer
	AnswerNone    Answer = "none"    // nothing is done, and the connection ends without an answer
	AnswerLate    Answer = "late"    // it is done, and the answer does not come before the caller's deadline
	AnswerUnseen  Answer = "unseen"  // it is accepted, and what the cloud shows does not change for [Unseen]
	AnswerEnds    Answer = "ends"    // it is accepted, and fails later with the words Words: a new machine ends before it runs, another stays as it is

	// What stands between may answer in place of the cloud. Nothing is done then.
	AnswerPage   Answer = "page"   // status 200 with a page for people
	AnswerBlank  Answer = "blank"  // status 200 without anything
	AnswerBarred Answer = "barred" // status 403 with a page for people
	AnswerAbsent Answer = "absent" // status 404 with a page for people
	AnswerSlower Answer = "slower" // status 429 with a page for people
)

// Unseen is how long the effect of a call stays unseen.
const Unseen = 200 * time.Millisecond

// Words are what a cloud says in the answers that have words.
const Words = "made up for this test 4711"

// Answers is one cloud under test, for [RunAnswers]. It is a cloud that can be made to answer
// as the test wants, so a test cloud.
type Answers struct {
	Provider nstance.Provider
	Shape    func(*nstance.MachineSpec) // as in Subject

	// Meet has every call of the cloud's API that an operation of the provider makes to
	// change or read machines meet an answer, until Clear. op is create, get, list, delete,
	// park or wake. AnswerUnseen is for those that change something, AnswerEnds for create and Ends.
	Meet  func(op string, a Answer)
	Clear func()

	// Ends are the operations besides create that the cloud may accept, and say later that
	// they have failed. Those of a cloud that never says so are not checked.
	Ends []string

	// Park is a mode in which machines of Shape can be parked. Empty: park and wake are not
	// checked.
	Park nstance.ParkMode

	// Machines counts the machines that the cloud has, those that end included or not.
	Machines func() int

	// Background are operations that the provider only begins when it is called: they
	// return before the cloud is asked, and a refusal is the answer of a later call. Calls
	// counts the calls of the cloud's API that such an operation has made.
	Background []string
	Calls      func(op string) int
}

// RunAnswers checks that a provider takes an answer that it does not know for what it says, and
// for no more: a refusal is definite and quoted, no answer is none, no error is absence, and a
// repeat makes no second machine. Each subtest has a subject of its own, and runs beside others.
func RunAnswers(t *testing.T, newSubject func(t *testing.T) Answers) {
	run := conformance.NewRun(defaultWait)
	for _, op := range []string{"create", "get", "list", "delete", "park", "wake"} {
		for _, a := range answersTo(op) {
			run.TestParallel(t, op+" "+string(a), func(t *testing.T, c *conformance.Calls) { newSubject(t).check(t, c, op, a) })
		}
	}
}

// answersTo returns the answers that an operation can meet.
func answersTo(op string) []Answer {
	all := []Answer{
		AnswerRefused, AnswerClash, AnswerFailed, AnswerCut, AnswerLost, AnswerNone, AnswerLate,
		AnswerPage, AnswerBlank, AnswerBarred, AnswerAbsent, AnswerSlower,
	}
	switch op {
	case "create":
		return append(all, AnswerUnseen, AnswerEnds)
	case "delete", "park", "wake":
		return append(all, AnswerUnseen, AnswerEnds)
	}
	return all
}

func (s Answers) check(t *testing.T, c *conformance.Calls, op string, a Answer) {
	background := slices.Contains(s.Background, op)
	switch {
	case s.Park == "" && (op == "park" || op == "wake"):
		t.Skip("not checked: Answers.Park is empty")
	case op != "create" && a == AnswerEnds && !slices.Contains(s.Ends, op):
		t.Skip("not checked: the cloud never says so")
	case background && a == AnswerLate:
		t.Skip("not checked: it returns before the cloud is asked")
	}
	b := newFixture(t, c, Subject{Provider: s.Provider, Shape: s.Shape, Wait: defaultWait, Park: []nstance.ParkMode{s.Park}})
	switch {
	case op == "create" && a == AnswerUnseen:
		s.checkUnseen(b)
	case op == "create" && a == AnswerEnds:
		s.checkEnds(b)
	case op == "create":
		s.checkCreate(b, a)
	case a == AnswerUnseen:
		s.checkAccepted(b, op)
	case a == AnswerEnds:
		s.checkFails(b, op)
	case background:
		s.checkBackground(b, op, a)
	default:
		s.checkOther(b, op, a)
	}
}

// lateAfter is the caller's patience with an answer that does not come.
const lateAfter = 300 * time.Millisecond

// answered calls with the deadline that an answer needs.
func answered(ctx context.Context, a Answer, call func(context.Context) error) error {
	if a == AnswerLate {
		short, cancel := context.WithTimeout(ctx, lateAfter)
		defer cancel()
		ctx = short
	}
	return call(ctx)
}

func (s Answers) checkCreate(b *fixture, a Answer) {
	spec := b.spec()
	s.Meet("create", a)
	err := answered(b.Context(), a, func(ctx context.Context) error {
		_, err := s.Provider.Create(ctx, spec)
		return err
	})
	s.Clear()
	s.checkError(b, err, a)
	switch definite := isDefinite(err); a {
	case AnswerRefused, AnswerClash, AnswerBarred:
		require.True(b, definite, "code %s of a definite refusal: %v", nstance.CodeOf(err), err)
	case AnswerAbsent: // a refusal, or nothing is known
	default:
		require.False(b, definite, "code %s without a definite answer: %v", nstance.CodeOf(err), err)
	}
	if a.undone() {
		require.Zero(b, s.Machines())
	}
	m := b.create(spec)
	b.requireMarks(spec, m)
	require.Equal(b, 1, s.Machines(), "a repeat makes no second machine")
}

// checkUnseen: what the cloud does not show yet is not made again.
func (s Answers) checkUnseen(b *fixture) {
	spec := b.spec()
	s.Meet("create", AnswerUnseen)
	m := b.create(spec)
	again := b.create(spec)
	b.requireSameMachine(m, again)
	require.Equal(b, 1, s.Machines(), "a repeat makes no second machine")
	require.False(b, b.waitKnown(spec.ID).Status.Dead())
	require.Equal(b, 1, s.Machines())
}

// checkEnds: what fails after its acceptance is no reclaim, and is quoted.
func (s Answers) checkEnds(b *fixture) {
	spec := b.spec()
	s.Meet("create", AnswerEnds)
	_, err := s.Provider.Create(b.Context(), spec)
	s.Clear()
	if err != nil {
		s.checkError(b, err, AnswerRefused)
		return
	}
	var cause nstance.LossCause
	var words string
	b.eventually("Get must show the end of the machine", func(ctx context.Context) (bool, error) {
		m, err := s.Provider.Get(ctx, spec.ID)
		if nstance.CodeOf(err) == nstance.NotFound {
			cause, words = nstance.LossCauseOf(err), err.Error()
			return true, nil
		}
		cause, words = m.Cause, m.CauseText
		return m.Status.Dead(), err
	})
	require.NotContains(b, []nstance.LossCause{nstance.LossReclaimed, nstance.LossHost, nstance.LossRequested}, cause)
	require.Contains(b, words, Words)
}

// checkFails: a change that fails after its acceptance is quoted by a later call, and is asked
// for again.
func (s Answers) checkFails(b *fixture, op string) {
	m := s.machineFor(b, op)
	s.Meet(op, AnswerEnds)
	b.eventually("what has failed must be quoted", func(ctx context.Context) (bool, error) {
		err := s.call(ctx, b, op, m)
		return err != nil && nstance.CodeOf(err) != nstance.NotFound && strings.Contains(err.Error(), Words), nil
	})
	if op != "delete" { // which may be done by now: it is asked for again
		require.Equal(b, 1, s.Machines(), "nothing is doubled or deleted")
	}
	s.Clear()
	s.finish(b, op, m)
}

// undone reports whether nothing is done where a is the answer.
func (a Answer) undone() bool {
	switch a {
	case AnswerRefused, AnswerClash, AnswerNone, AnswerPage, AnswerBlank, AnswerBarred, AnswerAbsent, AnswerSlower:
		return true
	}
	return false
}

// isDefinite reports whether err says that nothing was made, and that a repeat is useless.
func isDefinite(err error) bool {
	switch nstance.CodeOf(err) {
	case nstance.Invalid, nstance.Denied, nstance.Conflict, nstance.Capacity, nstance.Quota:
		return true
	}
	return false
}

func (s Answers) checkError(b *fixture, err error, a Answer) {
	b.Helper()
	require.Error(b, err)
	require.True(b, classified(err), "no code: %v", err)
	require.NotErrorIs(b, err, nstance.NotFound, "an error is no absence")
	if a == AnswerRefused || a == AnswerClash || a == AnswerFailed {
		require.ErrorContains(b, err, Words)
	}
	if a == AnswerSlower {
		require.ErrorIs(b, err, nstance.Throttled)
	}
}

func (s Answers) checkOther(b *fixture, op string, a Answer) {
	m := s.machineFor(b, op)
	s.Meet(op, a)
	err := answered(b.Context(), a, func(ctx context.Context) error { return s.call(ctx, b, op, m) })
	s.Clear()
	if a != AnswerBlank || op == "get" || op == "list" || err != nil { // to a change some clouds answer so
		s.checkError(b, err, a)
	}
	if op == "delete" {
		require.NotErrorIs(b, err, nstance.Conflict, "the machine is the one that is meant")
	}
	if a.undone() {
		s.requireUntouched(b, op, m)
	}
	s.finish(b, op, m)
}

// checkBackground: a refusal of what goes on in the background is the answer of a later call.
func (s Answers) checkBackground(b *fixture, op string, a Answer) {
	m := s.machineFor(b, op)
	before := s.Calls(op)
	s.Meet(op, a)
	b.eventually("the answer must be met, and a refusal quoted", func(ctx context.Context) (bool, error) {
		err := s.call(ctx, b, op, m)
		if op == "delete" && nstance.CodeOf(err) == nstance.Conflict {
			return false, err
		}
		if a == AnswerRefused || a == AnswerClash || a == AnswerFailed {
			return err != nil && strings.Contains(err.Error(), Words), nil
		}
		return s.Calls(op) > before, nil
	})
	if a.undone() {
		require.Equal(b, 1, s.Machines(), "nothing is deleted because of an error")
	}
	s.Clear()
	s.finish(b, op, m)
}

// checkAccepted: what was accepted and does not show yet can be asked for again.
func (s Answers) checkAccepted(b *fixture, op string) {
	m := s.machineFor(b, op)
	s.Meet(op, AnswerUnseen)
	b.accepted("it was never accepted", func(ctx context.Context) error { return s.call(ctx, b, op, m) })
	require.Equal(b, 1, s.Machines())
	s.finish(b, op, m)
}

// machineFor returns a machine in the state that an operation is for.
func (s Answers) machineFor(b *fixture, op string) nstance.Machine {
	b.Helper()
	switch op {
	case "park":
		return b.createParkable(s.Park)
	case "wake":
		m := b.createParkable(s.Park)
		b.park(b.can, m, s.Park)
		return b.waitStatus(m.ID, nstance.StatusStopped)
	}
	m := b.create(b.spec())
	b.waitKnown(m.ID)
	return m
}

// requireUntouched requires a machine to be as it was before an operation.
func (s Answers) requireUntouched(b *fixture, op string, m nstance.Machine) {
	b.Helper()
	now := b.waitKnown(m.ID)
	if op == "park" || op == "wake" {
		require.Equal(b, m.Status, now.Status)
	}
	require.Equal(b, 1, s.Machines(), "nothing is deleted because of an error")
}

// finish repeats an operation until it is done, and deletes the machine.
func (s Answers) finish(b *fixture, op string, m nstance.Machine) {
	b.Helper()
	switch op {
	case "park":
		b.repeat(m, nstance.StatusStopped, func(ctx context.Context) error { return b.can.Parking.Park(ctx, m, s.Park) })
	case "wake":
		b.repeat(m, nstance.StatusRunning, func(ctx context.Context) error { return b.can.Parking.Wake(ctx, m) })
	case "get", "list":
		require.NoError(b, s.call(b.Context(), b, op, m))
	}
	if op != "delete" {
		require.Equal(b, 1, s.Machines(), "nothing is doubled or deleted")
	}
	b.remove(m)
	require.Zero(b, s.Machines())
}

// repeat calls until a machine is in the wanted status: a provider that works in the
// background may have accepted what the cloud has not answered yet, and tell a refusal late.
func (b *fixture) repeat(m nstance.Machine, want nstance.MachineStatus, call func(context.Context) error) {
	b.Helper()
	b.eventually("the machine is never "+string(want), func(ctx context.Context) (bool, error) {
		refused := call(ctx) != nil
		now, err := b.Provider.Get(ctx, m.ID)
		return err == nil && !refused && now.Status == want, err
	})
}

func (s Answers) call(ctx context.Context, b *fixture, op string, m nstance.Machine) (err error) {
	switch op {
	case "get":
		_, err = s.Provider.Get(ctx, m.ID)
	case "list":
		_, err = collect(ctx, s.Provider, b.owner)
	case "delete":
		err = s.Provider.Delete(ctx, m)
	case "park":
		err = b.can.Parking.Park(ctx, m, s.Park)
	case "wake":
		err = b.can.Parking.Wake(ctx, m)
	}
	return err
}
