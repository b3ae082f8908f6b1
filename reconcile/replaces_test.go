package reconcile_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// replacedBy returns how often each instance was named as replaced.
func (w *world) replacedBy() map[nstance.InstanceID]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[nstance.InstanceID]int{}
	for _, e := range w.events {
		if e.Type == nstance.EventReplacementRequested {
			out[e.Replaces]++
		}
	}
	return out
}

// TestReplacementsAreNamedAcrossLeaders: each loss is replaced once, by a machine that names
// it, however many leaders take over in between.
func TestReplacementsAreNamedAcrossLeaders(t *testing.T) {
	for _, after := range []time.Duration{time.Second, 5 * time.Second, 30 * time.Second} {
		for _, leaders := range []int{1, 2} {
			t.Run(fmt.Sprintf("%d after %s", leaders, after), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					w := newWorld(t, simcloud.Options{})
					defer w.close()
					w.keepLives, w.slowDrain = true, true
					w.startLeader(webGroup(20))
					w.advance(2 * time.Minute)
					lost := w.ready()
					for wave := range slices.Chunk(lost, 10) {
						for _, id := range wave {
							require.NoError(t, w.cloud.Reclaim(id, 2*time.Minute))
						}
						w.advance(after)
						for range leaders {
							w.stopLeader()
							w.startLeader(webGroup(20))
							w.advance(after)
						}
					}
					w.advance(15 * time.Minute)
					w.requireMembers(20)
					by, lives := w.replacedBy(), w.lives()
					for _, id := range lost {
						require.Equal(t, 1, by[id], "%s", id)
						require.Len(t, lives[id], 1)
						rec, ok := w.r.Admin().Internals().Records().Get(lives[id][0].ReplacedBy)
						require.True(t, ok, "the ledger names what replaced %s", id)
						require.Equal(t, id, rec.Replaces)
					}
				})
			})
		}
	}
}
