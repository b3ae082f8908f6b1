package questions_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/questions"
)

// An asked is a provider that counts what it is asked.
type asked struct {
	mu     sync.Mutex
	lists  int
	gets   []nstance.InstanceID
	failed []nstance.InstanceID
	hang   map[nstance.InstanceID]bool
	hangs  chan struct{} // not nil: lists wait for it
	err    error
}

func (a *asked) list(context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lists++
	if a.hangs != nil {
		a.mu.Unlock()
		<-a.hangs
		a.mu.Lock()
	}
	return a.err
}

func (a *asked) get(ctx context.Context, id nstance.InstanceID) error {
	a.mu.Lock()
	a.gets = append(a.gets, id)
	hangs, err := a.hang[id], a.err
	a.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (a *asked) fail(ids []nstance.InstanceID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = append(a.failed, ids...)
}

// seen returns the number of lists, what was asked singly, and what failed.
func (a *asked) seen() (lists int, gets, failed []nstance.InstanceID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lists, slices.Clone(a.gets), slices.Clone(a.failed)
}

// asking runs an asker in virtual time.
func asking(t *testing.T, a *asked, test func(q *questions.Asker)) {
	synctest.Test(t, func(t *testing.T) {
		q := questions.New(questions.Calls{List: a.list, Get: a.get, Failed: a.fail})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); q.Run(ctx) }()
		test(q)
		stop()
		<-done
	})
}

func ids(n int) (out []nstance.InstanceID) {
	for i := range n {
		out = append(out, nstance.InstanceID(fmt.Sprintf("i-%02d", i)))
	}
	return out
}

func add(q *questions.Asker, all []nstance.InstanceID) {
	for _, id := range all {
		q.Add(id)
	}
}

// pass lets time pass, and everything end that it brings about.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// TestFewAreAskedSingly: each once, however often it was added.
func TestFewAreAskedSingly(t *testing.T) {
	a := &asked{}
	asking(t, a, func(q *questions.Asker) {
		add(q, slices.Concat(ids(9), ids(9)))
		require.Equal(t, 9, q.Waiting())
		pass(time.Second)
		lists, gets, _ := a.seen()
		require.ElementsMatch(t, ids(9), gets)
		require.Zero(t, lists)
		require.Zero(t, q.Waiting())
	})
}

// TestManyAreOneList: of ten and more, and a round begins no sooner than two seconds after
// the one before.
func TestManyAreOneList(t *testing.T) {
	a := &asked{}
	asking(t, a, func(q *questions.Asker) {
		add(q, ids(10))
		pass(time.Second)
		lists, _, _ := a.seen()
		require.Equal(t, 1, lists)
		add(q, ids(200))
		pass(time.Second)
		lists, _, _ = a.seen()
		require.Equal(t, 1, lists, "the round is not over")
		pass(1500 * time.Millisecond)
		lists, gets, _ := a.seen()
		require.Equal(t, 2, lists)
		require.Empty(t, gets)
	})
}

// TestAlone: what asks for an answer of its own gets it beside the list for all others, once.
func TestAlone(t *testing.T) {
	a := &asked{}
	asking(t, a, func(q *questions.Asker) {
		add(q, ids(40))
		for _, id := range ids(20) {
			q.AddAlone(id)
			q.Add(id)
		}
		pass(time.Second)
		lists, gets, _ := a.seen()
		require.Equal(t, 1, lists)
		require.ElementsMatch(t, ids(16), gets, "no more at once")
		pass(2 * time.Second)
		lists, gets, _ = a.seen()
		require.Equal(t, 1, lists)
		require.ElementsMatch(t, ids(20), gets)
	})
}

// TestSilenceDelaysNoOthers: questions without an answer stand beside others, which are asked
// in a list where no room is left for them.
func TestSilenceDelaysNoOthers(t *testing.T) {
	all := ids(40)
	a := &asked{hang: map[nstance.InstanceID]bool{}}
	for _, id := range all[:16] {
		a.hang[id] = true
	}
	asking(t, a, func(q *questions.Asker) {
		add(q, all[:8])
		pass(3 * time.Second)
		add(q, all[8:16])
		pass(3 * time.Second)
		lists, gets, _ := a.seen()
		require.ElementsMatch(t, all[:16], gets)
		require.Zero(t, lists)
		add(q, all[:3])
		pass(3 * time.Second)
		_, gets, _ = a.seen()
		require.Len(t, gets, 16, "they are asked already")
		add(q, all[30:31])
		pass(3 * time.Second)
		lists, _, _ = a.seen()
		require.Equal(t, 1, lists, "no question has room beside them")
	})
	require.ElementsMatch(t, all[:16], a.failed, "the end of the run is no answer")
}

// TestFailuresAreReported: of single questions, and of a list those that wanted it.
func TestFailuresAreReported(t *testing.T) {
	a := &asked{err: errors.New("no")}
	asking(t, a, func(q *questions.Asker) {
		add(q, ids(2))
		pass(3 * time.Second)
		_, _, failed := a.seen()
		require.ElementsMatch(t, ids(2), failed)
		add(q, ids(12))
		pass(3 * time.Second)
		_, _, failed = a.seen()
		require.ElementsMatch(t, ids(12), failed[2:])
	})
}

// TestListDelaysNoQuestion: while a list has no answer there is no other one, and single
// questions go on. What was wanted meanwhile, and had no room, is asked when there is some.
func TestListDelaysNoQuestion(t *testing.T) {
	all := ids(60)
	a := &asked{hang: map[nstance.InstanceID]bool{}}
	for _, id := range all[20:36] {
		a.hang[id] = true
	}
	asking(t, a, func(q *questions.Asker) {
		a.hangs = make(chan struct{})
		add(q, all[:12])
		pass(3 * time.Second)
		add(q, all[20:36])
		pass(3 * time.Second)
		lists, gets, _ := a.seen()
		require.Equal(t, 1, lists)
		require.ElementsMatch(t, all[20:36], gets)
		add(q, all[40:44])
		pass(3 * time.Second)
		lists, gets, _ = a.seen()
		require.Equal(t, 1, lists)
		require.Len(t, gets, 16)
		close(a.hangs)
		pass(3 * time.Second)
		lists, _, _ = a.seen()
		require.Equal(t, 2, lists, "those that had no room are asked about without being added again")
	})
}
