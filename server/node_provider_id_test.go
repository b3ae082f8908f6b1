package server_test

import (
	"context"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
)

// A zonedCloud is a simulated cloud that names nodes by the zone of their machine. An
// unreadable one answers no questions.
type zonedCloud struct {
	*simcloud.Cloud
	unreadable bool
}

func (z zonedCloud) Create(ctx context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
	m, err := z.Cloud.Create(ctx, s)
	m.Zone = "z1"
	return m, err
}

func (z zonedCloud) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	if z.unreadable {
		return nstance.Machine{}, nstance.Errorf(nstance.Unavailable, "no answer")
	}
	m, err := z.Cloud.Get(ctx, id)
	m.Zone = "z1"
	return m, err
}

func (z zonedCloud) List(ctx context.Context, o nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		if z.unreadable {
			yield(nstance.Machine{}, nstance.Errorf(nstance.Unavailable, "no answer"))
			return
		}
		for m, err := range z.Cloud.List(ctx, o) {
			if m.Zone = "z1"; !yield(m, err) {
				return
			}
		}
	}
}

func (zonedCloud) NodeProviderID(m nstance.Machine) string {
	if m.Zone == "" {
		return ""
	}
	return "test:///" + m.Zone + "/" + m.ProviderID
}

// requireNodeProviderID requires the ID in every message of the API about an instance.
func (w *world) requireNodeProviderID(id nstance.InstanceID, want string) {
	w.Helper()
	api := w.admin()
	require.Equal(w, want, w.instance(api, id).GetNodeProviderId())
	list, err := api.ListInstances(w.Context(), &apiv1.ListInstancesRequest{Group: "web"})
	require.NoError(w, err)
	require.Len(w, list.GetInstances(), 1)
	require.Equal(w, want, list.GetInstances()[0].GetNodeProviderId())
	stream, err := api.WatchInstanceEvents(w.Context(), &apiv1.WatchInstanceEventsRequest{Instance: string(id)})
	require.NoError(w, err)
	m, err := stream.Recv()
	require.NoError(w, err)
	require.Equal(w, want, m.GetSnapshot().GetNodeProviderId())
}

func TestNodeProviderID(t *testing.T) {
	t.Parallel()
	t.Run("the cloud names none", func(t *testing.T) {
		w := newWorld(t, setup{webSize: 1})
		id := w.awaitMachine("default")
		w.requireNodeProviderID(id, "nstance:///"+string(id))
	})
	t.Run("a new leader to which the cloud shows no machine answers the same", func(t *testing.T) {
		cloud := zonedCloud{Cloud: simcloud.New(nil)}
		t.Cleanup(cloud.Close)
		w := newWorld(t, setup{webSize: 1, provider: cloud})
		w.cloud = cloud.Cloud
		id := w.awaitMachine("default")
		m, err := cloud.Cloud.Get(t.Context(), id)
		require.NoError(t, err)
		want := "test:///z1/" + m.ProviderID
		w.requireNodeProviderID(id, want)
		w.registerAgent(id)

		require.NoError(t, w.stopServer())
		cloud.unreadable = true
		opts := server.Options{Journal: w.journal, Kinds: kinds}
		hasten(&opts, func() {})
		w.server, err = server.New(t.Context(), w.store, cloud, w.conf.read, &opts)
		require.NoError(t, err)
		w.run()
		w.awaitLeading()
		w.requireNodeProviderID(id, want)
	})
	t.Run("empty before the machine is known", func(t *testing.T) {
		w := newWorld(t, setup{webSize: 0, noWait: true})
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Times: -1, Code: nstance.Throttled})
		w.awaitLeading()
		require.Eventually(t, func() bool { return groupsKnown(w.server) }, eventually, time.Millisecond)
		api, id := w.admin(), newRequestID(t)
		resp, err := api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: id, Group: "web"})
		require.NoError(t, err)
		require.Empty(t, resp.GetInstance().GetNodeProviderId())
		w.awaitEvent(nstance.EventCreateRequested, nstance.InstanceID(id))
		w.requireNodeProviderID(nstance.InstanceID(id), "")
	})
}

// TestRegisteredBeforeMachineIsKnown: an agent registers while the answer to its machine's
// create is lost. Watchers learn that the machine is known from an event.
func TestRegisteredBeforeMachineIsKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 0})
	w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Lost: true})
	w.cloud.Inject(simcloud.Fault{Op: simcloud.OpGet, Times: -1, Code: nstance.Unavailable})
	w.cloud.Inject(simcloud.Fault{Op: simcloud.OpList, Times: -1, Code: nstance.Unavailable})
	api, id := w.admin(), nstance.InstanceID(newRequestID(t))
	_, err := api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: string(id), Group: "web"})
	require.NoError(t, err)
	require.Eventually(t, func() bool { _, made := w.cloud.Spec(id); return made }, eventually, time.Millisecond)
	w.registerAgent(id)
	w.awaitEvent(nstance.EventRegistered, id)
	w.cloud.ClearFaults()
	w.awaitEvent(nstance.EventCreated, id)
	require.Equal(t, "nstance:///"+string(id), w.instance(api, id).GetNodeProviderId())
}
