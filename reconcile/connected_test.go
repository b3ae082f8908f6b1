package reconcile_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// TestConnectedAgentShowsItsMachine: a cloud that shows its machines long after they were made
// makes no storm of creates while their agents are connected, or report.
func TestConnectedAgentShowsItsMachine(t *testing.T) {
	for _, streams := range []bool{true, false} {
		for _, leaders := range []int{1, 3} {
			t.Run(fmt.Sprintf("streams %v, %d leaders", streams, leaders), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					w := newWorld(t, simcloud.Options{Lag: simcloud.Delay{Min: 5 * time.Minute}})
					defer w.close()
					w.startLeader(webGroup(3))
					for range 30 {
						w.advance(20 * time.Second)
						if leaders > 1 && time.Now().Second() == 0 {
							leaders--
							w.changeLeader(webGroup(3))
						}
						if streams {
							for _, v := range w.r.Instances() {
								if !v.RegisteredAt.IsZero() {
									w.r.Observe(nstance.Connected{ID: v.ID})
								}
							}
						}
					}
					w.requireMembers(3)
					require.Equal(t, 3, w.cloud.Count(simcloud.OpCreate))
					require.Zero(t, w.count(nstance.EventMachineGone, ""))
				})
			})
		}
	}
}
