package proxmox_test

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
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

const callReadConfig = "GET /nodes/{node}/qemu/{vmid}/config"

// TestConfigThatIsNone: an answer without a configuration does not say that the machine is gone.
func TestConfigThatIsNone(t *testing.T) {
	for name, body := range map[string]string{"null": `{"data": null}`, "nothing": `{}`, "empty": `{"data": {}}`} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil)
			m := b.create(b.spec())
			b.running(b.p, m.ID)
			b.eventually(b.finished, "half made")
			b.cloud.Faults().All(callReadConfig, testcloud.Fault{Answer: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }})
			_, err := b.p.Get(t.Context(), m.ID)
			b.refused(nstance.Unavailable, err)
			b.refused(nstance.Unavailable, b.p.Delete(t.Context(), m))
			b.cloud.Faults().Clear()
			require.Len(t, b.cloud.Machines(), 1)
			b.gone(b.p, m)
		})
	}
}

// TestOddStatuses: below 500 a refusal is definite, with words or without, unless it is about
// the time or the place of the call.
func TestOddStatuses(t *testing.T) {
	for status, want := range map[int]nstance.Code{
		301: nstance.Ambiguous, 402: nstance.Invalid, 405: nstance.Invalid, 408: nstance.Ambiguous, 409: nstance.Invalid, 413: nstance.Invalid, 451: nstance.Invalid, 500: nstance.Ambiguous,
	} {
		for _, fault := range []testcloud.Fault{testcloud.Page(status), answer(status, "")} {
			b := newBench(t, nil)
			b.cloud.Faults().Next(callClone, fault)
			_, err := b.p.Create(t.Context(), b.spec())
			b.refused(want, err)
			require.Empty(t, b.cloud.Machines())
		}
	}
	b := newBench(t, nil)
	for status, want := range map[int]nstance.Code{301: nstance.Unavailable, 408: nstance.Unavailable, 405: nstance.Invalid} {
		b.cloud.Faults().Next(callList, testcloud.Page(status))
		_, err := b.p.Get(t.Context(), b.spec().ID)
		b.refused(want, err)
	}
}

// TestStorageMissing: that a storage is not there is a refusal, and no machine has moved.
func TestStorageMissing(t *testing.T) {
	for _, words := range []string{"storage 'fast' does not exist", "storage 'fast' is not available on node 'pve1'"} {
		b := newBench(t, nil)
		b.cloud.Faults().Next(callClone, answer(500, words))
		_, err := b.p.Create(t.Context(), b.spec())
		b.refused(nstance.Invalid, err)
		require.ErrorContains(t, err, words)
	}
}

// says answers with a JSON object as data.
func says(data string) testcloud.Fault {
	return testcloud.Fault{Answer: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"data": ` + data + `}`)) }}
}

// TestEndsOfTasks: a task that ended with warnings succeeded, and of one without a status nothing is
// known. So it is with a clone for which no task is named.
func TestEndsOfTasks(t *testing.T) {
	b := newBench(t, nil)
	b.cloud.Faults().Next(callTask, says(`{"status": "stopped", "exitstatus": "WARNINGS: 1"}`))
	b.running(b.p, b.create(b.spec()).ID)
	for call, fault := range map[string]testcloud.Fault{callTask: says(`{"status": "stopped"}`), callClone: says(`""`)} {
		b := newBench(t, nil)
		b.cloud.Faults().Next(call, fault)
		_, err := b.p.Create(t.Context(), b.spec())
		b.refused(nstance.Ambiguous, err)
	}
}

// TestImageStays: a machine is not gone while its image cannot be removed, or the storage with the
// images is not visible.
func TestImageStays(t *testing.T) {
	b := newBench(t, nil)
	m := b.create(b.spec())
	b.running(b.p, m.ID)
	b.eventually(b.finished, "half made")
	b.cloud.Faults().All("DELETE /nodes/{node}/storage/{storage}/content/{volume...}", answer(500, "not now"))
	b.eventually(func() bool {
		err := b.p.Delete(t.Context(), m)
		require.NotErrorIs(t, err, nstance.NotFound)
		return err != nil && strings.Contains(err.Error(), "not now")
	}, "the image is not tried")
	require.NotEmpty(t, b.cloud.Volumes())
	b.cloud.Faults().Clear()
	b.gone(b.p, m)
	require.Empty(t, b.cloud.Volumes())
	err := b.open(proxmox.Options{ISOStorage: "nowhere"}).Delete(t.Context(), m)
	b.refused(nstance.Unavailable, err)
	require.ErrorContains(t, err, "nowhere")
}

// TestImageOnOfflineNode: a node that is offline keeps no machine from being gone. That an image
// may stay there is logged once for each time.
func TestImageOnOfflineNode(t *testing.T) {
	b := newBench(t, &pvetest.Options{Nodes: []pvetest.Node{{Name: "pve1", Memory: 64 << 30, CPUs: 8}, {Name: "pve2", Memory: 64 << 30, CPUs: 8}}})
	var out bytes.Buffer
	b.log = slog.New(slog.NewTextHandler(&out, nil))
	p := b.open(proxmox.Options{})
	logged := func() int { return strings.Count(out.String(), "node is offline: images") }
	for times := range 2 {
		b.refused(nstance.NotFound, p.Delete(t.Context(), nstance.Machine{ID: b.spec().ID, Owner: b.owner}))
		require.Equal(t, times, logged())
		b.cloud.SetOffline("pve2", true)
		for range 2 {
			b.refused(nstance.NotFound, p.Delete(t.Context(), nstance.Machine{ID: b.spec().ID, Owner: b.owner}))
		}
		require.Equal(t, times+1, logged())
		b.cloud.SetOffline("pve2", false)
	}
	require.Contains(t, out.String(), "node=pve2 storage=local")
}

// TestImageIsGone: an image that another server has removed meanwhile is uploaded again.
func TestImageIsGone(t *testing.T) {
	b := newBench(t, nil)
	b.cloud.Faults().Next("POST /nodes/{node}/qemu/{vmid}/config", answer(500, "volume 'local:iso/x.iso' does not exist"))
	m := b.create(b.spec())
	b.running(b.p, m.ID)
	require.Equal(t, 2, b.cloud.Faults().Calls()["POST /nodes/{node}/storage/{storage}/upload"])
}

// TestListIsNotWhole: a machine that may be ours and cannot be read makes a listing incomplete.
func TestListIsNotWhole(t *testing.T) {
	b := newBench(t, nil)
	b.cloud.Add(777, "pve1", map[string]string{"name": string(b.spec().ID)})
	b.cloud.Faults().Next(callReadConfig, answer(500, "not now"))
	var last error
	for _, err := range b.p.List(t.Context(), b.owner) {
		last = err
	}
	require.ErrorContains(t, last, "not now")
}

// TestTagsOfAnotherOwner: a machine whose tags and notes name two owners belongs to neither.
func TestTagsOfAnotherOwner(t *testing.T) {
	b := newBench(t, nil)
	m := b.create(b.spec())
	b.running(b.p, m.ID)
	b.eventually(b.finished, "half made")
	old := b.cloud.Config(vmidOf(t, m))
	b.cloud.SetConfig(vmidOf(t, m), map[string]string{"tags": strings.Replace(old["tags"], "nstance-shard-s1", "nstance-shard-s2", 1)})
	_, err := b.p.Get(t.Context(), m.ID)
	b.refused(nstance.Conflict, err)
	b.refused(nstance.Conflict, b.p.Delete(t.Context(), m))
}

// TestLostDenied: a clone that its task was not permitted is lost as a request that cannot work.
func TestLostDenied(t *testing.T) {
	b := newBench(t, &pvetest.Options{FirstDisk: time.Second, Clone: 3500 * time.Millisecond})
	b.cloud.FailTasks("qmclone", "Permission check failed (/storage/local, Datastore.AllocateSpace)")
	s := b.spec()
	b.create(s)
	var err error
	b.eventually(func() bool {
		_, err = b.p.Get(t.Context(), s.ID)
		return nstance.CodeOf(err) == nstance.NotFound
	}, "the clone never failed")
	require.Equal(t, nstance.LossInvalid, nstance.LossCauseOf(err))
}

// TestDestroyPurges: a machine is removed from jobs and replication too, and its stop is not refused
// because of a shutdown that is under way.
func TestDestroyPurges(t *testing.T) {
	b := newBench(t, nil)
	m := b.create(b.spec())
	b.running(b.p, m.ID)
	var stopped, purged atomic.Bool
	see := func(r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/status/stop"):
			body, err := io.ReadAll(r.Body)
			stopped.Store(err == nil && strings.Contains(string(body), "overrule-shutdown"))
			r.Body = io.NopCloser(bytes.NewReader(body))
		case r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/qemu/"):
			purged.Store(r.URL.Query().Get("purge") == "1")
		}
	}
	b.onCall.Store(&see)
	b.gone(b.p, m)
	require.True(t, stopped.Load())
	require.True(t, purged.Load())
}

// TestMachineOnSilentNode: that a node does not answer for one machine says nothing of another that
// could have its VMID.
func TestMachineOnSilentNode(t *testing.T) {
	b := newBench(t, &pvetest.Options{Nodes: []pvetest.Node{{Name: "pve1", Memory: 8 << 30, CPUs: 8}, {Name: "pve2", Memory: 64 << 30, CPUs: 8}},
		Templates: []pvetest.Template{{VMID: 9000, Name: "debian", Node: "pve1"}}})
	p := b.open(proxmox.Options{MinVMID: 500, MaxVMID: 500})
	s := b.spec()
	s.Args = json.RawMessage(`{"template": 9000, "any_node": true}`)
	_, err := p.Create(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, "pve2", b.running(p, s.ID).Zone)
	b.eventually(b.finished, "half made")
	b.refuse.Store(&refusal{path: "/nodes/pve2/qemu/", answer: answer(595, "").Answer})
	_, err = p.Get(t.Context(), s.ID)
	b.refused(nstance.Unavailable, err)
	_, err = p.Get(t.Context(), b.spec().ID)
	b.refused(nstance.NotFound, err)
}

// TestNUMANodesOfMemory: the template's NUMA nodes do not fit another memory, whatever the cores are.
func TestNUMANodesOfMemory(t *testing.T) {
	b := newBench(t, nil)
	b.cloud.SetConfig(9000, map[string]string{"numa": "1", "memory": "4096", "numa0": "cpus=0-1,memory=4096"})
	s := b.spec()
	s.InstanceType, s.Args = "", json.RawMessage(`{"template": 9000, "memory": 2048}`)
	m := b.create(s)
	b.running(b.p, m.ID)
	require.Empty(t, b.cloud.Config(vmidOf(t, m))["numa0"])
}

// TestStatusNotShown: what does not show its status does not show either that high availability
// leaves the machine alone.
func TestStatusNotShown(t *testing.T) {
	for name, body := range map[string]string{"null": "null", "empty": "{}"} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil)
			m := b.create(b.spec())
			b.running(b.p, m.ID)
			b.eventually(b.finished, "half made")
			b.cloud.Faults().All("GET /nodes/{node}/qemu/{vmid}/status/current", says(body))
			b.refused(nstance.Unavailable, b.p.Delete(t.Context(), m))
			b.refused(nstance.Unavailable, b.p.Park(t.Context(), m, nstance.ParkStopped))
			b.cloud.Faults().Clear()
			b.gone(b.p, m)
		})
	}
}

// TestListsThatAreNone: an answer without a list does not say that there is nothing.
func TestListsThatAreNone(t *testing.T) {
	const callImages = "GET /nodes/{node}/storage/{storage}/content"
	b := newBench(t, nil)
	m := b.create(b.spec())
	b.running(b.p, m.ID)
	b.eventually(b.finished, "half made")
	b.cloud.Faults().All(callImages, says("null"))
	var err error
	b.eventually(func() bool {
		err = b.p.Delete(t.Context(), m)
		require.NotErrorIs(t, err, nstance.NotFound)
		return err != nil && len(b.cloud.Machines()) == 0
	}, "the images are not asked for")
	b.refused(nstance.Unavailable, err)
	require.NotEmpty(t, b.cloud.Volumes())
	b.cloud.Faults().Clear()
	b.gone(b.p, m)
	require.Empty(t, b.cloud.Volumes())

	s := b.spec()
	s.Args = json.RawMessage(`{"template": 9000, "pci": [{"mapping": "gpu"}]}`)
	for call, create := range map[string]nstance.MachineSpec{"GET /cluster/mapping/pci": s, callList: b.spec(), "GET /access/permissions": b.spec()} {
		b.cloud.Faults().Next(call, says("null"))
		_, err = b.p.Create(t.Context(), create)
		b.refused(nstance.Unavailable, err)
		require.ErrorContains(t, err, "has no data")
	}
}

// TestNoTaskNamed: a call that names no task is not known to be done, unless it may be done at
// once. What is lost of an upload is not in its place.
func TestNoTaskNamed(t *testing.T) {
	b := newBench(t, nil)
	b.cloud.Faults().Next("POST /nodes/{node}/storage/{storage}/upload", says("null"))
	_, err := b.p.Create(t.Context(), b.spec())
	b.refused(nstance.Ambiguous, err)
	require.Empty(t, b.cloud.Machines())
	b.cloud.Faults().Next("POST /nodes/{node}/qemu/{vmid}/config", says("null"))
	b.running(b.p, b.create(b.spec()).ID)
	m := b.create(b.spec())
	b.running(b.p, m.ID)
	b.cloud.Faults().Next(callShutdown, says("null"))
	require.NoError(t, b.p.Park(t.Context(), m, nstance.ParkStopped))
	b.eventually(func() bool { err = b.p.Park(t.Context(), m, nstance.ParkStopped); return err != nil }, "the park is not refused")
	b.refused(nstance.Unavailable, err)
	require.ErrorContains(t, err, "named no task")
}
