package reconcile_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// TestForeignMachineIsLeftAlone: a machine with the ID of an instance and the marks of
// another owner is neither adopted nor deleted.
func TestForeignMachineIsLeftAlone(t *testing.T) {
	for name, change := range map[string]func(*nstance.MachineSpec){
		"of another installation": func(s *nstance.MachineSpec) { s.Owner.Installation = "i2" },
		"of another cluster":      func(s *nstance.MachineSpec) { s.Owner.Cluster = "c2" },
		"of another shard":        func(s *nstance.MachineSpec) { s.Owner.Shard = "s2" },
		"of another tenant":       func(s *nstance.MachineSpec) { s.Owner.Tenant = "blue" },
	} {
		alarmed := func(w *world, id nstance.InstanceID) {
			w.t.Helper()
			require.True(w.t, w.exists(id))
			require.Zero(w.t, w.cloud.Count(simcloud.OpDelete))
			require.Positive(w.t, w.count(nstance.EventAlarm, id), "with an alarm")
		}
		t.Run(name+", at a deletion", func(t *testing.T) {
			withGroup(t, 1, simcloud.Options{}, func(t *testing.T, w *world) {
				id := w.createOrphan(time.Minute, change)
				w.stopLeader()
				other := records.New(w.store, "s1", &records.Options{Epoch: w.epoch})
				_, err := other.Create(w.ctx, records.Instance{
					ID: id, Tenant: web.Tenant, Group: web.Group, CreatedAt: id.Time(), Deleting: &records.Deletion{At: time.Now()},
				})
				require.NoError(t, err)
				w.startLeader(webGroup(1))
				w.advance(30 * time.Minute)
				alarmed(w, id)
				require.Equal(t, 1, w.count(nstance.EventAlarm, id), "once")
			})
		})
		t.Run(name+", at a takeover", func(t *testing.T) {
			takeover(t, false, simcloud.Options{}, func(t *testing.T, w *world) {
				w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1})
				w.startLeader(webGroup(1))
				w.advance(time.Second)
				id := w.in(nstance.Provisioning)[0]
				w.stopLeader()
				w.cloud.ClearFaults()
				spec := nstance.MachineSpec{
					ID: id, Owner: nstance.Owner{Installation: "i1", Cluster: "c1", Shard: "s1", Tenant: web.Tenant}, Group: web.Group,
					CreatedAt: id.Time(), Epoch: 1, Arch: nstance.AMD64, InstanceType: "small", Market: nstance.Spot, Token: string(id) + "-1",
				}
				change(&spec)
				_, err := w.cloud.Create(w.ctx, spec)
				require.NoError(t, err)
				w.startLeader(webGroup(1))
				w.advance(2 * time.Minute)
				require.NotContains(t, w.ready(), id)
				require.Len(t, w.ready(), 1, "another instance replaces it")
				w.advance(30 * time.Minute)
				alarmed(w, id)
			})
		})
	}
}
