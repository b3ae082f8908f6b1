package proxmox_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/testcloud"
	"github.com/nstance-go/nstance/proxmox"
	"github.com/nstance-go/nstance/proxmox/pvetest"
)

// dying is a process that ends with its nth call: the cluster executes that one, and the
// answer is lost.
type dying struct {
	b      *bench
	p      *proxmox.Provider
	server *httptest.Server
	left   atomic.Int32
	dead   chan struct{} // closed with the last call
}

func (b *bench) dying(calls int) *dying {
	d := &dying{b: b, dead: make(chan struct{})}
	d.left.Store(int32(calls))
	d.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch left := d.left.Add(-1); {
		case left > 0:
			b.cloud.ServeHTTP(w, r)
			return
		case left == 0:
			b.cloud.ServeHTTP(httptest.NewRecorder(), r)
			close(d.dead)
		}
		panic(http.ErrAbortHandler)
	}))
	b.Cleanup(d.server.Close)
	d.p = b.open(proxmox.Options{Endpoint: d.server.URL})
	return d
}

// died reports whether the process has made its last call, once its effects are
// complete. over reports completion.
func (d *dying) died(over func() bool) (died bool) {
	d.b.Helper()
	d.b.eventually(func() bool {
		select {
		case <-d.dead:
			died = true
		default:
		}
		return died || over()
	}, "neither dead nor done")
	require.NoError(d.b, d.p.Close())
	return died
}

// TestCrash ends a process after each call of a create and of a delete. A new one then
// creates exactly one machine, or leaves nothing behind.
func TestCrash(t *testing.T) {
	for name, o := range map[string]pvetest.Options{
		"at once":      {},
		"slow":         {FirstDisk: 5 * time.Millisecond, Clone: 10 * time.Millisecond, Delays: testcloud.Delays{Visible: 5 * time.Millisecond, Start: 2 * time.Millisecond, Delete: 2 * time.Millisecond}},
		"local images": {Nodes: []pvetest.Node{{Name: "pve1", Memory: 8 << 30, CPUs: 8}, {Name: "pve2", Memory: 64 << 30, CPUs: 8}}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, then := range []string{"create", "delete"} {
				enumerate(t, "create, then "+then, func(t *testing.T, calls int) bool { return crashInCreate(newBench(t, &o), calls, then) })
			}
			enumerate(t, "create with a static address", func(t *testing.T, calls int) bool {
				b := newBench(t, &o)
				b.static = true
				return crashInCreate(b, calls, "create")
			})
			enumerate(t, "delete", func(t *testing.T, calls int) bool { return crashInDelete(newBench(t, &o), calls) })
		})
	}
}

// enumerate runs crash with one call, two and so on, until nothing crashes.
func enumerate(t *testing.T, name string, crash func(t *testing.T, calls int) bool) {
	t.Helper()
	calls, crashed := 0, true
	for crashed {
		calls++
		require.Less(t, calls, 200)
		if !t.Run(fmt.Sprintf("%s/%d", name, calls), func(t *testing.T) { crashed = crash(t, calls) }) {
			return
		}
	}
	require.Greater(t, calls, 5, "nothing was enumerated")
}

func (b *bench) crashSpec() nstance.MachineSpec {
	s := b.spec()
	s.Args = []byte(`{"template": 9000, "any_node": true, "disk": 5}`)
	if b.static {
		s.Subnet, s.Args = "vmbr0", []byte(`{"template": 9000, "address_pool": "lan", "disks": [{"drive": "scsi1", "size": 1, "storage": "shared"}]}`)
	}
	return s
}

func crashInCreate(b *bench, calls int, then string) bool {
	s := b.crashSpec()
	d := b.dying(calls)
	_, err := d.p.Create(b.Context(), s)
	died := d.died(func() bool { return err == nil && b.finished() })
	next := b.open(proxmox.Options{})
	if then == "delete" {
		b.gone(next, nstance.Machine{ID: s.ID, Owner: s.Owner})
		b.clean()
		return died
	}
	var m nstance.Machine
	b.eventually(func() bool { // as a new leader does: read, and create if absent
		if m, err = next.Get(b.Context(), s.ID); nstance.CodeOf(err) == nstance.NotFound {
			m, err = next.Create(b.Context(), s)
		}
		return err == nil
	}, "no machine")
	require.Equal(b, s.Owner, m.Owner)
	b.running(next, s.ID)
	b.eventually(b.finished, "half made")
	require.Len(b, b.cloud.Machines(), 1)
	c := b.cloud.Config(vmidOf(b.T, m))
	if b.static {
		require.Len(b, b.cloud.Volumes(), 3, "its disks and its image")
		require.NotEmpty(b, c["ipconfig0"])
		require.NotEmpty(b, b.cloud.NetworkConfig(m.ProviderID))
	} else {
		require.Len(b, b.cloud.Volumes(), 2, "its disk and its image")
		require.Contains(b, c["scsi0"], "size=5G")
	}
	b.gone(next, m)
	b.clean()
	return died
}

func crashInDelete(b *bench, calls int) bool {
	s := b.crashSpec()
	m := b.create(s)
	b.running(b.p, s.ID)
	b.eventually(b.finished, "half made")
	d := b.dying(calls)
	died := false
	b.eventually(func() bool {
		select {
		case <-d.dead:
			died = true
			return true
		default:
			return nstance.CodeOf(d.p.Delete(b.Context(), m)) == nstance.NotFound
		}
	}, "neither dead nor done")
	require.NoError(b, d.p.Close())
	b.gone(b.open(proxmox.Options{}), m)
	b.clean()
	return died
}

// finished reports whether the one machine runs and carries its last marks.
func (b *bench) finished() bool {
	return b.allFinished(1)
}

// allFinished reports whether there are so many machines, which run and carry their last
// marks.
func (b *bench) allFinished(n int) bool {
	all := b.cloud.Machines()
	unfinished := func(m testcloud.Machine) bool {
		tags := b.cloud.Config(vmidOf(b.T, nstance.Machine{ProviderID: m.Handle}))["tags"]
		return m.Status != nstance.StatusRunning || !strings.Contains(tags, "nstance-id-") || strings.Contains(tags, "nstance-new")
	}
	return len(all) == n && !slices.ContainsFunc(all, unfinished)
}

// clean requires that nothing is left: no machine, disk, image or task.
func (b *bench) clean() {
	b.Helper()
	b.eventually(func() bool { return b.cloud.Running() == 0 }, "tasks")
	require.Empty(b, b.cloud.Machines())
	require.Empty(b, b.cloud.Volumes())
}
