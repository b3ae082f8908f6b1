package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
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
