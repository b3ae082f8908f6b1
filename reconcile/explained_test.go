package reconcile_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// vanishing is a provider whose machines of one type are gone at once. What it says of their
// end, in no listed word, is in explained; empty: only that there is none.
type vanishing struct {
	nstance.Provider
	cloud     *simcloud.Cloud
	explained string
}

func (p vanishing) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	m, err := p.Provider.Create(ctx, spec)
	if err == nil && spec.InstanceType == "small" {
		err = p.cloud.Kill(m.ID)
	}
	return m, err
}

func (p vanishing) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	m, err := p.Provider.Get(ctx, id)
	if nstance.CodeOf(err) == nstance.NotFound && p.explained != "" {
		err = &nstance.Error{Code: nstance.NotFound, Msg: "it is gone: " + p.explained, Words: p.explained}
	}
	return m, err
}

// TestGoneBeforeAsked: a machine that is gone before it was first asked about is a refusal of
// its shape if the cloud says why, in whatever words. That there is none is no refusal.
func TestGoneBeforeAsked(t *testing.T) {
	for _, explained := range []string{"", words} {
		vanish := func(t *testing.T, test func(t *testing.T, w *world)) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{ByToken: true})
				defer w.close()
				w.wrap = func(e *leaderEnv) { e.provider = vanishing{w.cloud, w.cloud, explained} }
				test(t, w)
			})
		}
		t.Run("group "+explained, func(t *testing.T) {
			vanish(t, func(t *testing.T, w *world) {
				g := webGroup(3)
				g.Definition.InstanceTypes = []string{"small", "medium"}
				w.startLeader(g)
				w.advance(10 * time.Minute)
				if explained == "" {
					require.Positive(t, w.failureCount())
					require.NotContains(t, w.types(), "medium")
					return
				}
				require.Equal(t, map[string]int{"medium": 3}, w.types())
				require.Zero(t, w.failureCount())
			})
		})
		t.Run("on demand "+explained, func(t *testing.T) {
			vanish(t, func(t *testing.T, w *world) {
				w.startLeader(webGroup(0))
				w.advance(time.Minute)
				w.requestTypes("small", "medium")
				w.advance(5 * time.Minute)
				if explained == "" {
					require.Empty(t, w.types())
					return
				}
				require.Equal(t, map[string]int{"medium": 1}, w.types())
				require.Contains(t, w.first(nstance.EventCreateFailed, func(nstance.Event) bool { return true }).Error, words)
			})
		})
	}
}
