package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// TestRefusedStep: a step that the provider refuses for long is shown with the provider's
// words, and no longer than that.
func TestRefusedStep(t *testing.T) {
	for name, c := range map[string]struct {
		op    simcloud.Op
		start func(w *world) nstance.InstanceID
	}{
		"delete": {simcloud.OpDelete, func(w *world) nstance.InstanceID {
			id := w.ready()[0]
			require.NoError(w.t, w.r.Delete(w.ctx, id, requester, true))
			return id
		}},
		"park": {simcloud.OpPark, func(w *world) nstance.InstanceID { return "" }},
		"wake": {simcloud.OpWake, func(w *world) nstance.InstanceID {
			w.advance(10 * time.Minute)
			id := w.in(nstance.Parked)[0]
			w.lose(2 * time.Minute)
			return id
		}},
	} {
		for _, code := range []nstance.Code{nstance.Invalid, nstance.Denied, nstance.Unavailable, nstance.Conflict} {
			t.Run(name+" "+string(code), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					var w *world
					if name == "delete" {
						w = newWorld(t, simcloud.Options{})
						w.startLeader(webGroup(2))
					} else {
						w = newWorld(t, simcloud.Options{Boot: simcloud.Delay{Min: time.Minute}})
						w.startLeader(pooledGroup(1))
					}
					defer w.close()
					if name == "delete" {
						w.advance(10 * time.Minute)
					}
					w.cloud.Inject(simcloud.Fault{Op: c.op, Code: code, Times: -1})
					id := c.start(w)
					w.advance(10 * time.Minute)
					needs := w.attentionFor("obstacle")
					require.Len(t, needs, 1)
					if id != "" {
						require.Equal(t, id, needs[0].ID)
					}
					require.Contains(t, needs[0].Why, "step "+name)
					require.Contains(t, needs[0].Why, "injected", "the provider's words")
					require.False(t, needs[0].Since.IsZero())
					w.cloud.ClearFaults()
					if name == "wake" { // it sleeps, and has not woken when it was needed
						require.Equal(t, []nstance.InstanceID{id}, w.in(nstance.Parked))
						w.lose(2 * time.Minute)
					}
					w.advance(20 * time.Minute)
					require.Empty(t, w.attentionFor("obstacle"))
				})
			})
		}
	}
}

// TestUnfinishedStep: a step that the provider accepts again and again, and never carries out,
// is shown, and no longer than that.
func TestUnfinishedStep(t *testing.T) {
	for _, op := range []simcloud.Op{simcloud.OpDelete, simcloud.OpPark, simcloud.OpWake} {
		t.Run(string(op), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{Boot: simcloud.Delay{Min: time.Minute}})
				defer w.close()
				stuck := simcloud.Fault{Op: op, OK: true, Delay: 100 * time.Hour, Times: -1}
				group := pooledGroup(1)
				if op == simcloud.OpDelete {
					group = webGroup(2)
				}
				w.startLeader(group)
				if op == simcloud.OpPark {
					w.cloud.Inject(stuck)
				}
				w.advance(10 * time.Minute)
				switch op {
				case simcloud.OpDelete:
					w.cloud.Inject(stuck)
					require.NoError(t, w.r.Delete(w.ctx, w.ready()[0], requester, true))
				case simcloud.OpWake:
					w.cloud.Inject(stuck)
					w.lose(2 * time.Minute)
				}
				w.advance(5 * time.Minute)
				require.Empty(t, w.attentionFor("obstacle"), "it may take a while")
				w.advance(20 * time.Minute)
				needs := w.attentionFor("obstacle")
				require.Len(t, needs, 1)
				require.Contains(t, needs[0].Why, "step "+string(op))
				require.Contains(t, needs[0].Why, "was accepted, and is not carried out since")
				w.cloud.ClearFaults()
				w.advance(20 * time.Minute)
				require.Empty(t, w.attentionFor("obstacle"))
			})
		})
	}
}

// TestRefusedOnce: what is accepted at the next attempt needs no attention.
func TestRefusedOnce(t *testing.T) {
	withGroup(t, 2, simcloud.Options{}, func(t *testing.T, w *world) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, Code: nstance.Unavailable, Times: 2})
		require.NoError(t, w.r.Delete(w.ctx, w.ready()[0], requester, true))
		for range 120 {
			w.advance(5 * time.Second)
			require.Empty(t, w.attentionFor("obstacle"))
		}
	})
}

// TestUncertainCreate: a create of which the provider never says what became of it is no
// failure of its group, and is shown.
func TestUncertainCreate(t *testing.T) {
	for _, code := range []nstance.Code{nstance.Ambiguous, nstance.Unavailable} {
		t.Run(string(code), func(t *testing.T) {
			withGroup(t, 0, simcloud.Options{}, func(t *testing.T, w *world) {
				w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Code: code, Times: -1})
				w.setGroups(webGroup(2))
				w.advance(10 * time.Minute)
				needs := w.attentionFor("obstacle")
				require.Len(t, needs, 1)
				require.Contains(t, needs[0].Why, "step create")
				require.Contains(t, needs[0].Why, "and 1 more of its group")
				require.Contains(t, needs[0].Why, "injected fault")
				w.cloud.ClearFaults()
				w.advance(10 * time.Minute)
				require.Empty(t, w.attentionFor("obstacle"))
			})
		})
	}
}
