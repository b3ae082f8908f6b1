package reconcile_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// TestDeletionsSurviveBriefTerms: deletions end although no leader lasts for a consistency
// window, because what proves that a machine is gone is on record.
func TestDeletionsSurviveBriefTerms(t *testing.T) {
	for name, registered := range map[string]bool{"registered": true, "never registered": false} {
		for _, term := range []time.Duration{2500 * time.Millisecond, 4 * time.Second, 8 * time.Second} {
			t.Run(fmt.Sprintf("%s, terms of %s", name, term), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, simcloud.Options{})
					defer w.close()
					w.keepLives = true
					if !registered {
						w.badImage = func(nstance.MachineSpec) bool { return true }
					}
					w.startLeader(webGroup(13))
					w.advance(2 * time.Minute)
					require.Len(t, w.cloud.Machines(), 13)
					w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, Lost: true, Times: -1})
					w.cloud.Inject(simcloud.Fault{Op: simcloud.OpGet, Times: -1})
					w.setGroups(webGroup(0))
					require.Eventually(t, func() bool { w.advance(time.Second); return len(w.cloud.Machines()) == 0 }, time.Minute, time.Millisecond)
					require.Len(t, w.stored(layout.InstancePrefix("s1")), 13, "deleted, and no leader knows")
					w.cloud.ClearFaults()
					began := time.Now()
					limit := time.Minute
					if !registered { // a call that was sent before the mark may still be under way
						limit = 3 * time.Minute
					}
					for time.Since(began) < limit {
						w.stopLeader()
						w.startLeader(webGroup(0))
						w.advance(term)
					}
					require.Empty(t, w.stored(layout.InstancePrefix("s1")))
					require.Len(t, w.lives(), 13)
				})
			})
		}
	}
}

// TestWithdrawalsSurviveBriefTerms: a load balancer that refuses to let a machine go holds its
// deletion for its time, not for that time in every term.
func TestWithdrawalsSurviveBriefTerms(t *testing.T) {
	withBalancer(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpLeave, ID: "lb-1", Times: -1, Code: nstance.Internal})
		w.setGroups(balancedGroup(0, "front"))
		w.advance(10 * time.Second)
		require.Len(t, w.cloud.Machines(), 3)
		for range 40 {
			w.stopLeader()
			w.startLeader(balancedGroup(0, "front"))
			w.advance(5 * time.Second)
		}
		require.Empty(t, w.cloud.Machines())
	})
}
