package server_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/notice"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
)

// An interruptingCloud is a cloud that can interrupt machines through their metadata
// services.
type interruptingCloud struct {
	*simcloud.Cloud
	announced chan nstance.InstanceID
}

func (a interruptingCloud) Interrupt(id nstance.InstanceID, action string, after time.Duration) error {
	if action != "terminate" || after != time.Minute {
		return nstance.Errorf(nstance.Invalid, "%s in %s", action, after)
	}
	a.announced <- id
	return nil
}

func TestInterruptThroughMetadata(t *testing.T) {
	t.Parallel()
	minute := durationpb.New(time.Minute)
	t.Run("is done by the provider", func(t *testing.T) {
		for _, always := range []bool{false, true} {
			cloud := interruptingCloud{simcloud.New(nil), make(chan nstance.InstanceID, 1)}
			t.Cleanup(cloud.Close)
			w := newWorld(t, setup{webSize: 1, provider: cloud, opts: server.Options{InterruptThroughMetadata: always}})
			e := w.awaitEvent(nstance.EventCreated, "")
			_, err := w.admin().Interrupt(t.Context(), &apiv1.InterruptRequest{Id: string(e.Instance), Notice: minute, ThroughMetadata: !always})
			require.NoError(t, err)
			require.Equal(t, e.Instance, <-cloud.announced)
			require.Zero(t, w.countEvents(nstance.EventNoticeReceived), "the agent finds it")
		}
	})
	t.Run("is refused if the provider cannot", func(t *testing.T) {
		w := newWorld(t, setup{webSize: 1})
		id := w.awaitMachine(nstance.DefaultTenant)
		_, err := w.admin().Interrupt(t.Context(), &apiv1.InterruptRequest{Id: string(id), Notice: minute, ThroughMetadata: true})
		require.ErrorContains(t, err, "does not run its machines' metadata services")
	})
}

// TestInterruptGroup interrupts members that have been there longest, at once.
func TestInterruptGroup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 3})
	api := w.admin()
	var members []nstance.InstanceID
	require.Eventually(t, func() bool {
		members = nil
		for _, m := range w.cloud.Machines() {
			if m.Group == "web" {
				members = append(members, m.ID)
			}
		}
		return len(members) == 3
	}, eventually, time.Millisecond)
	slices.Sort(members) // by age
	two := &apiv1.InterruptRequest{Group: "web", Count: 2}
	_, err := api.Interrupt(t.Context(), two)
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Conflict)
	require.ErrorContains(t, err, "has no ready members")
	for _, id := range members[:2] {
		w.connectReady(id)
	}
	onDemand := newRequestID(t)
	_, err = api.CreateInstance(t.Context(), &apiv1.CreateInstanceRequest{Id: onDemand, Group: "web"})
	require.NoError(t, err)
	w.awaitEvent(nstance.EventCreated, nstance.InstanceID(onDemand))
	w.connectReady(nstance.InstanceID(onDemand)) // it is no member
	_, err = api.Interrupt(t.Context(), two)
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Conflict)
	require.ErrorContains(t, err, "2 of 3 members are ready")
	w.connectReady(members[2])
	for request, field := range map[*apiv1.InterruptRequest]string{
		{Group: "web", Count: -1}:                  "count",
		{Group: "web", Count: 1001}:                "count",
		{Group: "web", Id: string(members[0])}:     "id",
		{Id: string(members[0]), Count: 2}:         "group",
		{Group: "web", Kind: "storm"}:              "kind",
		{Group: "web", Notice: durationpb.New(-1)}: "notice",
	} {
		_, err := api.Interrupt(t.Context(), request)
		require.ErrorIs(t, wire.ErrorOf(err), nstance.Invalid)
		require.ErrorContains(t, err, field)
	}
	_, err = api.Interrupt(t.Context(), &apiv1.InterruptRequest{Group: "web", Count: 4})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.Conflict)
	require.ErrorContains(t, err, "more than the size")
	blue := w.registerClient(nstance.RoleOperator, "blue").operatorAPI()
	_, err = blue.Interrupt(t.Context(), &apiv1.InterruptRequest{Group: "web", Tenant: "default"})
	require.ErrorIs(t, wire.ErrorOf(err), nstance.NotFound)

	resp, err := api.Interrupt(t.Context(), &apiv1.InterruptRequest{Group: "web", Count: 2, DryRun: true})
	require.NoError(t, err)
	for _, id := range members[:2] {
		require.True(t, slices.ContainsFunc(resp.GetPlan(), func(line string) bool { return strings.Contains(line, string(id)) }), "%v", resp.GetPlan())
	}
	require.Zero(t, w.countEvents(nstance.EventNoticeReceived))

	resp, err = api.Interrupt(t.Context(), two)
	require.NoError(t, err)
	require.Equal(t, []string{string(members[0]), string(members[1])}, resp.GetInstances())
	for _, id := range members[:2] {
		e := w.awaitEvent(nstance.EventNoticeReceived, id)
		require.Equal(t, resp.GetEventId(), e.Notice.EventID)
		require.True(t, notice.Rehearsed(*e.Notice))
		w.awaitEvent(nstance.EventDrainStarted, id)
	}
	require.Equal(t, 2, w.countEvents(nstance.EventNoticeReceived))

	resp, err = api.Interrupt(t.Context(), &apiv1.InterruptRequest{Group: "web", Count: 9, Force: true, Kind: "rebalance"})
	require.NoError(t, err)
	require.Equal(t, []string{string(members[2])}, resp.GetInstances(), "all that are ready")
	require.Equal(t, nstance.Rebalance, w.awaitEvent(nstance.EventNoticeIgnored, members[2]).Notice.Kind)
}
