package agent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

func reclaimOf(event string, left time.Duration) nstance.Notice {
	n := reclaimIn(left)
	n.EventID = event
	return n
}

func withdrawn(n nstance.Notice) nstance.Notice {
	n.Cancelled = true
	return n
}

// TestNoticesAnsweredByDrains: a notice that dooms the machine is answered while a drain stands
// that is for it, and no longer.
func TestNoticesAnsweredByDrains(t *testing.T) {
	t.Parallel()
	withoutServer := func(t *testing.T, f func(m *machine, h *hookLog)) {
		t.Helper()
		inBubble(t, func(t *testing.T, _ *testShard, m *machine) {
			h := m.hook()
			m.options.AgentAddrs = []string{"absent.test:8994"}
			_, stop := m.start()
			defer stop()
			f(m, h)
		})
	}
	stands := func(h *hookLog) (runs, running int) {
		all, _, ended := h.log()
		return len(all), len(all) - ended - h.finished()
	}
	t.Run("a hook that runs for two goes on when one of them is withdrawn", func(t *testing.T) {
		for _, gone := range []string{"a", "b"} {
			withoutServer(t, func(m *machine, h *hookLog) {
				m.notice <- reclaimOf("a", time.Hour)
				m.notice <- reclaimOf("b", time.Hour)
				advance(10 * time.Second)
				m.notice <- withdrawn(reclaimOf(gone, time.Hour))
				advance(10 * time.Second)
				runs, running := stands(h)
				require.Equal(t, 1, runs)
				require.Equal(t, 1, running)
			})
		}
	})
	t.Run("it is stopped when both are withdrawn", func(t *testing.T) {
		withoutServer(t, func(m *machine, h *hookLog) {
			for _, id := range []string{"a", "b"} {
				m.notice <- reclaimOf(id, time.Hour)
			}
			advance(10 * time.Second)
			for _, id := range []string{"a", "b"} {
				m.notice <- withdrawn(reclaimOf(id, time.Hour))
			}
			advance(10 * time.Second)
			_, running := stands(h)
			require.Zero(t, running)
		})
	})
	t.Run("a second notice with less time tightens it", func(t *testing.T) {
		withoutServer(t, func(m *machine, h *hookLog) {
			m.notice <- reclaimOf("a", time.Hour)
			advance(10 * time.Second)
			m.notice <- reclaimOf("b", time.Minute)
			advance(time.Minute)
			_, _, ended := h.log()
			require.Equal(t, 1, ended)
		})
	})
	t.Run("a withdrawn notice that is announced again is drained for again", func(t *testing.T) {
		for _, outcome := range []nstance.Outcome{"", nstance.OutcomeDrained, nstance.OutcomeFailed} {
			withoutServer(t, func(m *machine, h *hookLog) {
				n := reclaimOf("a", time.Hour)
				m.notice <- n
				advance(10 * time.Second)
				if outcome != "" {
					h.end(outcome)
				}
				m.notice <- withdrawn(n)
				m.notice <- n
				advance(10 * time.Second)
				runs, running := stands(h)
				require.Equal(t, 2, runs, outcome)
				require.Equal(t, 1, running, outcome)
			})
		}
	})
	t.Run("a failed drain is not repeated for the same notices", func(t *testing.T) {
		withoutServer(t, func(m *machine, h *hookLog) {
			m.notice <- reclaimOf("a", time.Hour)
			advance(10 * time.Second)
			h.end(nstance.OutcomeFailed)
			m.notice <- reclaimOf("b", time.Hour)
			advance(10 * time.Second)
			h.end(nstance.OutcomeFailed)
			advance(10 * time.Minute)
			runs, _, _ := h.log()
			require.Len(t, runs, 2, "one for each")
		})
	})
	t.Run("the drain of a server that has gone answers its own causes", func(t *testing.T) {
		for event, want := range map[string]int{"event-1": 1, "another": 2} {
			inBubble(t, func(t *testing.T, s *testShard, m *machine) {
				h := m.hook()
				_, stop := m.start()
				defer stop()
				s.awaitSession().drain(1, time.Now().Add(time.Hour)) // for event-1
				advance(time.Second)
				h.end(nstance.OutcomeDrained)
				advance(time.Second)
				s.stop()
				m.notice <- reclaimOf(event, time.Hour)
				advance(time.Minute)
				runs, _, _ := h.log()
				require.Len(t, runs, want, event)
			})
		}
	})
	t.Run("a drain that was cancelled while the agent was away answers nothing", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h := m.hook()
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			v.drain(1, time.Now().Add(time.Hour))
			advance(time.Second)
			h.end(nstance.OutcomeDrained)
			v.endWith <- nil
			s.awaitSession().send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_DrainCancel{DrainCancel: &apiv1.DrainCancel{Generation: 1}}})
			advance(time.Second)
			s.stop()
			m.notice <- reclaimOf("event-1", time.Hour)
			advance(time.Minute)
			runs, _, _ := h.log()
			require.Len(t, runs, 2)
		})
	})
	t.Run("an agent without hook reports no drain", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			s.configure(func() { s.withholdAcks = true })
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			m.notice <- reclaimOf("a", time.Hour)
			advance(time.Minute)
			for len(v.received) > 0 {
				require.False(t, isResult(<-v.received))
			}
		})
	})
}
