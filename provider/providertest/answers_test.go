package providertest_test

import (
	"context"
	"iter"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
	"github.com/nstance-go/nstance/provider/providertest"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// A frontier is a provider in front of a cloud whose calls can be made to meet answers. It says
// of each what a provider should, unless say does.
type frontier struct {
	*simcloud.Cloud

	mu    sync.Mutex
	armed map[string]providertest.Answer
	ends  map[nstance.InstanceID]bool // machines that end before they run

	say   func(op string, a providertest.Answer) error // nil: as it should
	cause nstance.LossCause                            // of machines that end before they run
	twins bool                                         // each create has another token
	made  int
}

func newFrontier(t *testing.T) *frontier {
	slow := simcloud.Delay{Min: providertest.Unseen}
	c := simcloud.New(&simcloud.Options{ByToken: true, Park: slow, Wake: slow, Shutdown: slow})
	t.Cleanup(c.Close)
	return &frontier{Cloud: c, armed: map[string]providertest.Answer{}, ends: map[nstance.InstanceID]bool{}, cause: nstance.LossInvalid}
}

func (f *frontier) subject() providertest.Answers {
	return providertest.Answers{
		Provider: f, Park: nstance.ParkStopped,
		Meet: func(op string, a providertest.Answer) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.armed[op] = a
		},
		Clear: func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			clear(f.armed)
		},
		Machines: func() (n int) {
			for range f.Machines() {
				n++
			}
			return n
		},
	}
}

// answered is what a provider should say of an answer.
func answered(op string, a providertest.Answer) error {
	code := nstance.Unavailable
	if op == "create" {
		code = nstance.Ambiguous
	}
	switch a {
	case providertest.AnswerRefused, providertest.AnswerClash, providertest.AnswerAbsent:
		code = nstance.Invalid
	case providertest.AnswerBarred:
		code = nstance.Denied
	case providertest.AnswerSlower:
		code = nstance.Throttled
	}
	return nstance.Errorf(code, "the cloud: %s", providertest.Words)
}

// meet makes a call, or has it meet the answer that is armed.
func (f *frontier) meet(ctx context.Context, op string, do func() error) error {
	f.mu.Lock()
	a, armed := f.armed[op]
	f.mu.Unlock()
	switch a {
	case providertest.AnswerUnseen, providertest.AnswerEnds:
		armed = false
	case providertest.AnswerCut, providertest.AnswerLost, providertest.AnswerLate:
		_ = do()
	}
	if !armed {
		return do()
	}
	if a == providertest.AnswerLate {
		<-ctx.Done()
	}
	if f.say != nil {
		return f.say(op, a)
	}
	return answered(op, a)
}

func (f *frontier) Create(ctx context.Context, s nstance.MachineSpec) (m nstance.Machine, err error) {
	f.mu.Lock()
	if f.made++; f.twins {
		s.Token += strings.Repeat("x", f.made)
	}
	ends := f.armed["create"] == providertest.AnswerEnds
	f.ends[s.ID] = f.ends[s.ID] || ends
	f.mu.Unlock()
	err = f.meet(ctx, "create", func() (err error) {
		m, err = f.Cloud.Create(ctx, s)
		return err
	})
	if err != nil {
		return nstance.Machine{}, err
	}
	if ends {
		err = f.Kill(s.ID)
	}
	return m, err
}

func (f *frontier) Get(ctx context.Context, id nstance.InstanceID) (m nstance.Machine, err error) {
	f.mu.Lock()
	ended := f.ends[id]
	f.mu.Unlock()
	err = f.meet(ctx, "get", func() (err error) {
		if m, err = f.Cloud.Get(ctx, id); nstance.CodeOf(err) == nstance.NotFound && ended {
			err = nstance.Lost(f.cause, "the cloud: %s", providertest.Words)
		}
		return err
	})
	return m, err
}

func (f *frontier) List(ctx context.Context, o nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		if err := f.meet(ctx, "list", func() error { return nil }); err != nil {
			if err != errNone { //nolint:errorlint // this one
				yield(nstance.Machine{}, err)
			}
			return
		}
		f.Cloud.List(ctx, o)(yield)
	}
}

func (f *frontier) Delete(ctx context.Context, m nstance.Machine) error {
	return f.meet(ctx, "delete", func() error { return f.Cloud.Delete(ctx, m) })
}

func (f *frontier) Park(ctx context.Context, m nstance.Machine, mode nstance.ParkMode) error {
	return f.meet(ctx, "park", func() error { return f.Cloud.Park(ctx, m, mode) })
}

func (f *frontier) Wake(ctx context.Context, m nstance.Machine) error {
	return f.meet(ctx, "wake", func() error { return f.Cloud.Wake(ctx, m) })
}

// errNone has a list end as if there were no machines.
var errNone error = nstance.Internal

// says has a frontier answer one operation that meets an answer with an error of its own.
func says(op string, a providertest.Answer, err error) func(*frontier) {
	return func(f *frontier) {
		f.say = func(o string, b providertest.Answer) error {
			if o == op && a == b {
				return err
			}
			return answered(o, b)
		}
	}
}

var absent = nstance.Errorf(nstance.NotFound, "no machine")

// wrongAnswers are providers that take an answer for something else, by the subtest that notices.
var wrongAnswers = map[string]func(*frontier){
	"create refused": says("create", providertest.AnswerRefused, nstance.Errorf(nstance.Internal, "the cloud: %s", providertest.Words)),
	"create clash":   says("create", providertest.AnswerClash, nstance.Errorf(nstance.Ambiguous, "the cloud: %s", providertest.Words)),
	"create failed":  says("create", providertest.AnswerFailed, nstance.Errorf(nstance.Invalid, "the cloud: %s", providertest.Words)),
	"create page":    says("create", providertest.AnswerPage, nil),
	"create blank":   says("create", providertest.AnswerBlank, nstance.Errorf(nstance.Capacity, "no")),
	"create barred":  says("create", providertest.AnswerBarred, nstance.Errorf(nstance.Unavailable, "a page")),
	"create absent":  says("create", providertest.AnswerAbsent, absent),
	"create slower":  says("create", providertest.AnswerSlower, nstance.Errorf(nstance.Invalid, "a page")),
	"create none":    says("create", providertest.AnswerNone, nstance.Errorf(nstance.Invalid, "no")),
	"create cut":     says("create", providertest.AnswerCut, nstance.Errorf(nstance.Invalid, "no")),
	"create late":    says("create", providertest.AnswerLate, nstance.Errorf(nstance.Denied, "no")),
	"create lost":    func(f *frontier) { f.twins = true },
	"create ends":    func(f *frontier) { f.cause = nstance.LossReclaimed },
	"get refused":    says("get", providertest.AnswerRefused, nstance.Errorf(nstance.Invalid, "something")),
	"get failed":     says("get", providertest.AnswerFailed, context.DeadlineExceeded),
	"get page":       says("get", providertest.AnswerPage, absent),
	"get blank":      says("get", providertest.AnswerBlank, absent),
	"get absent":     says("get", providertest.AnswerAbsent, absent),
	"get slower":     says("get", providertest.AnswerSlower, nstance.Errorf(nstance.Unavailable, "a page")),
	"list page":      says("list", providertest.AnswerPage, errNone),
	"list blank":     says("list", providertest.AnswerBlank, errNone),
	"list cut":       says("list", providertest.AnswerCut, errNone),
	"delete lost":    says("delete", providertest.AnswerLost, absent),
	"delete absent":  says("delete", providertest.AnswerAbsent, absent),
	"delete blank":   says("delete", providertest.AnswerBlank, absent),
	"delete clash":   says("delete", providertest.AnswerClash, nstance.Errorf(nstance.Conflict, "the cloud: %s", providertest.Words)),
	"delete refused": says("delete", providertest.AnswerRefused, nil),
	"park refused":   says("park", providertest.AnswerRefused, nil),
	"park absent":    says("park", providertest.AnswerAbsent, absent),
	"wake failed":    says("wake", providertest.AnswerFailed, nstance.Errorf(nstance.Unavailable, "something")),
}

// TestAnswered: a provider that takes each answer for what it says passes; one with a defect is
// under test when this test runs again.
func TestAnswered(t *testing.T) {
	providertest.RunAnswers(t, func(t *testing.T) providertest.Answers {
		f := newFrontier(t)
		if infect := wrongAnswers[conformance.Defect()]; infect != nil {
			infect(f)
		}
		return f.subject()
	})
}

// TestWrongAnswers: a provider that takes one answer for something else fails the subtest of
// that answer.
func TestWrongAnswers(t *testing.T) {
	require.GreaterOrEqual(t, len(wrongAnswers), 30)
	for name := range wrongAnswers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			subtest := strings.ReplaceAll(name, " ", "_")
			conformance.RequireFailure(t, "TestAnswered", "/^"+regexp.QuoteMeta(subtest)+"$", name, "--- FAIL: TestAnswered/"+subtest+" ")
		})
	}
}
