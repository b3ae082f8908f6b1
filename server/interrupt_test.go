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

// An announcer is a cloud that runs its machines' metadata services itself.
type announcer struct {
	*simcloud.Cloud
	announced chan nstance.InstanceID
}

func (a announcer) Interrupt(id nstance.InstanceID, action string, after time.Duration) error {
	if action != "terminate" || after != time.Minute {
		return nstance.Errorf(nstance.Invalid, "%s in %s", action, after)
	}
	a.announced <- id
	return nil
}

func TestInterruptThroughMetadata(t *testing.T) {
	minute := durationpb.New(time.Minute)
	t.Run("is the provider's affair", func(t *testing.T) {
		for _, always := range []bool{false, true} {
			cloud := announcer{simcloud.New(nil), make(chan nstance.InstanceID, 1)}
			t.Cleanup(cloud.Close)
			w := newWorld(t, setup{size: 1, over: cloud, opts: server.Options{InterruptThroughMetadata: always}})
			e := w.await(nstance.EventCreated, "")
			_, err := w.admin().Interrupt(t.Context(), &apiv1.InterruptRequest{Id: string(e.Instance), Notice: minute, ThroughMetadata: !always})
			require.NoError(t, err)
			require.Equal(t, e.Instance, <-cloud.announced)
			require.Zero(t, w.count(nstance.EventNoticeReceived), "the agent finds it")
		}
	})
	t.Run("is refused where the provider cannot", func(t *testing.T) {
		w := newWorld(t, setup{size: 1})
		id := w.machine(nstance.DefaultTenant)
		_, err := w.admin().Interrupt(t.Context(), &apiv1.InterruptRequest{Id: string(id), Notice: minute, ThroughMetadata: true})
		require.ErrorContains(t, err, "does not run its machines' metadata services")
	})
}
