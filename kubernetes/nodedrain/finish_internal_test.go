package nodedrain

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// An awayCoordinator cannot be reached.
type awayCoordinator struct {
	nstance.DrainCoordinator
	acks int
}

func (c *awayCoordinator) Acknowledge(context.Context, nstance.Ack) error {
	c.acks++
	return nstance.Errorf(nstance.Unavailable, "shard a is being listed")
}

// TestAckUntilDrainEnds: an acknowledgement that is not delivered is repeated until the drain
// has ended.
func TestAckUntilDrainEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := &awayCoordinator{}
		d := &Drainer{drains: away, workers: map[nstance.InstanceID]*worker{}, options: Options{Log: slog.New(slog.DiscardHandler)}}
		w := newWorker(d, nstance.Drain{Instance: "web-1", Generation: 1, Deadline: time.Now().Add(time.Hour)}, true)
		w.start(t.Context())
		d.workers["web-1"] = w
		delivered := make(chan struct{})
		go func() {
			w.acknowledge(w.life, nstance.OutcomeDrained, "")
			close(delivered)
		}()
		<-time.After(10 * time.Minute)
		synctest.Wait()
		require.Greater(t, away.acks, 100)
		d.remove("web-1", errEnded)
		<-time.After(10 * time.Second)
		synctest.Wait()
		select {
		case <-delivered:
		default:
			t.Error("it is repeated after the end of the drain")
		}
		w.close()
		<-delivered
	})
}
