package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func TestPreserveInstance(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	w.connectReady(id)
	api := w.admin()
	preserve := func(api apiv1.OperatorServiceClient, req *apiv1.PreserveInstanceRequest) (*apiv1.Instance, error) {
		req.Id = string(id)
		resp, err := api.PreserveInstance(t.Context(), req)
		return resp.GetInstance(), wire.ErrorOf(err)
	}
	t.Run("refused", func(t *testing.T) {
		_, err := preserve(w.registerClient(nstance.RoleOperator, "blue").operatorAPI(), &apiv1.PreserveInstanceRequest{})
		require.ErrorIs(t, err, nstance.NotFound, "it is another tenant's")
		for _, d := range []time.Duration{-time.Second, 721 * time.Hour} {
			_, err = preserve(api, &apiv1.PreserveInstanceRequest{Duration: durationpb.New(d)})
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, "duration")
		}
		_, err = preserve(api, &apiv1.PreserveInstanceRequest{Duration: durationpb.New(0)})
		require.ErrorIs(t, err, nstance.Conflict, "nothing is to be ended")
	})
	t.Run("a dry run changes nothing", func(t *testing.T) {
		i, err := preserve(api, &apiv1.PreserveInstanceRequest{DryRun: true})
		require.NoError(t, err)
		require.Nil(t, i.GetPreservedUntil())
		require.Equal(t, 1, w.countMachines(nstance.DefaultTenant))
	})
	t.Run("it is kept for a day, and a replacement is created", func(t *testing.T) {
		i, err := preserve(api, &apiv1.PreserveInstanceRequest{})
		require.NoError(t, err)
		require.InDelta(t, 24*time.Hour, time.Until(i.GetPreservedUntil().AsTime()), float64(time.Minute))
		require.Contains(t, i.GetConditions(), "preserved")
		require.Eventually(t, func() bool { return w.countMachines(nstance.DefaultTenant) == 2 }, eventually, time.Millisecond)
		require.EqualValues(t, 1, w.getGroup(api, "web").GetPreserved())
	})
	t.Run("it is neither deleted nor drained, dry runs included", func(t *testing.T) {
		for _, dry := range []bool{true, false} {
			_, deleted := api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: string(id), DryRun: dry})
			_, drained := api.DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: string(id), DryRun: dry})
			for _, err := range []error{wire.ErrorOf(deleted), wire.ErrorOf(drained)} {
				require.ErrorIs(t, err, nstance.Conflict)
				require.ErrorContains(t, err, "instance preserve --end "+string(id))
			}
		}
	})
	t.Run("after the end it is deleted", func(t *testing.T) {
		i, err := preserve(api, &apiv1.PreserveInstanceRequest{Duration: durationpb.New(0)})
		require.NoError(t, err)
		require.NotContains(t, i.GetConditions(), "preserved")
		w.awaitEvent(nstance.EventDrainStarted, id)
	})
}

func TestRemovalDuringAFreeze(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := string(w.awaitMachine(nstance.DefaultTenant))
	w.connectReady(nstance.InstanceID(id))
	api := w.admin()
	_, err := api.Freeze(t.Context(), &apiv1.FreezeRequest{Group: "web"})
	require.NoError(t, err)
	for _, dry := range []bool{true, false} {
		_, deleted := api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: id, DryRun: dry})
		require.ErrorIs(t, wire.ErrorOf(deleted), nstance.Conflict)
		_, drained := api.DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: id, DryRun: dry})
		require.ErrorIs(t, wire.ErrorOf(drained), nstance.Conflict)
	}
	_, err = api.Thaw(t.Context(), &apiv1.ThawRequest{Group: "web"})
	require.NoError(t, err)
	_, err = api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: id, DryRun: true})
	require.NoError(t, err)
	_, err = api.DrainInstance(t.Context(), &apiv1.DrainInstanceRequest{Id: id, DryRun: true})
	require.NoError(t, err)
	require.Zero(t, w.countEvents(nstance.EventDrainStarted))
}
