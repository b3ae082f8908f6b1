package reconcile_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// refusing is a provider that answers creates of some shapes with an error.
type refusing struct {
	nstance.Provider
	answer func(nstance.MachineSpec) error

	mu   sync.Mutex
	sent map[string][]time.Time // creates, by instance type and market
}

func (p *refusing) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	p.mu.Lock()
	key := spec.InstanceType + " " + string(spec.Market)
	p.sent[key] = append(p.sent[key], time.Now())
	p.mu.Unlock()
	if err := p.answer(spec); err != nil {
		return nstance.Machine{}, err
	}
	return p.Provider.Create(ctx, spec)
}

func (p *refusing) creates(key string) []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sent[key])
}

// words are what the cloud says.
const words = "VmSizeMisplaced: this size cannot be had with that disk"

// refuse has the provider of the world's leaders answer creates.
func (w *world) refuse(answer func(nstance.MachineSpec) error) *refusing {
	p := &refusing{Provider: w.cloud, answer: answer, sent: map[string][]time.Time{}}
	w.wrap = func(e *leaderEnv) { e.provider = p }
	return p
}

func refuseTypes(code nstance.Code, types ...string) func(nstance.MachineSpec) error {
	return func(spec nstance.MachineSpec) error {
		if slices.Contains(types, spec.InstanceType) {
			return nstance.Errorf(code, "%s", words)
		}
		return nil
	}
}

// definite are the codes of answers that say that nothing was made, and why it never will be.
var definite = []nstance.Code{nstance.Invalid, nstance.Denied, nstance.Conflict}

// TestRefusedShape: a definite refusal is an answer about one shape. The next one is tried at
// once, the refused one seldom, and nothing counts as a failure of the group.
func TestRefusedShape(t *testing.T) {
	for _, code := range definite {
		t.Run(string(code), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{})
				defer w.close()
				p := w.refuse(refuseTypes(code, "small"))
				g := webGroup(3)
				g.Definition.InstanceTypes = []string{"small", "medium"}
				w.startLeader(g)
				w.advance(2 * time.Minute)
				w.requireMachines(3, 3)
				require.Equal(t, map[string]int{"medium": 3}, w.types())
				require.Zero(t, w.group().Failures)
				require.LessOrEqual(t, len(p.creates("small spot")), 2)
				failed := w.first(nstance.EventCreateFailed, func(nstance.Event) bool { return true })
				require.Contains(t, failed.Error, words)
				for range 60 { // losses are replaced at once all the while
					w.advance(2 * time.Minute)
					require.NoError(t, w.cloud.Kill(w.ready()[0]))
				}
				w.advance(2 * time.Minute)
				require.Len(t, w.ready(), 3)
				require.LessOrEqual(t, len(p.creates("small spot")), 9, "pauses of 1 to 30 minutes")
				require.GreaterOrEqual(t, len(p.creates("small spot")), 6, "it is tried again")
			})
		})
	}
}

// TestRefusedShapeReturns: a refused shape that is accepted again is used as before.
func TestRefusedShapeReturns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		began := time.Now()
		w.refuse(func(spec nstance.MachineSpec) error {
			if time.Since(began) < 10*time.Minute {
				return refuseTypes(nstance.Invalid, "small")(spec)
			}
			return nil
		})
		g := webGroup(3)
		g.Definition.InstanceTypes = []string{"small", "medium"}
		w.startLeader(g)
		for range 20 {
			w.advance(2 * time.Minute)
			for _, id := range w.ready() {
				require.NoError(t, w.cloud.Kill(id))
			}
		}
		w.advance(2 * time.Minute)
		require.Equal(t, map[string]int{"small": 3}, w.types())
	})
}

// TestRefusedEverywhere: a group of which every shape is refused backs off, halts and says
// why in the cloud's words. A change of the definition is tried at once.
func TestRefusedEverywhere(t *testing.T) {
	for name, c := range map[string]struct {
		types  []string
		answer func(nstance.MachineSpec) error
	}{
		"one shape":  {[]string{"small"}, refuseTypes(nstance.Invalid, "small")},
		"two shapes": {[]string{"small", "medium"}, refuseTypes(nstance.Denied, "small", "medium")},
		"and sold out": {[]string{"small", "medium"}, func(s nstance.MachineSpec) error {
			if s.InstanceType == "medium" {
				return nstance.Errorf(nstance.Capacity, "nothing left")
			}
			return refuseTypes(nstance.Invalid, "small")(s)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{})
				defer w.close()
				p := w.refuse(c.answer)
				g := webGroup(3)
				g.Definition.InstanceTypes = c.types
				w.startLeader(g)
				w.advance(45 * time.Second)
				require.Contains(t, w.hold(plan.HoldRefused).Reason, words)
				w.advance(2 * time.Hour)
				for _, typ := range c.types[:1] {
					require.LessOrEqual(t, len(p.creates(typ+" spot")), 12, typ)
				}
				v := w.group()
				require.GreaterOrEqual(t, v.Failures, 2)
				require.Contains(t, w.hold(plan.HoldHalted).Reason, words)
				var told []string
				for _, a := range w.r.Admin().Attention() {
					told = append(told, a.Why)
				}
				require.Contains(t, strings.Join(told, "\n"), words)
				g.Definition.InstanceTypes = append([]string{"large"}, c.types...)
				require.NoError(t, w.r.Desire([]nstance.Group{g}))
				w.advance(time.Minute)
				require.Equal(t, map[string]int{"large": 3}, w.types())
			})
		})
	}
}

// TestRefusedNewImage: another image is another definition, though no machine is replaced
// for it.
func TestRefusedNewImage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.refuse(func(spec nstance.MachineSpec) error {
			if spec.Image == "old" {
				return nstance.Errorf(nstance.Invalid, "%s", words)
			}
			return nil
		})
		g := webGroup(2)
		g.Definition.Image = "old"
		w.startLeader(g)
		w.advance(time.Hour)
		require.Empty(t, w.cloud.Machines())
		g.Definition.Image = "new"
		require.NoError(t, w.r.Desire([]nstance.Group{g}))
		w.advance(6 * time.Minute) // the group's own backoff
		require.Len(t, w.ready(), 2)
	})
}

// TestRefusedSpotFallsBack: spot that is refused for good is as good as sold out.
func TestRefusedSpotFallsBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.refuse(func(spec nstance.MachineSpec) error {
			if spec.Market == nstance.Spot {
				return nstance.Errorf(nstance.Invalid, "%s", words)
			}
			return nil
		})
		g := webGroup(2)
		g.Definition.Market.Fallback, g.Definition.Market.FallbackAfter = nstance.OnDemand, 2*time.Minute
		w.startLeader(g)
		w.advance(5 * time.Minute)
		require.Len(t, w.ready(), 2)
		require.Zero(t, w.group().Failures)
	})
}

// TestRefusedOnDemandInstance: an instance by request is made of the next shape, and fails
// when there is none.
func TestRefusedOnDemandInstance(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		w.refuse(refuseTypes(nstance.Invalid, "small"))
		w.startLeader(webGroup(0))
		w.advance(5 * time.Second)
		id, err := nstance.NewInstanceID("web", time.Now())
		require.NoError(t, err)
		req := onDemand(id)
		req.Definition.InstanceTypes = []string{"small", "medium"}
		_, err = w.r.CreateInstance(w.ctx, req)
		require.NoError(t, err)
		w.advance(time.Minute)
		require.Equal(t, map[string]int{"medium": 1}, w.types())
	})
}

// types counts the machines of each type.
func (w *world) types() map[string]int {
	out := map[string]int{}
	for _, m := range w.cloud.Machines() {
		out[m.InstanceType]++
	}
	return out
}

// TestUnansweredShape: what never comes to an answer is no answer about the definition, and
// the next shape is tried once it is proved that no machine came of it.
func TestUnansweredShape(t *testing.T) {
	for _, code := range []nstance.Code{nstance.Internal, nstance.Ambiguous, nstance.Unavailable} {
		t.Run(string(code), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{})
				defer w.close()
				p := w.refuse(refuseTypes(code, "small"))
				g := webGroup(3)
				g.Definition.InstanceTypes = []string{"small", "medium"}
				w.startLeader(g)
				w.advance(5 * time.Minute)
				require.Equal(t, map[string]int{"medium": 3}, w.types())
				w.advance(2 * time.Hour)
				require.Zero(t, w.group().Failures)
				require.Less(t, len(p.creates("small spot")), 40)
				require.Contains(t, w.first(nstance.EventCreateFailed, func(nstance.Event) bool { return true }).Error, words)
			})
		})
	}
}

// TestUnclassifiedEverywhere: an answer that the provider did not classify, and no machine,
// is a refusal like any other.
func TestUnclassifiedEverywhere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, simcloud.Options{})
		defer w.close()
		p := w.refuse(refuseTypes(nstance.Internal, "small"))
		w.startLeader(webGroup(3))
		w.advance(2 * time.Hour)
		require.Less(t, len(p.creates("small spot")), 20)
		require.Contains(t, w.hold(plan.HoldHalted).Reason, words)
	})
}

// TestRefusedLate: a machine that ended before it was ready is a failed create, in whatever
// words, unless a known word says that the cloud took it back.
func TestRefusedLate(t *testing.T) {
	late := func(cause nstance.LossCause, types ...string) func(*world) {
		return func(w *world) {
			p := &endingEarly{Provider: w.cloud, cloud: w.cloud, cause: cause, types: types}
			w.wrap = func(e *leaderEnv) { e.provider = p }
		}
	}
	for _, cause := range []nstance.LossCause{nstance.LossInvalid, ""} {
		t.Run("one shape "+string(cause), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{})
				defer w.close()
				late(cause, "small")(w)
				w.startLeader(webGroup(3))
				w.advance(2 * time.Hour)
				require.Less(t, w.cloud.Count(simcloud.OpCreate), 25)
				require.GreaterOrEqual(t, w.group().Failures, 2)
				require.Contains(t, w.hold(plan.HoldHalted).Reason, words)
				require.Contains(t, w.first(nstance.EventMachineGone, func(nstance.Event) bool { return true }).Error, words)
			})
		})
		t.Run("two shapes "+string(cause), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{})
				defer w.close()
				late(cause, "small")(w)
				g := webGroup(3)
				g.Definition.InstanceTypes = []string{"small", "medium"}
				w.startLeader(g)
				w.advance(10 * time.Minute)
				require.Equal(t, map[string]int{"medium": 3}, w.types())
				require.Zero(t, w.group().Failures)
			})
		})
	}
	t.Run("so many that a list looks for them", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, simcloud.Options{})
			defer w.close()
			w.cloud.FailStarts(simcloud.Pool{InstanceType: "small"}, nstance.LossInvalid, 1000)
			g := webGroup(30)
			g.Definition.InstanceTypes = []string{"small", "medium"}
			w.startLeader(g)
			w.advance(10 * time.Minute)
			require.Equal(t, map[string]int{"medium": 30}, w.types())
			require.Zero(t, w.group().Failures)
		})
	})
	t.Run("known words", func(t *testing.T) {
		for _, cause := range []nstance.LossCause{nstance.LossReclaimed, nstance.LossHost, nstance.LossThrottled} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{})
				defer w.close()
				w.cloud.FailStarts(simcloud.Pool{}, cause, 6)
				w.startLeader(webGroup(3))
				w.advance(10 * time.Minute)
				require.Len(t, w.ready(), 3, cause)
				require.Zero(t, w.group().Failures, cause)
			})
		}
	})
}

// endingEarly is a provider whose machines of some types end before they are ready, for a
// cause that the cloud gives in words only.
type endingEarly struct {
	nstance.Provider
	cloud *simcloud.Cloud
	cause nstance.LossCause
	types []string
}

func (p *endingEarly) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	m, err := p.Provider.Create(ctx, spec)
	if err == nil && slices.Contains(p.types, spec.InstanceType) {
		err = p.cloud.Stop(m.ID, nstance.StatusFailed)
	}
	return m, err
}

func (p *endingEarly) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	m, err := p.Provider.Get(ctx, id)
	if m.Status.Dead() {
		m.Cause, m.CauseText = p.cause, words
	}
	return m, err
}
