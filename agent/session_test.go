package agent_test

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

func reclaimIn(d time.Duration) nstance.Notice {
	return nstance.Notice{Kind: nstance.Reclaim, Action: "terminate", Source: "aws/spot", EventID: "event-1",
		Deadline: time.Now().Add(d), DetectedAt: time.Now()}
}

func TestReports(t *testing.T) {
	t.Run("the server's interval wins, and no report is late", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			s.interval = 10 * time.Second
			_, stop := m.start()
			defer stop()
			v := s.next()
			v.until(t, isReport)
			for range 20 {
				began := time.Now()
				v.until(t, isReport)
				require.LessOrEqual(t, time.Since(began), 10*time.Second)
				require.GreaterOrEqual(t, time.Since(began), 9*time.Second)
			}
		})
	})
	t.Run("without one the agent's own", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			m.o.ReportInterval = 30 * time.Second
			_, stop := m.start()
			defer stop()
			v := s.next()
			v.until(t, isReport)
			began := time.Now()
			v.until(t, isReport)
			require.InDelta(t, 28.5, time.Since(began).Seconds(), 1.6)
		})
	})
	t.Run("numbers grow within a session and start again in the next", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			_, stop := m.start()
			defer stop()
			v := s.next()
			for want := range uint64(5) {
				require.Equal(t, want+1, v.until(t, isReport).GetNumber())
			}
			v.end <- status.Error(codes.Unavailable, "restart")
			require.EqualValues(t, 1, s.next().until(t, isReport).GetNumber())
		})
	})
	t.Run("it says whether there is a hook", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			m.o.Drain = func(context.Context, nstance.Drain) (nstance.Outcome, string) { return nstance.OutcomeDrained, "" }
			_, stop := m.start()
			defer stop()
			require.True(t, s.next().until(t, isReport).GetReport().GetCanDrain())
		})
	})
}

func TestNotices(t *testing.T) {
	t.Run("a notice is sent at once, with its deadline", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			_, stop := m.start()
			defer stop()
			v := s.next()
			v.until(t, isReport)
			n := reclaimIn(2 * time.Minute)
			m.notice <- n
			began := time.Now()
			got := noticesOf(v.until(t, isNotice))[0]
			require.Equal(t, began, time.Now(), "nothing waited")
			require.Equal(t, "event-1", got.GetEventId())
			require.True(t, n.Deadline.Equal(got.GetDeadline().AsTime()))
		})
	})
	t.Run("an acknowledged one is not sent again but is in every report, of every session", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			a, stop := m.start()
			defer stop()
			v := s.next()
			m.notice <- reclaimIn(2 * time.Minute)
			v.until(t, isNotice)
			for range 3 {
				require.False(t, isNotice(v.until(t, func(m *apiv1.ConnectRequest) bool { return isReport(m) || isNotice(m) })))
			}
			require.Len(t, noticesOf(v.until(t, isReport)), 1)
			v.end <- status.Error(codes.Unavailable, "restart")
			v = s.next()
			first := v.until(t, func(*apiv1.ConnectRequest) bool { return true })
			require.True(t, isNotice(first), "the first message of the next session")
			require.Equal(t, []string{"event-1"}, first.GetNotices().GetAcknowledged())
			require.Len(t, noticesOf(v.until(t, isReport)), 1, "its first report")
			require.Len(t, a.Status().Notices, 1)
		})
	})
	t.Run("it is retried until acknowledged, over sessions", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			s.do(func() { s.mute = true })
			_, stop := m.start()
			defer stop()
			v := s.next()
			m.notice <- reclaimIn(2 * time.Minute)
			v.until(t, isNotice)
			began := time.Now()
			v.until(t, isNotice)
			require.Equal(t, 5*time.Second, time.Since(began))
			v.end <- status.Error(codes.Unavailable, "restart")
			v = s.next()
			v.ack(v.until(t, isNotice))
			after(time.Minute)
			for len(v.up) > 0 {
				require.False(t, isNotice(<-v.up))
			}
		})
	})
	t.Run("what was seen before there was a session is not lost", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			nonce := m.nonce(m.id, time.Hour)
			require.NoError(t, os.Remove(m.path("nonce.jwt")))
			_, stop := m.start()
			defer stop()
			m.notice <- reclaimIn(2 * time.Minute)
			after(3 * time.Minute) // past its deadline: judged at first sight only
			m.write("nonce.jwt", nonce)
			v := s.next()
			require.Len(t, noticesOf(v.until(t, isReport)), 1)
		})
	})
	t.Run("a deadline in the past is sent: the server asks the provider", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			_, stop := m.start()
			defer stop()
			v := s.next()
			m.notice <- reclaimIn(-time.Second)
			left := noticesOf(v.until(t, isNotice))[0].GetTimeLeft()
			require.NotNil(t, left)
			require.Equal(t, -time.Second, left.AsDuration())
		})
	})
	t.Run("text that is no UTF-8 does not end the session", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			_, stop := m.start()
			defer stop()
			v := s.next()
			n := reclaimIn(time.Minute)
			n.Action = "term\xffinate"
			m.notice <- n
			require.Equal(t, "terminate", noticesOf(v.until(t, isNotice))[0].GetAction())
		})
	})
}

// A hookLog is a drain hook that a test can watch and finish.
type hookLog struct {
	mu     sync.Mutex
	runs   []nstance.Drain
	at     []time.Time
	ended  int
	finish chan nstance.Outcome
}

func (m *machine) hook() *hookLog {
	h := &hookLog{finish: make(chan nstance.Outcome)}
	m.o.Drain = h.run
	return h
}

func (h *hookLog) run(ctx context.Context, d nstance.Drain) (nstance.Outcome, string) {
	h.mu.Lock()
	h.runs, h.at = append(h.runs, d), append(h.at, time.Now())
	h.mu.Unlock()
	select {
	case <-ctx.Done():
		h.mu.Lock()
		defer h.mu.Unlock()
		h.ended++
		return nstance.OutcomeFailed, "stopped"
	case o := <-h.finish:
		return o, "said so"
	}
}

func (h *hookLog) log() ([]nstance.Drain, []time.Time, int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.runs), slices.Clone(h.at), h.ended
}

func TestOwnHook(t *testing.T) {
	t.Run("a notice unacknowledged for 5 s makes the agent drain itself, and say so when asked", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			h := m.hook()
			s.do(func() { s.mute = true })
			_, stop := m.start()
			defer stop()
			v := s.next()
			n := reclaimIn(2 * time.Minute)
			seen := time.Now()
			m.notice <- n
			after(6 * time.Second)
			runs, at, _ := h.log()
			require.Len(t, runs, 1)
			require.Equal(t, seen.Add(5*time.Second), at[0])
			require.True(t, runs[0].Deadline.Before(n.Deadline), "with a margin before the cloud's deadline")
			require.Equal(t, "event-1", runs[0].Causes[0].EventID)

			h.finish <- nstance.OutcomeDrained
			s.do(func() { s.mute = false })
			v.drain(4, time.Now().Add(time.Minute))
			r := v.until(t, isResult).GetDrainResult()
			require.EqualValues(t, 4, r.GetGeneration())
			require.Equal(t, "drained", r.GetOutcome())
			runs, _, _ = h.log()
			require.Len(t, runs, 1, "not run twice")
		})
	})
	t.Run("without any server, too", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			h := m.hook()
			m.o.AgentAddrs = []string{"absent.test:8994"}
			_, stop := m.start()
			defer stop()
			n := reclaimIn(2 * time.Minute)
			n.Deadline = time.Time{}
			m.notice <- n
			after(5 * time.Second)
			runs, _, _ := h.log()
			require.Len(t, runs, 1)
			left := 25 * time.Second // of the shortest warning, which began when the notice was detected
			require.Equal(t, (left - left/3).Round(time.Millisecond), time.Until(runs[0].Deadline).Round(time.Millisecond), "less the margin")
		})
	})
	t.Run("an acknowledged notice leaves the hook alone", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			h := m.hook()
			_, stop := m.start()
			defer stop()
			s.next()
			m.notice <- reclaimIn(2 * time.Minute)
			after(time.Minute)
			runs, _, _ := h.log()
			require.Empty(t, runs)
		})
	})
	t.Run("a withdrawn notice stops it", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			h := m.hook()
			s.do(func() { s.mute = true })
			_, stop := m.start()
			defer stop()
			v := s.next()
			n := reclaimIn(2 * time.Minute)
			m.notice <- n
			after(10 * time.Second)
			n.Cancelled = true
			m.notice <- n
			v.until(t, func(m *apiv1.ConnectRequest) bool { return isNotice(m) && noticesOf(m)[0].GetCancelled() })
			synctest.Wait()
			_, _, ended := h.log()
			require.Equal(t, 1, ended)
		})
	})
}

func TestDrainCommands(t *testing.T) {
	t.Run("the hook runs once and its result is sent until acknowledged, over sessions", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			h := m.hook()
			_, stop := m.start()
			defer stop()
			v := s.next()
			deadline := time.Now().Add(time.Minute)
			v.drain(2, deadline)
			v.drain(2, deadline)
			s.do(func() { s.mute = true })
			h.finish <- nstance.OutcomeDrained
			r := v.until(t, isResult)
			require.Equal(t, "said so", r.GetDrainResult().GetMessage())
			v.until(t, isResult)
			v.end <- status.Error(codes.Unavailable, "restart")
			v = s.next()
			v.ack(v.until(t, isResult))
			after(time.Minute)
			for len(v.up) > 0 {
				require.False(t, isResult(<-v.up))
			}
			runs, _, _ := h.log()
			require.Len(t, runs, 1)
			require.True(t, deadline.Equal(runs[0].Deadline))
			require.EqualValues(t, 2, runs[0].Generation)
			require.EqualValues(t, "notice", runs[0].Causes[0].Kind)
		})
	})
	t.Run("it goes on while the agent has no session", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			h := m.hook()
			_, stop := m.start()
			defer stop()
			v := s.next()
			v.drain(2, time.Now().Add(time.Hour))
			synctest.Wait()
			v.end <- status.Error(codes.Unavailable, "restart")
			<-v.gone
			h.finish <- nstance.OutcomeDrained
			require.EqualValues(t, 2, s.next().until(t, isResult).GetDrainResult().GetGeneration())
		})
	})
	t.Run("its time left decides, not the server's clock", func(t *testing.T) {
		for _, left := range []time.Duration{time.Minute, 0} {
			inBubble(t, func(t *testing.T, s *shard, m *machine) {
				h := m.hook()
				_, stop := m.start()
				defer stop()
				s.next().send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Drain{Drain: &apiv1.DrainCommand{
					Generation: 2, Deadline: timestamppb.New(time.Now().Add(-17 * time.Hour)), TimeLeft: durationpb.New(left), Causes: []*apiv1.Cause{{Kind: "notice", EventId: "event-1"}},
				}}})
				synctest.Wait()
				runs, _, _ := h.log()
				require.Len(t, runs, 1)
				require.Equal(t, left, time.Until(runs[0].Deadline))
			})
		}
	})
	t.Run("a cancel stops it", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			h := m.hook()
			_, stop := m.start()
			defer stop()
			v := s.next()
			v.drain(2, time.Now().Add(time.Hour))
			after(time.Second)
			v.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_DrainCancel{DrainCancel: &apiv1.DrainCancel{Generation: 2}}})
			after(time.Second)
			_, _, ended := h.log()
			require.Equal(t, 1, ended)
			for len(v.up) > 0 {
				require.False(t, isResult(<-v.up))
			}
		})
	})
	t.Run("the agent's end ends it", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			h := m.hook()
			_, stop := m.start()
			s.next().drain(2, time.Now().Add(time.Hour))
			after(time.Second)
			stop()
			_, _, ended := h.log()
			require.Equal(t, 1, ended)
		})
	})
}

func TestReconnect(t *testing.T) {
	t.Run("a broken session comes back within seconds, at the next address", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			a, stop := m.start()
			defer stop()
			v := s.next()
			after(time.Minute)
			v.end <- status.Error(codes.Unavailable, "restart")
			began := time.Now()
			next := s.next()
			require.Less(t, time.Since(began), time.Second)
			require.NotEqual(t, v.addr, next.addr)
			synctest.Wait()
			require.True(t, a.Status().Connected)
		})
	})
	t.Run("a line that swallows everything is found in under 15 s", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			a, stop := m.start()
			defer stop()
			s.next()
			after(33 * time.Second)
			s.network.cut()
			cut := time.Now()
			for a.Status().Connected {
				after(100 * time.Millisecond)
				require.Less(t, time.Since(cut), 15*time.Second)
			}
			next := s.next()
			require.Less(t, next.at.Sub(cut), 16*time.Second)
		})
	})
	t.Run("an idle session is never broken by its own pings", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			s.interval = 10 * time.Minute
			_, stop := m.start()
			defer stop()
			s.next()
			after(30 * time.Minute)
			require.Empty(t, s.visits)
		})
	})
	t.Run("go away means at once, to the named address, after a goodbye", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			m.o.AgentAddrs = []string{addrA}
			_, stop := m.start()
			defer stop()
			v := s.next()
			after(time.Minute)
			v.goAway(addrB)
			began := time.Now()
			next := s.next()
			require.Equal(t, addrB, next.addr)
			require.Equal(t, began, time.Now(), "nothing waited")
			v.until(t, isGoodbye)
		})
	})
	t.Run("without a listener the agent backs off with jitter", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			m.o.AgentAddrs = []string{addrA}
			_, stop := m.start()
			defer stop()
			v := s.next()
			after(time.Minute)
			v.goAway("absent.test:8994")
			next := s.next()
			require.Equal(t, addrA, next.addr)
			require.Contains(t, s.network.dials, "absent.test:8994")
		})
	})
	t.Run("a standby's go away before any welcome is followed", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			m.o.AgentAddrs = []string{addrA}
			s.do(func() {
				s.before = func(v *visit) *apiv1.ConnectResponse {
					if v.addr != addrA {
						return nil
					}
					return &apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_GoAway{GoAway: &apiv1.GoAway{Addresses: []string{addrB}}}}
				}
			})
			_, stop := m.start()
			defer stop()
			began := time.Now()
			require.Equal(t, addrA, s.next().addr)
			require.Equal(t, addrB, s.next().addr)
			require.Equal(t, began, time.Now())
		})
	})
	t.Run("a server that does not welcome is given up after 10 s", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			s.do(func() {
				s.before = func(v *visit) *apiv1.ConnectResponse {
					if v.addr != addrA {
						return nil
					}
					return &apiv1.ConnectResponse{} // of a kind that this agent does not know
				}
			})
			a, stop := m.start()
			defer stop()
			first := s.next()
			<-first.gone
			synctest.Wait()
			require.Contains(t, a.Status().Error, "no welcome")
			require.Less(t, s.next().at.Sub(first.at), 12*time.Second)
		})
	})
	t.Run("a refusal is reported and retried slowly", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			s.do(func() {
				s.refuse = func(nstance.Identity, string) error { return status.Error(codes.NotFound, "instance is deleted") }
			})
			a, stop := m.start()
			defer stop()
			after(10 * time.Minute)
			require.Contains(t, a.Status().Error, "deleted")
			require.True(t, a.Status().Registered)
			require.Less(t, len(s.visits), 25)
			require.Greater(t, len(s.visits), 8)
		})
	})
}

func TestShutdown(t *testing.T) {
	t.Run("the server hears a goodbye", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			a, stop := m.start()
			v := s.next()
			after(time.Minute)
			began := time.Now()
			stop()
			require.Equal(t, began, time.Now(), "nothing waited")
			v.until(t, isGoodbye)
			require.False(t, a.Status().Connected)
		})
	})
	t.Run("within a second, even if the server does not hang up", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			_, stop := m.start()
			v := s.next()
			v.deaf.Store(true)
			after(time.Minute)
			began := time.Now()
			stop()
			require.LessOrEqual(t, time.Since(began), time.Second)
			v.until(t, isGoodbye)
		})
	})
	t.Run("within a second, even if the line is dead", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *shard, m *machine) {
			_, stop := m.start()
			s.next()
			after(time.Minute)
			s.network.cut()
			began := time.Now()
			stop()
			require.LessOrEqual(t, time.Since(began), time.Second)
		})
	})
	t.Run("at any moment of registering and connecting", func(t *testing.T) {
		for wait := range 20 {
			inBubble(t, func(t *testing.T, s *shard, m *machine) {
				m.o.AgentAddrs = []string{"absent.test:8994", addrA}
				s.do(func() { s.lose["register"] = 2 })
				_, stop := m.start()
				after(time.Duration(wait) * 300 * time.Millisecond)
				began := time.Now()
				stop()
				require.LessOrEqual(t, time.Since(began), time.Second)
			})
		}
	})
}
