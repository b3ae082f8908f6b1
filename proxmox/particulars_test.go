package proxmox_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/testcloud"
	"github.com/nstance-go/nstance/proxmox"
	"github.com/nstance-go/nstance/proxmox/pvetest"
)

// The calls, as the test cluster names them.
const (
	callClone    = "POST /nodes/{node}/qemu/{vmid}/clone"
	callStart    = "POST /nodes/{node}/qemu/{vmid}/status/start"
	callShutdown = "POST /nodes/{node}/qemu/{vmid}/status/shutdown"
	callDestroy  = "DELETE /nodes/{node}/qemu/{vmid}"
	callList     = "GET /cluster/resources"
	callConfig   = "GET /nodes/{node}/qemu/{vmid}/config"
	callTask     = "GET /nodes/{node}/tasks/{upid}/status"
)

// answer is a fault that answers with a status and a message.
func answer(status int, msg string) testcloud.Fault {
	return testcloud.Fault{Answer: func(w http.ResponseWriter, _ *http.Request) {
		body, err := json.Marshal(map[string]any{"data": nil, "message": msg})
		if w.WriteHeader(status); err == nil && msg != "" {
			_, _ = w.Write(body)
		}
	}}
}

func repeat(f testcloud.Fault, n int) []testcloud.Fault {
	out := make([]testcloud.Fault, n)
	for i := range out {
		out[i] = f
	}
	return out
}

func vmidOf(t *testing.T, m nstance.Machine) int {
	t.Helper()
	var id int
	require.NoError(t, json.Unmarshal([]byte(m.ProviderID), &id))
	return id
}

func TestMachineIsConfigured(t *testing.T) {
	b := newBench(t, &pvetest.Options{Templates: []pvetest.Template{{VMID: 9000, Name: "debian", Tags: "debian;base", Description: "the template", Seed: true}}})
	s := b.spec()
	s.Subnet, s.Args = "vmbr7", json.RawMessage(`{"template_name": "debian", "vlan": 12, "firewall": true, "on_boot": false, "memory": 3072}`)
	m := b.create(s)
	b.running(b.p, s.ID)
	b.eventually(func() bool { return !strings.Contains(b.cloud.Config(vmidOf(t, m))["tags"], "nstance-new") }, "tag")
	c := b.cloud.Config(vmidOf(t, m))
	require.Equal(t, string(s.ID), c["name"])
	require.Equal(t, "1", c["cores"])
	require.Equal(t, "3072", c["memory"])
	require.Equal(t, "0", c["onboot"])
	require.Equal(t, "virtio,bridge=vmbr7,tag=12,firewall=1", c["net0"])
	require.Contains(t, c["ide2"], ".iso,media=cdrom", "the template's cloud-init drive is replaced")
	require.Contains(t, c["description"], "```nstance\n")
	for _, tag := range []string{"nstance", "nstance-cluster-c1", "nstance-shard-s1", "nstance-tenant-default"} {
		require.Contains(t, strings.Split(c["tags"], ";"), tag)
	}
	require.NotContains(t, c["tags"], "debian", "a clone inherits the template's tags")
	b.gone(b.p, m)
	require.Empty(t, b.cloud.Volumes(), "the image goes with the machine")
}

func TestSameVMIDInEveryProcess(t *testing.T) {
	b := newBench(t, nil)
	s := b.spec()
	m := b.create(s)
	b.running(b.p, s.ID)
	other := b.open(proxmox.Options{})
	again, err := other.Create(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, m.ProviderID, again.ProviderID)
	require.Len(t, b.cloud.Machines(), 1)
	moved := b.open(proxmox.Options{MinVMID: 500_000, MaxVMID: 600_000}) // another range creates no other machine
	again, err = moved.Create(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, m.ProviderID, again.ProviderID)
	require.Len(t, b.cloud.Machines(), 1)
}

// TestTwoServersAtOnce has two processes create one instance at the same time.
func TestTwoServersAtOnce(t *testing.T) {
	b := newBench(t, &pvetest.Options{FirstDisk: 10 * time.Millisecond, Clone: 20 * time.Millisecond})
	s := b.spec()
	providers := []*proxmox.Provider{b.p, b.open(proxmox.Options{}), b.open(proxmox.Options{})}
	done := make(chan struct{}, len(providers))
	for _, p := range providers {
		go func() {
			defer func() { done <- struct{}{} }()
			for range 200 {
				if _, err := p.Create(t.Context(), s); err == nil {
					return
				}
			}
		}()
	}
	for range providers {
		<-done
	}
	b.running(b.p, s.ID)
	require.Len(t, b.cloud.Machines(), 1)
}

func TestTakenVMID(t *testing.T) {
	for name, at := range map[string]struct{ node, call string }{
		"listed": {"pve1", ""}, "on the same node": {"pve1", "/upload"}, "on another node": {"pve2", "/upload"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &pvetest.Options{Nodes: []pvetest.Node{{Name: "pve1", Memory: 64 << 30, CPUs: 8}, {Name: "pve2", Memory: 64 << 30, CPUs: 8}}}
			s := newBench(t, nil).spec()
			first := vmidOf(t, func() nstance.Machine { b := newBench(t, o); return b.create(s) }())
			b := newBench(t, o)
			take := func(r *http.Request) {
				if strings.HasSuffix(r.URL.Path, at.call) {
					b.onCall.Store(nil)
					b.cloud.Add(first, at.node, map[string]string{"name": "other"})
				}
			}
			b.onCall.Store(&take)
			m := b.create(s)
			require.NotEqual(t, first, vmidOf(t, m))
			b.running(b.p, s.ID)
			require.Equal(t, "other", b.cloud.Config(first)["name"])
			b.gone(b.p, m)
			require.Equal(t, "other", b.cloud.Config(first)["name"])
			require.Empty(t, b.cloud.Volumes())
		})
	}
}

func TestReusedVMID(t *testing.T) {
	b := newBench(t, nil)
	s := b.spec()
	m := b.create(s)
	b.running(b.p, s.ID)
	b.gone(b.p, m)
	b.cloud.Add(vmidOf(t, m), "pve1", map[string]string{"name": "database", "memory": "512"})
	b.refused(nstance.NotFound, b.p.Delete(t.Context(), m))
	_, err := b.p.Get(t.Context(), s.ID)
	b.refused(nstance.NotFound, err)
	b.refused(nstance.NotFound, b.p.Park(t.Context(), m, nstance.ParkStopped))
	require.Equal(t, "database", b.cloud.Config(vmidOf(t, m))["name"])
}

// TestForeignCopy: one of our machines is cloned by hand. The copy has its notes and
// tags.
func TestForeignCopy(t *testing.T) {
	b := newBench(t, nil)
	s := b.spec()
	m := b.create(s)
	b.running(b.p, s.ID)
	b.eventually(func() bool { return !strings.Contains(b.cloud.Config(vmidOf(t, m))["tags"], "nstance-new") }, "tag")
	b.cloud.Add(777, "pve1", b.cloud.Config(vmidOf(t, m)))
	n := 0
	for got, err := range b.p.List(t.Context(), b.owner) {
		require.NoError(t, err)
		require.Equal(t, m.ProviderID, got.ProviderID)
		n++
	}
	require.Equal(t, 1, n)
	b.gone(b.p, m)
	require.Contains(t, b.cloud.Config(777)["name"], string(s.ID))
}

// TestChangedMarks: a renamed machine is not touched, and not gone.
func TestChangedMarks(t *testing.T) {
	for name, change := range map[string]map[string]string{
		"name": {"name": "mine"}, "name and notes": {"name": "mine", "description": ""}, "name and tags": {"name": "mine", "tags": ""},
		"notes and tags": {"description": "", "tags": ""},
	} {
		b := newBench(t, nil)
		m := b.create(b.spec())
		b.running(b.p, m.ID)
		b.eventually(b.finished, "half made")
		old := b.cloud.Config(vmidOf(t, m))
		b.cloud.SetConfig(vmidOf(t, m), change)
		p := b.open(proxmox.Options{})
		_, err := p.Get(t.Context(), m.ID)
		b.refused(nstance.Conflict, err)
		b.refused(nstance.Conflict, p.Delete(t.Context(), m))
		require.Len(t, b.cloud.Machines(), 1, name)
		b.cloud.SetConfig(vmidOf(t, m), old)
		b.gone(p, m)
	}
}

// TestInherited: what the template has decides nothing that the machine's life depends on.
// A clone gets all of it.
func TestInherited(t *testing.T) {
	for name, c := range map[string]struct{ template, want map[string]string }{
		"protection":                {map[string]string{"protection": "1"}, map[string]string{"protection": "0"}},
		"protection of a drive too": {map[string]string{"protection": "1", "sata3": "shared:vm-9000-cloudinit,media=cdrom"}, map[string]string{"protection": "0", "sata3": "none,media=cdrom"}},
		"start at boot":             {map[string]string{"onboot": "0"}, map[string]string{"onboot": "1"}},
		"frozen":                    {map[string]string{"freeze": "1"}, map[string]string{"freeze": ""}},
		"ends at reboot":            {map[string]string{"reboot": "0"}, map[string]string{"reboot": ""}},
		"started by the node":       {map[string]string{"autostart": "1"}, map[string]string{"autostart": ""}},
		"clock":                     {map[string]string{"startdate": "2006-06-17"}, map[string]string{"startdate": ""}},
		"sockets":                   {map[string]string{"sockets": "8", "vcpus": "12", "cores": "2"}, map[string]string{"sockets": "1", "cores": "1", "vcpus": ""}},
		"least memory":              {map[string]string{"memory": "4096", "balloon": "2048"}, map[string]string{"memory": "1024", "balloon": "1024"}},
		"no ballooning":             {map[string]string{"balloon": "0"}, map[string]string{"balloon": "0"}},
		"another cloud-init drive":  {map[string]string{"ide0": "shared:vm-9000-cloudinit,media=cdrom"}, map[string]string{"ide0": "none,media=cdrom"}},
		"NUMA nodes":                {map[string]string{"numa": "1", "memory": "4096", "numa0": "cpus=0-1,memory=2048", "numa1": "cpus=2-3,memory=2048"}, map[string]string{"numa": "1", "memory": "1024", "numa0": "", "numa1": ""}},
		"tags":                      {map[string]string{"tags": "golden;debian"}, nil},
		"order at boot":             {map[string]string{"startup": "order=7"}, map[string]string{"startup": "order=7"}}, // it orders, and needs Sys.Modify to change
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, &pvetest.Options{Tokens: token(roles(t), "")}) // with the documented rights
			b.cloud.SetConfig(9000, c.template)
			s := b.spec()
			s.Subnet = "vmbr0"
			m := b.create(s)
			b.eventually(b.finished, "half made")
			got := b.cloud.Config(vmidOf(t, m))
			for key, want := range c.want {
				require.Equal(t, want, got[key], key)
			}
			require.NotContains(t, got["tags"], "golden")
			require.Contains(t, got["ide2"], ".iso", "the user data")
			b.gone(b.p, m)
			require.Empty(t, b.cloud.Denied())
		})
	}
}

// TestInheritedProtectionOfHalfMadeMachine: a clone that never got its first configuration
// has the protection of its template, which no operator has set for it.
func TestInheritedProtectionOfHalfMadeMachine(t *testing.T) {
	b := newBench(t, nil)
	b.cloud.SetConfig(9000, map[string]string{"protection": "1"})
	b.cloud.Faults().Next("POST /nodes/{node}/qemu/{vmid}/config", answer(500, "not now"), answer(500, "not now"))
	m := b.create(b.spec())
	b.gone(b.p, m)
	b.clean()
}

func TestHookScriptIsRefused(t *testing.T) {
	b := newBench(t, nil)
	b.cloud.SetConfig(9000, map[string]string{"hookscript": "local:snippets/gpu.pl"})
	_, err := b.p.Create(t.Context(), b.spec())
	requireField(t, "args.template", err, "hook script")
	require.ErrorContains(t, err, "local:snippets/gpu.pl")
	require.Empty(t, b.cloud.Machines())
	b.clean()
}

// TestDisconnectedTemplate: a clone would never reach a server, and nothing would say why.
func TestDisconnectedTemplate(t *testing.T) {
	b := newBench(t, nil)
	b.cloud.SetConfig(9000, map[string]string{"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0,link_down=1"})
	s := b.spec()
	_, err := b.p.Create(t.Context(), s)
	requireField(t, "args.template", err, "disconnected")
	require.Empty(t, b.cloud.Machines())
	b.clean()
	s.Subnet = "vmbr0"
	b.running(b.p, b.create(s).ID)
}

// TestProtectedByOperator: a machine that an operator protects is not deleted, and the
// cluster's words are the answer until it is free again.
func TestProtectedByOperator(t *testing.T) {
	b := newBench(t, nil)
	m := b.create(b.spec())
	b.eventually(b.finished, "half made")
	b.cloud.SetConfig(vmidOf(t, m), map[string]string{"protection": "1"})
	var err error
	b.eventually(func() bool { err = b.p.Delete(t.Context(), m); return err != nil }, "no answer")
	b.refused(nstance.Denied, err)
	require.ErrorContains(t, err, "can't remove VM "+m.ProviderID+" - protection mode enabled")
	require.Len(t, b.cloud.Machines(), 1)
	b.cloud.SetConfig(vmidOf(t, m), map[string]string{"protection": ""})
	b.gone(b.p, m)
}

// TestDisksOfOtherClusters: two clusters that share a storage may use the same VMID.
func TestDisksOfOtherClusters(t *testing.T) {
	b := newBench(t, nil)
	m := b.create(b.spec())
	b.eventually(b.finished, "half made")
	foreign := b.cloud.AddDisk("shared", vmidOf(t, m))
	b.eventually(func() bool { return b.p.Park(t.Context(), m, nstance.ParkHibernated) == nil }, "not parked")
	b.status(b.p, m.ID, nstance.StatusStopped)
	b.gone(b.p, m)
	require.Equal(t, []string{foreign}, b.cloud.Volumes(), "its own disks and memory go")
}

// TestProcessors: a machine is put where it can start.
func TestProcessors(t *testing.T) {
	b := newBench(t, &pvetest.Options{Nodes: []pvetest.Node{{Name: "pve1", Memory: 64 << 30, CPUs: 4}, {Name: "pve2", Memory: 8 << 30, CPUs: 32}}})
	s := b.spec()
	s.Args = json.RawMessage(`{"template": 9000, "any_node": true, "cores": 8}`)
	require.Equal(t, "pve2", b.create(s).Zone)
	b.running(b.p, s.ID)
	s = b.spec()
	s.Args = json.RawMessage(`{"template": 9000, "cores": 8}`)
	_, err := b.p.Create(t.Context(), s)
	requireField(t, "args.cores", err, "8 cores on the template's node")
	s = b.spec()
	s.Args = json.RawMessage(`{"template": 9000, "any_node": true, "cores": 512}`)
	_, err = b.p.Create(t.Context(), s)
	requireField(t, "args.cores", err, "512 cores")
	require.Len(t, b.cloud.Machines(), 1)
}

func TestMarkedTemplateIsRefused(t *testing.T) {
	b := newBench(t, &pvetest.Options{Templates: []pvetest.Template{{VMID: 9000, Name: "debian", Tags: "nstance;nstance-cluster-c1"}}})
	_, err := b.p.Create(t.Context(), b.spec())
	b.refused(nstance.Invalid, err)
	require.ErrorContains(t, err, "template 9000 carries marks")
}

// TestLostVisibility: Proxmox VE lists only the machines that the token may see.
func TestLostVisibility(t *testing.T) {
	acl := []pvetest.ACL{{Path: "/", Privileges: []string{"Sys.Audit"}}}
	for name, more := range map[string][]pvetest.ACL{
		"of everything":        nil,
		"of all but templates": {{Path: "/vms/9000", Privileges: []string{"VM.Audit"}}},
		"of templates":         {{Path: "/vms", Privileges: []string{"VM.Audit"}}, {Path: "/vms/9000", Privileges: []string{"VM.Clone"}}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, &pvetest.Options{Tokens: map[string]pvetest.Token{"root@pam!test": {Secret: "secret", ACL: append(acl, more...)}}})
			s := b.spec()
			b.cloud.Add(20_000, "pve1", map[string]string{"name": "any"})
			_, err := b.p.Get(t.Context(), s.ID)
			b.refused(nstance.Unavailable, err)
			for _, err = range b.p.List(t.Context(), b.owner) {
				break
			}
			b.refused(nstance.Unavailable, err)
			watching, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			for _, err = range b.p.WatchNotices(watching, b.owner) {
				break // else what was announced of a machine would be withdrawn
			}
			b.refused(nstance.Unavailable, err)
			require.NoError(t, watching.Err())
			b.refused(nstance.Unavailable, b.p.Delete(t.Context(), nstance.Machine{ID: s.ID, Owner: s.Owner, ProviderID: "20000"}))
			_, err = b.p.Create(t.Context(), s)
			b.refused(nstance.Unavailable, err)
		})
	}
}

func TestOutageIsNotAbsence(t *testing.T) {
	for _, status := range []int{404, 429, 502, 503, 595, 596} {
		b := newBench(t, nil)
		m := b.create(b.spec())
		b.running(b.p, m.ID)
		b.cloud.Faults().Next(callList, repeat(answer(status, ""), 3)...)
		_, err := b.p.Get(t.Context(), m.ID)
		require.Error(t, err)
		require.NotEqual(t, nstance.NotFound, nstance.CodeOf(err), "status %d", status)
		for _, err = range b.p.List(t.Context(), b.owner) {
			break
		}
		require.Error(t, err, "status %d", status)
		require.NotEqual(t, nstance.NotFound, nstance.CodeOf(b.p.Delete(t.Context(), m)))
	}
}

// TestDeadNode: the machines of a node that is down stay listed; they are
// neither gone nor deleted.
func TestDeadNode(t *testing.T) {
	b := newBench(t, &pvetest.Options{Nodes: []pvetest.Node{{Name: "pve1", Memory: 64 << 30, CPUs: 8}, {Name: "pve2", Memory: 32 << 30, CPUs: 8}},
		Templates: []pvetest.Template{{VMID: 9000, Name: "debian", Node: "pve2"}}})
	m := b.create(b.spec())
	b.running(b.p, m.ID)
	b.cloud.SetOffline("pve2", true)
	_, err := b.p.Get(t.Context(), m.ID)
	b.refused(nstance.Unavailable, err)
	b.refused(nstance.Unavailable, b.p.Delete(t.Context(), m))
	_, err = b.p.Create(t.Context(), b.spec())
	b.refused(nstance.Capacity, err)
	b.cloud.SetOffline("pve2", false)
	b.running(b.p, m.ID)
	b.gone(b.p, m)
}

// TestListWithDeadNode: what other nodes have is listed as it is, what a dead node has as
// unknown, also once its name and status have left the listing. Nothing is asked of a node
// that the cluster says is offline.
func TestListWithDeadNode(t *testing.T) {
	three := []pvetest.Node{{Name: "pve1", Memory: 8 << 30, CPUs: 8}, {Name: "pve2", Memory: 8 << 30, CPUs: 8}, {Name: "pve3", Memory: 8 << 30, CPUs: 8}}
	for name, dead := range map[string]func(b *bench, node string){
		"at once":         func(b *bench, node string) { b.cloud.SetOffline(node, true) },
		"after 5 minutes": func(b *bench, node string) { b.cloud.SetDead(node, 5*time.Minute) },
		"unreachable from the node that answers": func(b *bench, node string) {
			b.refuse.Store(&refusal{path: "/nodes/" + node + "/", answer: answer(595, "").Answer})
		},
	} {
		for _, node := range []string{"pve1", "pve2"} { // the template is on pve1
			t.Run(name+" "+node, func(t *testing.T) {
				b := newBench(t, &pvetest.Options{Nodes: three})
				var ids []nstance.InstanceID
				for range 9 {
					s := b.spec()
					s.Args = json.RawMessage(`{"template": 9000, "any_node": true}`)
					b.running(b.p, b.create(s).ID)
					ids = append(ids, s.ID)
				}
				stopped := b.create(b.spec())
				b.running(b.p, stopped.ID)
				b.eventually(func() bool { return b.allFinished(10) }, "half made")
				require.NoError(t, b.cloud.Fail(stopped.ProviderID))
				b.cloud.Add(20_001, node, map[string]string{"name": "database"}) // not of this shard
				dead(b, node)
				for _, p := range []*proxmox.Provider{b.p, b.open(proxmox.Options{})} {
					seen := map[nstance.InstanceID]nstance.Machine{}
					for m, err := range p.List(t.Context(), b.owner) {
						require.NoError(t, err)
						seen[m.ID] = m
					}
					require.Len(t, seen, 10)
					for _, id := range ids {
						want := []nstance.MachineStatus{nstance.StatusRunning}
						if seen[id].Zone == node {
							want = []nstance.MachineStatus{nstance.StatusUnknown}
						}
						if strings.HasPrefix(name, "unreachable") { // until it was asked for one, the listing stands
							want = append(want, nstance.StatusRunning)
						}
						require.Contains(t, want, seen[id].Status, "%s on %s", id, seen[id].Zone)
					}
					want := nstance.StatusStopped
					if seen[stopped.ID].Zone == node {
						want = nstance.StatusUnknown
					}
					require.Equal(t, want, seen[stopped.ID].Status)
					for _, id := range ids {
						if _, err := p.Get(t.Context(), id); seen[id].Zone == node {
							b.refused(nstance.Unavailable, err)
							b.refused(nstance.Unavailable, p.Delete(t.Context(), seen[id]))
						} else {
							require.NoError(t, err)
						}
					}
				}
			})
		}
	}
}

// TestHalfMadeOnDeadNode: a clone that an earlier server began stays listed when its node
// dies before it has its tags.
func TestHalfMadeOnDeadNode(t *testing.T) {
	b := newBench(t, &pvetest.Options{Nodes: []pvetest.Node{{Name: "pve1", Memory: 8 << 30, CPUs: 8}, {Name: "pve2", Memory: 8 << 30, CPUs: 8}}})
	b.cloud.Faults().Next("POST /nodes/{node}/qemu/{vmid}/config", repeat(answer(500, "not now"), 1_000_000)...)
	m := b.create(b.spec())
	require.NoError(t, b.p.Close())
	p := b.open(proxmox.Options{})
	_, err := p.Get(t.Context(), m.ID)
	require.NoError(t, err)
	b.cloud.SetDead("pve1", time.Hour)
	var seen []nstance.InstanceID
	for m, err := range p.List(t.Context(), b.owner) {
		require.NoError(t, err)
		seen = append(seen, m.ID)
	}
	require.Equal(t, []nstance.InstanceID{m.ID}, seen)
	_, err = b.open(proxmox.Options{}).Get(t.Context(), m.ID)
	b.refused(nstance.Unavailable, err)
}

func TestPlacement(t *testing.T) {
	b := newBench(t, &pvetest.Options{
		Nodes:     []pvetest.Node{{Name: "pve1", Memory: 8 << 30, CPUs: 8}, {Name: "pve2", Memory: 6 << 30, CPUs: 8}, {Name: "pve3", Memory: 99 << 30, CPUs: 8}},
		FirstDisk: 5 * time.Millisecond, Clone: 10 * time.Millisecond, Delays: testcloud.Delays{Visible: time.Minute},
	})
	b.cloud.SetMaintenance("pve3", true)
	counts := map[string]int{}

	for range 6 { // no listing has their memory yet
		s := b.spec()
		s.Args = json.RawMessage(`{"template": 9000, "any_node": true, "memory": 2048}`)
		m, err := b.p.Create(t.Context(), s)
		require.NoError(t, err)
		counts[m.Zone]++
	}
	require.Equal(t, map[string]int{"pve1": 4, "pve2": 2}, counts, "pve2 keeps 2 GiB free: the last goes where 2 GiB are left of more")
}

// TestHostLimit: with a limit of two, six machines of a group are on three nodes, although
// one of them has far more memory, and a node that has no memory left costs no machine.
func TestHostLimit(t *testing.T) {
	const memory = 2 << 30
	three := []pvetest.Node{{Name: "pve1", Memory: 16 << 30, CPUs: 8}, {Name: "pve2", Memory: 16 << 30, CPUs: 8}, {Name: "pve3", Memory: 512 << 30, CPUs: 8}}
	spec := func(b *bench, group nstance.GroupID) nstance.MachineSpec {
		s := b.spec()
		s.Group, s.HostLimit, s.Args = group, 2, json.RawMessage(`{"template": 9000, "any_node": true, "memory": 2048}`)
		return s
	}
	createSix := func(b *bench) map[string]int {
		counts := map[string]int{}
		for range 6 {
			counts[b.create(spec(b, "web")).Zone]++
		}
		return counts
	}
	evenly := map[string]int{"pve1": 2, "pve2": 2, "pve3": 2}
	for name, o := range map[string]pvetest.Options{
		"before they are listed": {Delays: testcloud.Delays{Visible: time.Minute}},
		"as they are listed":     {},
	} {
		t.Run(name, func(t *testing.T) {
			o.Nodes = three
			b := newBench(t, &o)
			require.Equal(t, evenly, createSix(b))
		})
	}
	t.Run("clones under way", func(t *testing.T) {
		b := newBench(t, &pvetest.Options{Nodes: three, Clone: 100 * time.Millisecond})
		nodes := make(chan string, 6)
		for range 6 {
			s := spec(b, "web")
			go func() {
				m, err := b.p.Create(t.Context(), s)
				assert.NoError(t, err)
				nodes <- m.Zone
			}()
		}
		counts := map[string]int{}
		for range 6 {
			counts[<-nodes]++
		}
		require.Equal(t, evenly, counts)
	})
	t.Run("other groups and owners do not count", func(t *testing.T) {
		b := newBench(t, &pvetest.Options{Nodes: three})
		for range 3 {
			s := spec(b, "db")
			s.HostLimit = 0
			require.Equal(t, "pve3", b.running(b.p, b.create(s).ID).Zone)
			s = spec(b, "web")
			s.HostLimit, s.Owner.Tenant = 0, "other"
			require.Equal(t, "pve3", b.running(b.p, b.create(s).ID).Zone)
		}
		require.Equal(t, evenly, createSix(b))
	})
	t.Run("another server counts by tags, and what is deleted is gone", func(t *testing.T) {
		b := newBench(t, &pvetest.Options{Nodes: three})
		var first nstance.Machine
		for range 2 {
			first = b.running(b.p, b.create(spec(b, "web")).ID)
			require.Equal(t, "pve3", first.Zone)
		}
		other := b.open(proxmox.Options{})
		m, err := other.Create(t.Context(), spec(b, "web"))
		require.NoError(t, err)
		require.NotEqual(t, "pve3", m.Zone)
		b.gone(other, first)
		m, err = other.Create(t.Context(), spec(b, "web"))
		require.NoError(t, err)
		require.Equal(t, "pve3", m.Zone)
	})
	t.Run("nodes that are full cost no machine", func(t *testing.T) {
		nodes := slices.Clone(three)
		nodes[0].Memory, nodes[1].Memory = memory, memory/2
		b := newBench(t, &pvetest.Options{Nodes: nodes})
		require.Equal(t, map[string]int{"pve1": 1, "pve3": 5}, createSix(b))
	})
	t.Run("beyond the limit, the least crowded", func(t *testing.T) {
		b := newBench(t, &pvetest.Options{Nodes: three})
		require.Equal(t, evenly, createSix(b))
		require.Equal(t, evenly, createSix(b), "and six more")
	})
	t.Run("a repeat with another limit is the same machine", func(t *testing.T) {
		b := newBench(t, &pvetest.Options{Nodes: three})
		s := spec(b, "web")
		m := b.create(s)
		s.HostLimit = 0
		require.Equal(t, m.ProviderID, b.create(s).ProviderID)
		b.running(b.p, m.ID)
		s.HostLimit = 7
		again, err := b.open(proxmox.Options{}).Create(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, m.ProviderID, again.ProviderID)
	})
}

func TestHighAvailabilityIsRefused(t *testing.T) {
	b := newBench(t, nil)
	m := b.create(b.spec())
	b.running(b.p, m.ID)
	b.cloud.SetManaged(vmidOf(t, m), true)
	err := b.p.Delete(t.Context(), m)
	b.refused(nstance.Unavailable, err)
	require.NotErrorIs(t, err, nstance.Conflict, "it would be another's")
	require.ErrorContains(t, err, "ha-manager remove vm:"+m.ProviderID)
	b.refused(nstance.Conflict, b.p.Park(t.Context(), m, nstance.ParkStopped))
	b.refused(nstance.Conflict, b.p.Wake(t.Context(), m))
	b.running(b.p, m.ID)
	b.cloud.SetManaged(vmidOf(t, m), false)
	b.gone(b.p, m)
}

// TestFailedClone: the remains of a failed clone are deleted, and its cause is reported.
func TestFailedClone(t *testing.T) {
	for exit, code := range map[string]nstance.Code{
		"clone failed: can't lock file '/run/lock/qemu-server/lock-9000.conf' - got timeout": nstance.Throttled,
		"clone failed: unable to create image: out of space":                                 nstance.Capacity,
		"clone failed: something new":                                                        nstance.Invalid,
	} {
		b := newBench(t, nil)
		b.cloud.FailTasks("qmclone", exit)
		s := b.spec()
		_, err := b.p.Create(t.Context(), s)
		b.refused(code, err)
		require.ErrorContains(t, err, exit)
		require.Empty(t, b.cloud.Machines())
		require.Empty(t, b.cloud.Volumes())
		b.create(s) // a repeat creates it
		b.running(b.p, s.ID)
	}
}

func TestCloneFailsLate(t *testing.T) {
	b := newBench(t, &pvetest.Options{FirstDisk: time.Second, Clone: 3500 * time.Millisecond})
	b.cloud.FailTasks("qmclone", "clone failed: No space left on device")
	s := b.spec()
	m := b.create(s)
	require.Equal(t, nstance.StatusPending, m.Status)
	got, err := b.p.Get(t.Context(), s.ID)
	require.NoError(t, err, "under way")
	require.Equal(t, m, got)
	b.eventually(func() bool {
		_, err = b.p.Get(t.Context(), s.ID)
		return nstance.CodeOf(err) == nstance.NotFound
	}, "the clone never failed")
	require.Equal(t, nstance.LossCapacity, nstance.LossCauseOf(err))
	b.eventually(func() bool { return len(b.cloud.Volumes()) == 0 }, "image stays")
}

// TestAnswerOlderThanFailedClone: an answer that still shows a clone, and arrives after that has
// failed, does not hide why it failed.
func TestAnswerOlderThanFailedClone(t *testing.T) {
	b := newBench(t, &pvetest.Options{FirstDisk: time.Second, Clone: 3500 * time.Millisecond})
	const words = "clone failed: No space left on device"
	b.cloud.FailTasks("qmclone", words)
	s := b.spec()
	b.create(s)
	b.eventually(func() bool { return len(b.cloud.Volumes()) > 0 }, "the clone never began")
	late, answered := make(chan struct{}), make(chan struct{})
	listed := b.cloud.Faults().Calls()[callConfig]
	b.cloud.Faults().Next(callConfig, testcloud.Fault{Held: late})
	go func() {
		defer close(answered)
		_, _ = b.p.Get(t.Context(), s.ID) // what it returns is old
	}()
	b.eventually(func() bool { return b.cloud.Faults().Calls()[callConfig] > listed }, "the look at the clone")
	b.eventually(func() bool { return len(b.cloud.Volumes()) == 0 }, "the clone never failed")
	close(late)
	<-answered
	var err error
	b.eventually(func() bool {
		_, err = b.p.Get(t.Context(), s.ID)
		return nstance.CodeOf(err) == nstance.NotFound
	}, "the end")
	require.Equal(t, nstance.LossCapacity, nstance.LossCauseOf(err))
	require.ErrorContains(t, err, "No space left")
}

// TestFailedStartOfRunningMachine: a start task may fail although the machine runs.
func TestFailedStartOfRunningMachine(t *testing.T) {
	b := newBench(t, nil)
	b.cloud.FailTasks("qmstart", "start failed: got timeout", "start failed: got timeout")
	m := b.create(b.spec())
	b.running(b.p, m.ID)
	b.eventually(func() bool { return b.cloud.Faults().Calls()[callStart] == 3 }, "starts")
}

// TestRefusedStart: a machine whose start is refused again and again says why, as long as that
// is so.
func TestRefusedStart(t *testing.T) {
	b := newBench(t, nil)
	const words = "made up 4711"
	b.cloud.FailTasks("qmstart", slices.Repeat([]string{words}, 12)...)
	s := b.spec()
	b.create(s)
	b.eventually(func() bool {
		m, err := b.p.Get(t.Context(), s.ID)
		require.NoError(t, err)
		return m.Status == nstance.StatusPending && strings.Contains(m.CauseText, words)
	}, "get")
	b.eventually(func() bool {
		for m, err := range b.p.List(t.Context(), b.owner) {
			require.NoError(t, err)
			return strings.Contains(m.CauseText, words) || m.Status == nstance.StatusRunning
		}
		return false
	}, "list")
	require.Empty(t, b.running(b.p, s.ID).CauseText)
}

func TestPrunedTask(t *testing.T) {
	b := newBench(t, nil)
	b.cloud.Faults().Next(callTask, testcloud.Fault{}, answer(400, "Parameter verification failed."))
	m := b.create(b.spec())
	b.running(b.p, m.ID)
}

func TestAmbiguousClone(t *testing.T) {
	for name, f := range map[string]testcloud.Fault{
		"lost request": {Lost: testcloud.LostRequest}, "lost answer": {Lost: testcloud.LostAnswer}, "596": answer(596, ""),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, &pvetest.Options{FirstDisk: 20 * time.Millisecond, Clone: 40 * time.Millisecond})
			b.cloud.Faults().Next(callClone, f)
			s := b.spec()
			_, err := b.p.Create(t.Context(), s)
			b.refused(nstance.Ambiguous, err)
			var m nstance.Machine
			b.eventually(func() bool {
				m, err = b.p.Create(t.Context(), s)
				return err == nil
			}, "repeated create")
			b.running(b.p, s.ID)
			require.Len(t, b.cloud.Machines(), 1)
			b.gone(b.p, m)
			require.Empty(t, b.cloud.Volumes())
		})
	}
}

func TestFallbackEndpoint(t *testing.T) {
	b := newBench(t, nil)
	p := b.open(proxmox.Options{Endpoint: "http://127.0.0.1:1", FallbackEndpoints: []string{b.server.URL}})
	_, err := p.Create(t.Context(), b.spec())
	require.NoError(t, err)
	alone := b.open(proxmox.Options{Endpoint: "http://127.0.0.1:1"})
	_, err = alone.Create(t.Context(), b.spec())
	b.refused(nstance.Unavailable, err)
}

func TestPark(t *testing.T) {
	for _, mode := range b2(nstance.ParkStopped, nstance.ParkHibernated) {
		t.Run(string(mode), func(t *testing.T) {
			b := newBench(t, &pvetest.Options{Delays: testcloud.Delays{Visible: 20 * time.Millisecond}})
			m := b.create(b.spec())
			b.running(b.p, m.ID)
			power := func(act func() error) {
				b.eventually(func() bool { return act() == nil }, "power")
			}
			power(func() error { return b.p.Park(t.Context(), m, mode) })
			b.status(b.p, m.ID, nstance.StatusStopped)
			power(func() error { return b.p.Park(t.Context(), m, mode) })
			b.status(b.p, m.ID, nstance.StatusStopped)
			power(func() error { return b.p.Wake(t.Context(), m) })
			b.status(b.p, m.ID, nstance.StatusRunning)
			power(func() error { return b.p.Wake(t.Context(), m) })
			power(func() error { return b.p.Park(t.Context(), m, mode) })
			b.status(b.p, m.ID, nstance.StatusStopped)
			b.gone(b.p, m)
			require.Empty(t, b.cloud.Volumes())
		})
	}
}

func b2(modes ...nstance.ParkMode) []nstance.ParkMode { return modes }

// TestStuckSuspend: a failed hibernation leaves a lock that only root removes.
func TestStuckSuspend(t *testing.T) {
	b := newBench(t, nil)
	m := b.create(b.spec())
	b.running(b.p, m.ID)
	b.eventually(func() bool { return !strings.Contains(b.cloud.Config(vmidOf(t, m))["tags"], "nstance-new") }, "tag")
	b.cloud.SetConfig(vmidOf(t, m), map[string]string{"lock": "suspending"})
	b.eventually(func() bool {
		err := b.p.Park(t.Context(), m, nstance.ParkHibernated)
		return nstance.CodeOf(err) == nstance.Conflict && strings.Contains(err.Error(), "qm unlock "+m.ProviderID)
	}, "refusal")
}

func TestNotices(t *testing.T) {
	b := newBench(t, &pvetest.Options{Nodes: []pvetest.Node{{Name: "pve1", Memory: 64 << 30, CPUs: 8}, {Name: "pve2", Memory: 64 << 30, CPUs: 8}},
		Templates: []pvetest.Template{{VMID: 9001, Name: "debian", Node: "pve1"}, {VMID: 9000, Name: "debian", Node: "pve2"}}})
	here := b.create(b.spec())
	s := b.spec()
	s.Args = json.RawMessage(`{"template": 9001}`)
	there := b.create(s)
	for _, m := range []nstance.Machine{here, there} {
		b.running(b.p, m.ID)
	}
	b.cloud.SetMaintenance("pve2", true)
	b.cloud.Faults().Next(callList, testcloud.Fault{}, answer(503, ""))
	var seen []nstance.MachineNotice
	errs := 0
	for n, err := range b.p.WatchNotices(t.Context(), b.owner) {
		if err != nil {
			errs++
			continue
		}
		if n.Notice.Source == "proxmox/fence" {
			require.True(t, n.Notice.Cancelled, "an earlier watch may have announced one")
			continue
		}
		if seen = append(seen, n); len(seen) == 1 {
			require.NotEmpty(t, n.Notice.EventID)
			require.Equal(t, nstance.Stop, n.Notice.Kind, "nothing moves the machine to another node")
			require.True(t, n.Notice.Kind.Dooms())
			require.False(t, n.Notice.Cancelled)
			b.eventually(func() bool { return b.cloud.Faults().Calls()[callList] > 3 }, "polls")
			b.cloud.SetMaintenance("pve2", false)
			continue
		}
		break
	}
	require.Len(t, seen, 2)
	require.Equal(t, here.ID, seen[0].ID)
	require.Equal(t, here.ID, seen[1].ID)
	require.True(t, seen[1].Notice.Cancelled)
	require.Equal(t, seen[0].Notice.EventID, seen[1].Notice.EventID)
	require.LessOrEqual(t, errs, 1)
}

// TestFencedNode: machines of a node that high availability gives up are under notice until
// the node is back, also while its state is unknown again, and nothing is created there.
func TestFencedNode(t *testing.T) {
	b := newBench(t, &pvetest.Options{Nodes: []pvetest.Node{{Name: "pve1", Memory: 64 << 30, CPUs: 8}}, Templates: []pvetest.Template{{VMID: 9000, Name: "debian", Node: "pve1"}}})
	m := b.create(b.spec())
	b.running(b.p, m.ID)
	b.cloud.SetHAState("pve1", "unknown")
	var seen []nstance.Notice // nothing is announced of a node that is only not heard of
	for _, n := range b.watchNotices("pve1", "fence", "unknown", "online") {
		require.Equal(t, m.ID, n.ID)
		if n.Notice.Source == "proxmox/maintenance" {
			require.True(t, n.Notice.Cancelled, "an earlier watch may have announced one")
			continue
		}
		seen = append(seen, n.Notice)
	}
	require.Len(t, seen, 2)
	require.Equal(t, []any{nstance.Stop, "proxmox/fence", "node fenced", false}, []any{seen[0].Kind, seen[0].Source, seen[0].Action, seen[0].Cancelled})
	require.True(t, seen[1].Cancelled, "when it is back")
	b.cloud.SetHAState("pve1", "fence")
	_, err := b.p.Create(t.Context(), b.spec())
	require.ErrorIs(t, err, nstance.Capacity)
}

// TestNoticesOfPlaces: a node's notice stands while its state is unknown or not shown, another trouble of
// the node is another notice, and a copy of a machine on a node in trouble is not the machine.
func TestNoticesOfPlaces(t *testing.T) {
	two := []pvetest.Node{{Name: "pve1", Memory: 64 << 30, CPUs: 8}, {Name: "pve2", Memory: 64 << 30, CPUs: 8}}
	for name, c := range map[string]struct {
		node   string // in trouble
		states []string
		want   []string
	}{
		"unknown":     {"pve1", []string{"fence", "unknown"}, []string{"proxmox/fence"}},
		"not shown":   {"pve1", []string{"maintenance", "", "unknown"}, []string{"proxmox/maintenance"}},
		"over":        {"pve1", []string{"maintenance", "", "online"}, []string{"proxmox/maintenance", "proxmox/maintenance withdrawn"}},
		"maintenance": {"pve1", []string{"fence", "maintenance"}, []string{"proxmox/fence", "proxmox/fence withdrawn", "proxmox/maintenance"}},
		"a copy":      {"pve2", []string{"fence"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, &pvetest.Options{Nodes: two, Templates: []pvetest.Template{{VMID: 9000, Name: "debian", Node: "pve1"}}})
			m := b.create(b.spec())
			b.running(b.p, m.ID)
			b.eventually(b.finished, "half made")
			b.cloud.Add(999_999_990, "pve2", b.cloud.Config(vmidOf(t, m)))
			var seen []string
			for _, n := range b.watchNotices(c.node, c.states...) {
				if !n.Notice.Cancelled {
					seen = append(seen, n.Notice.Source)
				} else if slices.Contains(seen, n.Notice.Source) { // else an earlier watch may have announced it
					seen = append(seen, n.Notice.Source+" withdrawn")
				}
			}
			require.Equal(t, c.want, seen)
		})
	}
}

// watchNotices returns what a watch yields, while high availability sees a node in its
// present state and then in each of some others.
func (b *bench) watchNotices(node string, states ...string) (seen []nstance.MachineNotice) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	polled := func() {
		calls := b.cloud.Faults().Calls()[callList]
		b.eventually(func() bool { return b.cloud.Faults().Calls()[callList] > calls+2 }, "polls")
	}
	go func() {
		defer cancel()
		polled()
		for _, state := range states {
			b.cloud.SetHAState(node, state)
			polled()
		}
	}()
	for n, err := range b.p.WatchNotices(ctx, b.owner) {
		if err == nil {
			seen = append(seen, n)
		}
	}
	return seen
}

// TestEarlierNotices: what an earlier watch announced is on record. The next one withdraws
// it when it is over, however much of that it has seen.
func TestEarlierNotices(t *testing.T) {
	const maintenance, fence = "proxmox/maintenance", "proxmox/fence"
	for _, c := range []struct {
		name      string
		before    string // what the node's state was in the earlier watch
		meanwhile func(*bench, nstance.Machine)
		states    []string // in the next watch
		withdrawn bool
	}{
		{name: "maintenance has ended", before: "maintenance", meanwhile: func(b *bench, _ nstance.Machine) { b.cloud.SetMaintenance("pve1", false) }, withdrawn: true},
		{name: "maintenance goes on", before: "maintenance"},
		{name: "maintenance ends", before: "maintenance", states: []string{"online"}, withdrawn: true},
		{name: "the machine has moved", before: "maintenance", withdrawn: true, meanwhile: func(b *bench, m nstance.Machine) {
			b.cloud.SetHAState("pve2", "online")
			b.cloud.Add(vmidOf(b.T, m), "pve2", b.cloud.Config(vmidOf(b.T, m)))
		}},
		{name: "a fenced node is not back", before: "fence", meanwhile: func(b *bench, _ nstance.Machine) { b.cloud.SetHAState("pve1", "unknown") }},
		{name: "a fenced node comes back", before: "fence", meanwhile: func(b *bench, _ nstance.Machine) { b.cloud.SetHAState("pve1", "unknown") }, states: []string{"online"}, withdrawn: true},
		{name: "a fenced node is under maintenance", before: "fence", meanwhile: func(b *bench, _ nstance.Machine) { b.cloud.SetMaintenance("pve1", true) }, withdrawn: true},
		{name: "high availability has no state", before: "maintenance", meanwhile: func(b *bench, _ nstance.Machine) { b.cloud.SetHAState("pve1", "") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, &pvetest.Options{Nodes: []pvetest.Node{{Name: "pve1", Memory: 64 << 30, CPUs: 8}, {Name: "pve2", Memory: 64 << 30, CPUs: 8}},
				Templates: []pvetest.Template{{VMID: 9000, Name: "debian", Node: "pve1"}}})
			m := b.create(b.spec())
			b.running(b.p, m.ID)
			b.cloud.SetHAState("pve1", c.before)
			var earlier nstance.MachineNotice
			for _, n := range b.watchNotices("pve1") {
				if !n.Notice.Cancelled {
					require.Empty(t, earlier.ID, "one notice")
					earlier = n
				}
			}
			require.Equal(t, map[string]string{"maintenance": maintenance, "fence": fence}[c.before], earlier.Notice.Source)
			if c.meanwhile != nil {
				c.meanwhile(b, m)
			}
			withdrawals := 0
			for _, n := range b.watchNotices("pve1", c.states...) {
				require.Equal(t, m.ID, n.ID)
				if n.Notice.EventID == earlier.Notice.EventID && n.Notice.Cancelled {
					withdrawals++
				}
			}
			require.Equal(t, c.withdrawn, withdrawals == 1, "withdrawals: %d", withdrawals)
		})
	}
}
