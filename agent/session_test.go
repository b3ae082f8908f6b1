package agent_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
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
	t.Parallel()
	t.Run("the server's interval is used, and no report is late", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			s.reportInterval = 10 * time.Second
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			v.awaitMessage(t, isReport)
			for range 20 {
				began := time.Now()
				v.awaitMessage(t, isReport)
				require.LessOrEqual(t, time.Since(began), 10*time.Second)
				require.GreaterOrEqual(t, time.Since(began), 9*time.Second)
			}
		})
	})
	t.Run("without it the agent's interval is used", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			m.options.ReportInterval = 30 * time.Second
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			v.awaitMessage(t, isReport)
			began := time.Now()
			v.awaitMessage(t, isReport)
			require.InDelta(t, 28.5, time.Since(began).Seconds(), 1.6)
		})
	})
	t.Run("numbers grow within a session and start again in the next", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			for want := range uint64(5) {
				require.Equal(t, want+1, v.awaitMessage(t, isReport).GetNumber())
			}
			v.endWith <- status.Error(codes.Unavailable, "restart")
			require.EqualValues(t, 1, s.awaitSession().awaitMessage(t, isReport).GetNumber())
		})
	})
	t.Run("a report tells whether there is a hook", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			m.options.Drain = func(context.Context, nstance.Drain) (nstance.Outcome, string) { return nstance.OutcomeDrained, "" }
			_, stop := m.start()
			defer stop()
			require.True(t, s.awaitSession().awaitMessage(t, isReport).GetReport().GetCanDrain())
		})
	})
}

func TestNotices(t *testing.T) {
	t.Parallel()
	t.Run("a notice is sent at once, with its deadline", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			v.awaitMessage(t, isReport)
			n := reclaimIn(2 * time.Minute)
			m.notice <- n
			began := time.Now()
			got := noticesOf(v.awaitMessage(t, isNotice))[0]
			require.Equal(t, began, time.Now(), "nothing waited")
			require.Equal(t, "event-1", got.GetEventId())
			require.True(t, n.Deadline.Equal(got.GetDeadline().AsTime()))
		})
	})
	t.Run("an acknowledged one is not sent again but is in every report, of every session", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			a, stop := m.start()
			defer stop()
			v := s.awaitSession()
			m.notice <- reclaimIn(2 * time.Minute)
			v.awaitMessage(t, isNotice)
			for range 3 {
				require.False(t, isNotice(v.awaitMessage(t, func(m *apiv1.ConnectRequest) bool { return isReport(m) || isNotice(m) })))
			}
			require.Len(t, noticesOf(v.awaitMessage(t, isReport)), 1)
			v.endWith <- status.Error(codes.Unavailable, "restart")
			v = s.awaitSession()
			first := v.awaitMessage(t, func(*apiv1.ConnectRequest) bool { return true })
			require.True(t, isNotice(first), "the first message of the next session")
			require.Equal(t, []string{"event-1"}, first.GetNotices().GetAcknowledged())
			require.Len(t, noticesOf(v.awaitMessage(t, isReport)), 1, "its first report")
			require.Len(t, a.Status().Notices, 1)
		})
	})
	t.Run("it is retried until acknowledged, over sessions", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			s.configure(func() { s.withholdAcks = true })
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			m.notice <- reclaimIn(2 * time.Minute)
			v.awaitMessage(t, isNotice)
			began := time.Now()
			v.awaitMessage(t, isNotice)
			require.Equal(t, 5*time.Second, time.Since(began))
			v.endWith <- status.Error(codes.Unavailable, "restart")
			v = s.awaitSession()
			v.ack(v.awaitMessage(t, isNotice))
			advance(time.Minute)
			for len(v.received) > 0 {
				require.False(t, isNotice(<-v.received))
			}
		})
	})
	t.Run("a notice detected before the first session is sent", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			nonce := m.mintNonce(m.id, time.Hour)
			require.NoError(t, os.Remove(m.path("nonce.jwt")))
			_, stop := m.start()
			defer stop()
			m.notice <- reclaimIn(2 * time.Minute)
			advance(3 * time.Minute) // past its deadline: only a first reading can be stale
			m.writeIdentityFile("nonce.jwt", nonce)
			v := s.awaitSession()
			require.Len(t, noticesOf(v.awaitMessage(t, isReport)), 1)
		})
	})
	t.Run("a deadline in the past is sent: the server asks the provider", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			m.notice <- reclaimIn(-time.Second)
			left := noticesOf(v.awaitMessage(t, isNotice))[0].GetTimeLeft()
			require.NotNil(t, left)
			require.Equal(t, -time.Second, left.AsDuration())
		})
	})
	t.Run("invalid UTF-8 does not end the session", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			n := reclaimIn(time.Minute)
			n.Action = "term\xffinate"
			m.notice <- n
			require.Equal(t, "terminate", noticesOf(v.awaitMessage(t, isNotice))[0].GetAction())
		})
	})
}

// A hookLog is a drain hook that a test can watch and finish.
type hookLog struct {
	mu     sync.Mutex
	runs   []nstance.Drain
	at     []time.Time
	ended  int
	done   int // ended by themselves
	finish chan nstance.Outcome
}

func (m *machine) hook() *hookLog {
	h := &hookLog{finish: make(chan nstance.Outcome)}
	m.options.Drain = h.run
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

// end lets the hook end by itself.
func (h *hookLog) end(o nstance.Outcome) {
	h.finish <- o
	h.mu.Lock()
	defer h.mu.Unlock()
	h.done++
}

func (h *hookLog) finished() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.done
}

func (h *hookLog) log() ([]nstance.Drain, []time.Time, int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.runs), slices.Clone(h.at), h.ended
}

func TestHookWithoutServer(t *testing.T) {
	t.Parallel()
	t.Run("after 5 s without acknowledgement the agent runs its hook and reports the result when asked", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h := m.hook()
			s.configure(func() { s.withholdAcks = true })
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			n := reclaimIn(2 * time.Minute)
			seen := time.Now()
			m.notice <- n
			advance(6 * time.Second)
			runs, at, _ := h.log()
			require.Len(t, runs, 1)
			require.Equal(t, seen.Add(5*time.Second), at[0])
			require.True(t, runs[0].Deadline.Before(n.Deadline), "with a margin before the cloud's deadline")
			require.Equal(t, "event-1", runs[0].Causes[0].EventID)

			h.finish <- nstance.OutcomeDrained
			s.configure(func() { s.withholdAcks = false })
			lone := v.awaitMessage(t, isResult).GetDrainResult()
			require.Zero(t, lone.GetGeneration())
			require.Equal(t, "event-1", lone.GetEventId())
			v.drain(4, time.Now().Add(time.Minute))
			r := v.awaitMessage(t, func(m *apiv1.ConnectRequest) bool { return m.GetDrainResult().GetGeneration() > 0 }).GetDrainResult()
			require.EqualValues(t, 4, r.GetGeneration())
			require.Equal(t, "drained", r.GetOutcome())
			runs, _, _ = h.log()
			require.Len(t, runs, 1, "not run twice")
		})
	})
	t.Run("without any server", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h := m.hook()
			m.options.AgentAddrs = []string{"absent.test:8994"}
			_, stop := m.start()
			defer stop()
			n := reclaimIn(2 * time.Minute)
			n.Deadline = time.Time{}
			m.notice <- n
			advance(5 * time.Second)
			runs, _, _ := h.log()
			require.Len(t, runs, 1)
			left := 25 * time.Second // of the shortest warning, which began when the notice was detected
			require.Equal(t, (left - left/3).Round(time.Millisecond), time.Until(runs[0].Deadline).Round(time.Millisecond), "less the margin")
		})
	})
	t.Run("an acknowledged notice does not run the hook", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h := m.hook()
			_, stop := m.start()
			defer stop()
			s.awaitSession()
			m.notice <- reclaimIn(2 * time.Minute)
			advance(time.Minute)
			runs, _, _ := h.log()
			require.Empty(t, runs)
		})
	})
	t.Run("a withdrawn notice stops it", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h := m.hook()
			s.configure(func() { s.withholdAcks = true })
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			n := reclaimIn(2 * time.Minute)
			m.notice <- n
			advance(10 * time.Second)
			n.Cancelled = true
			m.notice <- n
			v.awaitMessage(t, func(m *apiv1.ConnectRequest) bool { return isNotice(m) && noticesOf(m)[0].GetCancelled() })
			synctest.Wait()
			_, _, ended := h.log()
			require.Equal(t, 1, ended)
		})
	})
}

func TestDrainCommands(t *testing.T) {
	t.Parallel()
	t.Run("the hook runs once and its result is sent until acknowledged, over sessions", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h := m.hook()
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			deadline := time.Now().Add(time.Minute)
			v.drain(2, deadline)
			v.drain(2, deadline)
			s.configure(func() { s.withholdAcks = true })
			h.finish <- nstance.OutcomeDrained
			r := v.awaitMessage(t, isResult)
			require.Equal(t, "said so", r.GetDrainResult().GetMessage())
			v.awaitMessage(t, isResult)
			v.endWith <- status.Error(codes.Unavailable, "restart")
			v = s.awaitSession()
			v.ack(v.awaitMessage(t, isResult))
			advance(time.Minute)
			for len(v.received) > 0 {
				require.False(t, isResult(<-v.received))
			}
			runs, _, _ := h.log()
			require.Len(t, runs, 1)
			require.True(t, deadline.Equal(runs[0].Deadline))
			require.EqualValues(t, 2, runs[0].Generation)
			require.EqualValues(t, "notice", runs[0].Causes[0].Kind)
		})
	})
	t.Run("it continues without a session", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h := m.hook()
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			v.drain(2, time.Now().Add(time.Hour))
			synctest.Wait()
			v.endWith <- status.Error(codes.Unavailable, "restart")
			<-v.ended
			h.finish <- nstance.OutcomeDrained
			require.EqualValues(t, 2, s.awaitSession().awaitMessage(t, isResult).GetDrainResult().GetGeneration())
		})
	})
	t.Run("the remaining time counts, not the server's clock", func(t *testing.T) {
		for _, left := range []time.Duration{time.Minute, 0} {
			inBubble(t, func(t *testing.T, s *testShard, m *machine) {
				h := m.hook()
				_, stop := m.start()
				defer stop()
				s.awaitSession().send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_Drain{Drain: &apiv1.DrainCommand{
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
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h := m.hook()
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			v.drain(2, time.Now().Add(time.Hour))
			advance(time.Second)
			v.send(&apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_DrainCancel{DrainCancel: &apiv1.DrainCancel{Generation: 2}}})
			advance(time.Second)
			_, _, ended := h.log()
			require.Equal(t, 1, ended)
			for len(v.received) > 0 {
				require.False(t, isResult(<-v.received))
			}
		})
	})
	t.Run("the end of the agent ends it", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h := m.hook()
			_, stop := m.start()
			s.awaitSession().drain(2, time.Now().Add(time.Hour))
			advance(time.Second)
			stop()
			_, _, ended := h.log()
			require.Equal(t, 1, ended)
		})
	})
}

func TestReconnect(t *testing.T) {
	t.Parallel()
	t.Run("a broken session comes back within seconds, at the next address", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			a, stop := m.start()
			defer stop()
			v := s.awaitSession()
			advance(time.Minute)
			v.endWith <- status.Error(codes.Unavailable, "restart")
			began := time.Now()
			next := s.awaitSession()
			require.Less(t, time.Since(began), time.Second)
			require.NotEqual(t, v.addr, next.addr)
			synctest.Wait()
			require.True(t, a.Status().Connected)
		})
	})
	t.Run("a connection that loses all packets is detected within 15 s", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			a, stop := m.start()
			defer stop()
			s.awaitSession()
			advance(33 * time.Second)
			s.network.blackhole()
			cut := time.Now()
			for a.Status().Connected {
				advance(100 * time.Millisecond)
				require.Less(t, time.Since(cut), 15*time.Second)
			}
			next := s.awaitSession()
			require.Less(t, next.at.Sub(cut), 16*time.Second)
		})
	})
	t.Run("an idle session is never broken by its own pings", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			s.reportInterval = 10 * time.Minute
			_, stop := m.start()
			defer stop()
			s.awaitSession()
			advance(30 * time.Minute)
			require.Empty(t, s.visits)
		})
	})
	t.Run("go away reconnects at once to the named address, after a goodbye", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			m.options.AgentAddrs = []string{addrA}
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			advance(time.Minute)
			v.goAway(addrB)
			began := time.Now()
			next := s.awaitSession()
			require.Equal(t, addrB, next.addr)
			require.Equal(t, began, time.Now(), "nothing waited")
			v.awaitMessage(t, isGoodbye)
		})
	})
	t.Run("without a listener the agent backs off with jitter", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			m.options.AgentAddrs = []string{addrA}
			_, stop := m.start()
			defer stop()
			v := s.awaitSession()
			advance(time.Minute)
			v.goAway("absent.test:8994")
			next := s.awaitSession()
			require.Equal(t, addrA, next.addr)
			require.Contains(t, s.network.dials, "absent.test:8994")
		})
	})
	t.Run("a standby's go away before any welcome is followed", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			m.options.AgentAddrs = []string{addrA}
			s.configure(func() {
				s.firstMessage = func(v *serverSession) *apiv1.ConnectResponse {
					if v.addr != addrA {
						return nil
					}
					return &apiv1.ConnectResponse{Message: &apiv1.ConnectResponse_GoAway{GoAway: &apiv1.GoAway{Addresses: []string{addrB}}}}
				}
			})
			_, stop := m.start()
			defer stop()
			began := time.Now()
			require.Equal(t, addrA, s.awaitSession().addr)
			require.Equal(t, addrB, s.awaitSession().addr)
			require.Equal(t, began, time.Now())
		})
	})
	t.Run("a standby's end of the handshake is told, and the next address asked within a second", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			m.options.AgentAddrs = []string{addrA, addrB}
			var others sync.WaitGroup
			defer others.Wait()
			m.options.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
				if addr != addrA {
					return s.network.dial(ctx, addr)
				}
				near, far := net.Pipe()
				others.Go(func() {
					far.Read(make([]byte, 4<<10)) // the whole hello
					far.Close()
				})
				return near, nil
			}
			var text bytes.Buffer
			m.options.Log = slog.New(slog.NewTextHandler(&text, nil))
			_, stop := m.start()
			began := time.Now()
			require.Equal(t, addrB, s.awaitSession().addr)
			require.Less(t, time.Since(began), time.Second)
			stop()
			require.Contains(t, text.String(), "a server that does not lead its shard at present")
		})
	})
	t.Run("a server without welcome is left after 10 s", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			s.configure(func() {
				s.firstMessage = func(v *serverSession) *apiv1.ConnectResponse {
					if v.addr != addrA {
						return nil
					}
					return &apiv1.ConnectResponse{} // a message unknown to this agent
				}
			})
			a, stop := m.start()
			defer stop()
			first := s.awaitSession()
			<-first.ended
			synctest.Wait()
			require.Contains(t, a.Status().Error, "no welcome")
			require.Less(t, s.awaitSession().at.Sub(first.at), 12*time.Second)
		})
	})
	t.Run("a refusal is reported and retried slowly", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			s.configure(func() {
				s.refuseSession = func(nstance.Identity, string) error { return status.Error(codes.NotFound, "instance is deleted") }
			})
			a, stop := m.start()
			defer stop()
			advance(10 * time.Minute)
			require.Contains(t, a.Status().Error, "deleted")
			require.True(t, a.Status().Registered)
			require.Less(t, len(s.visits), 25)
			require.Greater(t, len(s.visits), 8)
		})
	})
}

func TestShutdown(t *testing.T) {
	t.Parallel()
	t.Run("the server receives a goodbye", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			a, stop := m.start()
			v := s.awaitSession()
			advance(time.Minute)
			began := time.Now()
			stop()
			require.Equal(t, began, time.Now(), "nothing waited")
			v.awaitMessage(t, isGoodbye)
			require.False(t, a.Status().Connected)
		})
	})
	t.Run("within a second, even if the server keeps the stream open", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			v := s.awaitSession()
			v.ignoreGoodbye.Store(true)
			advance(time.Minute)
			began := time.Now()
			stop()
			require.LessOrEqual(t, time.Since(began), time.Second)
			v.awaitMessage(t, isGoodbye)
		})
	})
	t.Run("within a second, even if the connection is dead", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			_, stop := m.start()
			s.awaitSession()
			advance(time.Minute)
			s.network.blackhole()
			began := time.Now()
			stop()
			require.LessOrEqual(t, time.Since(began), time.Second)
		})
	})
	t.Run("at any point of registering and connecting", func(t *testing.T) {
		for wait := range 20 {
			inBubble(t, func(t *testing.T, s *testShard, m *machine) {
				m.options.AgentAddrs = []string{"absent.test:8994", addrA}
				s.configure(func() { s.lostReplies["register"] = 2 })
				_, stop := m.start()
				advance(time.Duration(wait) * 300 * time.Millisecond)
				began := time.Now()
				stop()
				require.LessOrEqual(t, time.Since(began), time.Second)
			})
		}
	})
}
