package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// TestDeleteCallbacks: Deleting once the mark is durable, Deleted once the record is
// gone.
func TestDeleteCallbacks(t *testing.T) {
	withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		w.stopLeader()
		var calls []string
		w.wrap = func(o *leaderEnv) {
			o.options = func(opts *reconcile.Options) {
				opts.Deleting = func(id nstance.InstanceID) { calls = append(calls, "deleting "+string(id)) }
				opts.Deleted = func(id nstance.InstanceID) { calls = append(calls, "deleted "+string(id)) }
			}
		}
		w.startLeader(webGroup(1))
		w.advance(2 * time.Minute)
		id := w.ready()[0]
		w.setGroups(webGroup(0))
		w.advance(2 * time.Minute)
		require.Equal(t, []string{"deleting " + string(id), "deleted " + string(id)}, calls)
	})
}
