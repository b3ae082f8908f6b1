package proxmox_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/testcloud"
	"github.com/nstance-go/nstance/provider/testcloud/inmemory"
	"github.com/nstance-go/nstance/proxmox"
	"github.com/nstance-go/nstance/proxmox/pvetest"
)

// TestHundredMachines: simultaneous creates take as long as the budget, 10 at once and
// the other 90 at 1 a second, plus one create: the list, the image, the clone, its end,
// and the start.
func TestHundredMachines(t *testing.T) {
	alone, together := machinesTake(t, 1), machinesTake(t, 100)
	t.Logf("1 machine took %s of virtual time, 100 machines %s", alone, together)
	require.InDelta(t, (90*time.Second + alone).Seconds(), together.Seconds(), 2)
}

// machinesTake returns the time until n machines run, with calls of 200 ms and clones of
// 2 s.
func machinesTake(t *testing.T, n int) (took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		faults := &testcloud.Faults{}
		cloud := pvetest.New(&pvetest.Options{
			Nodes: []pvetest.Node{{Name: "pve1", Memory: 256 << 30, CPUs: 64}}, Faults: faults,
			FirstDisk: time.Second, Clone: 2 * time.Second, Delays: testcloud.Delays{Visible: 10 * time.Second, Start: time.Second},
		})
		t.Setenv(proxmox.TokenVariable, "root@pam!test=secret")
		p, err := proxmox.New(proxmox.Options{
			Endpoint: "http://pve.example", InstanceTypes: map[string]proxmox.InstanceType{"small": {Cores: 1, Memory: 1024}},
		}, inmemory.Transport{Handler: cloud, Latency: 200 * time.Millisecond}, nil)
		require.NoError(t, err)
		defer func() {
			require.NoError(t, p.Close())
			require.NoError(t, cloud.Close())
		}()
		kind := proxmox.Kind()
		client, err := provider.New(p, &provider.Options{Rate: kind.Rate, Burst: kind.Burst, MaxUserData: kind.MaxUserData})
		require.NoError(t, err)
		b := &bench{T: t, owner: nstance.Owner{Installation: "abc", Cluster: "c1", Shard: "s1", Tenant: "default"}}
		began := time.Now()
		errs := make(chan error, n)
		for range n {
			spec := b.spec()
			go func() {
				for ok, at := client.Reserve(time.Now()); !ok; ok, at = client.Reserve(time.Now()) {
					<-time.After(time.Until(at))
				}
				_, err := client.Create(t.Context(), spec)
				errs <- err
			}()
		}
		for range n {
			require.NoError(t, <-errs)
		}
		for running := 0; running < n; {
			<-time.After(100 * time.Millisecond)
			running = 0
			for _, m := range cloud.Machines() {
				if m.Status == nstance.StatusRunning {
					running++
				}
			}
		}
		took = time.Since(began)
		require.Equal(t, n, faults.Calls()["POST /nodes/{node}/qemu/{vmid}/clone"])
	})
	return took
}
