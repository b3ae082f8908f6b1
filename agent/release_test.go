package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// An acknowledgingDetector records the events that it is asked to acknowledge, and
// answers with what is in errs first.
type acknowledgingDetector struct {
	channelDetector
	asked chan string
	errs  chan error
}

func (d acknowledgingDetector) Acknowledge(_ context.Context, n nstance.Notice) error {
	d.asked <- n.EventID
	select {
	case err := <-d.errs:
		return err
	default:
		return nil
	}
}

func (m *machine) acknowledging() acknowledgingDetector {
	d := acknowledgingDetector{channelDetector{m.notice}, make(chan string, 10), make(chan error, 10)}
	m.options.Detector = d
	return d
}

func (v *serverSession) release(eventIDs ...string) {
	v.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Released{Released: &apiv1.Released{EventIds: eventIDs}}})
}

func event(id string, machines ...string) nstance.Notice {
	n := reclaimIn(10 * time.Minute)
	n.EventID, n.Machines = id, machines
	return n
}

// TestReleasedEvents: events are acknowledged to the cloud by the server's word only, and
// those of several machines only if the server names them.
func TestReleasedEvents(t *testing.T) {
	t.Parallel()
	t.Run("before and after the session", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			d := m.acknowledging()
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			m.notice <- event("own", "web-1")
			m.notice <- event("shared", "web-0", "web-1")
			m.notice <- event("not to be acknowledged")
			m.notice <- event("of another pair", "web-1", "web-2")
			wire := noticesOf(v.awaitMessage(t, func(m *apiv1.ConnectRequest) bool { return len(noticesOf(m)) == 4 }))
			require.Equal(t, []string{"web-0", "web-1"}, wire[1].GetMachines())
			advance(time.Minute)
			require.Empty(t, d.asked, "no server has released the machine")

			v.release("shared", "announced later", "not to be acknowledged")
			v.release() // what was permitted before stays permitted
			synctest.Wait()
			require.Len(t, d.asked, 2)
			require.Equal(t, "own", <-d.asked)
			require.Equal(t, "shared", <-d.asked)
			m.notice <- event("announced later", "web-1", "web-3")
			synctest.Wait()
			require.Len(t, d.asked, 1)
			require.Equal(t, "announced later", <-d.asked)
			require.Empty(t, d.asked)

			v.endWith <- status.Error(codes.NotFound, "the instance is being deleted")
			<-v.ended
			m.notice <- event("of the deletion", "web-1")
			synctest.Wait()
			require.Equal(t, "of the deletion", <-d.asked, "the deletion itself is an event of the cloud")
			advance(time.Minute)
			require.Empty(t, d.asked, "each is acknowledged once")
		})
	})
	t.Run("a failure is repeated, a conflict is not", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			d := m.acknowledging()
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			m.notice <- event("own", "web-1")
			d.errs <- nstance.Errorf(nstance.Unavailable, "no answer")
			d.errs <- nstance.Errorf(nstance.Conflict, "it names other machines by now")
			v.release()
			synctest.Wait()
			require.Equal(t, "own", <-d.asked)
			advance(time.Second)
			require.Equal(t, "own", <-d.asked)
			advance(time.Minute)
			require.Empty(t, d.asked)
		})
	})
}
