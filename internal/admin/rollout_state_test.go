package admin_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// TestStateOfARollout: it is done when the group has its size in ready members of the desired
// definition, and nothing else is under way.
func TestStateOfARollout(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		group *apiv1.Group
		state string
		fresh int
	}{
		"nothing is under way":      {&apiv1.Group{Size: 2, Ready: 2}, "done", 2},
		"one leaves":                {&apiv1.Group{Size: 2, Ready: 2, Leaving: 1}, "moving", 2},
		"one boots":                 {&apiv1.Group{Size: 2, Ready: 2, Booting: 1}, "moving", 2},
		"one is lacking":            {&apiv1.Group{Size: 3, Ready: 2}, "moving", 2},
		"one is of another version": {&apiv1.Group{Size: 3, Ready: 2, Booting: 1, Stale: 1}, "moving", 1},
		"the group is frozen":       {&apiv1.Group{Size: 3, Ready: 2, Frozen: true}, "held", 2},
		"the group is paused":       {&apiv1.Group{Size: 3, Ready: 2, Paused: true}, "held", 2},
		"it is halted":              {&apiv1.Group{Size: 3, Ready: 2, Paused: true, Halted: "bad image"}, "halted", 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).populate()
			w.set(func() {
				c.group.Tenant, c.group.Group = "default", "web"
				w.groups[1] = c.group
				w.instances[string(webB)].State, w.instances[string(webB)].Drifted = "ready", c.group.GetStale() > 0
				w.instances[string(dbA)].Tenant, w.instances[string(dbA)].Group = "default", "web" // by request, which is no member
			})
			r := w.start(t, "group", "rollout", "web", "-o", "json")
			var got struct {
				State string
				Fresh int
			}
			require.NoError(t, json.Unmarshal([]byte(r.next()), &got))
			require.Equal(t, c.state, got.State)
			require.Equal(t, c.fresh, got.Fresh)
		})
	}
}

// TestRolloutOfAGroupThatIsRemovedUnseen: what a watch has missed is not shown any more.
func TestRolloutOfAGroupThatIsRemovedUnseen(t *testing.T) {
	t.Parallel()
	remove := func(w *world) { w.set(func() { w.groups = w.groups[:1] }) }
	t.Run("between two snapshots", func(t *testing.T) {
		w := newWorld(t).populate()
		code, _, errs := w.watched(func(out *tape) {
			out.until(t, "moving")
			asked := func() (n int) {
				w.set(func() { n = w.asks["GetShardStatus"] })
				return n
			}
			before := asked()
			w.set(func() { w.standby, w.forgets = true, true })
			require.Eventually(t, func() bool { return asked() > before }, time.Minute, 5*time.Millisecond, "it looks for the leader")
			remove(w)
			w.set(func() { w.standby = false })
		})
		require.Equal(t, 3, code, errs)
	})
	t.Run("within a snapshot", func(t *testing.T) {
		w := newWorld(t).populate()
		w.set(func() { w.cut = func() { remove(w) } })
		code, out, errs := w.watched(func(*tape) {})
		require.Equal(t, 3, code, errs)
		require.Empty(t, out)
	})
}

// TestRolloutWithoutRenewal: a certificate that cannot be renewed is used as long as it is good,
// and its renewal is not tried at every look.
func TestRolloutWithoutRenewal(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	w.ageing(17 * time.Hour)
	w.set(func() { w.fail["RenewCertificate"] = nstance.Errorf(nstance.Unavailable, "later") })
	began := time.Now()
	code, _, errs := w.watched(func(out *tape) {
		for n := range int32(10) {
			w.web(func(g *apiv1.Group) { g.Booting = 10 + n })
			out.until(t, fmt.Sprintf("%d booting", 10+n))
		}
		w.web(func(g *apiv1.Group) { g.Halted = "bad image" })
	})
	require.Equal(t, 6, code, errs)
	w.set(func() {
		require.LessOrEqual(t, w.asks["RenewCertificate"], 1+int(time.Since(began)/time.Minute))
	})
}
