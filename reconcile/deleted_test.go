package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// TestDeletionIsAnnounced: once it is durable, and once the record is gone.
func TestDeletionIsAnnounced(t *testing.T) {
	within(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
		w.depose()
		var calls []string
		w.wrap = func(o *office) {
			o.options = func(opts *reconcile.Options) {
				opts.Deleting = func(id nstance.InstanceID) { calls = append(calls, "deleting "+string(id)) }
				opts.Deleted = func(id nstance.InstanceID) { calls = append(calls, "deleted "+string(id)) }
			}
		}
		w.lead(wanted(1))
		w.passes(2 * time.Minute)
		id := w.ready()[0]
		w.want(wanted(0))
		w.passes(2 * time.Minute)
		require.Equal(t, []string{"deleting " + string(id), "deleted " + string(id)}, calls)
	})
}
