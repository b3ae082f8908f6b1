package agents

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// A noticeSession is the session of an agent that sends notices.
type noticeSession struct {
	*session
	shard    *fakeShard
	agent    *slowAgent
	revision uint64
}

// inNoticeSession runs a session over a fake shard, with an agent that reads what it is sent.
func inNoticeSession(t *testing.T, test func(t *testing.T, s *noticeSession)) {
	synctest.Test(t, func(t *testing.T) {
		s, d := newSlowAgent(t)
		close(d.Read)
		shard := &fakeShard{}
		s.agents = &Agents{shard: shard, Options: Options{Now: time.Now, Log: slog.New(slog.DiscardHandler), Journal: func(nstance.Event) {}}}
		s.id, s.notices = "web1", s.agents.notices.of("web1")
		test(t, &noticeSession{session: s, shard: shard, agent: d})
		s.cancel(nil)
		s.wg.Wait()
	})
}

// send has a set with a new revision handled, and makes the consequences durable of what is
// passed on. It returns how many notices that are, and whether the set is acknowledged.
func (s *noticeSession) send(notices ...nstance.Notice) (passedOn int, acknowledged bool) {
	before := len(s.shard.observed)
	s.revision++
	set := &apiv1.StandingNotices{Revision: s.revision}
	for _, n := range notices {
		set.Notices = append(set.Notices, wire.NoticeAt(n, time.Now()))
	}
	s.handleNotices(set)
	for _, f := range s.shard.observed[before:] {
		f.Ack()
	}
	synctest.Wait()
	for _, m := range s.agent.Sent {
		acknowledged = acknowledged || m.GetAcknowledgement().GetNoticesRevision() == s.revision
	}
	return len(s.shard.observed) - before, acknowledged
}

// TestNoticesBeyondTheLimit: an agent whose notice is acknowledged counts on the server, and
// does not drain its machine by itself. So what dooms a machine is acknowledged only when
// it is passed on, and its withdrawal too.
func TestNoticesBeyondTheLimit(t *testing.T) {
	of := func(kind nstance.NoticeKind, event int) nstance.Notice {
		return nstance.Notice{Kind: kind, Source: "aws/spot", EventID: fmt.Sprint(kind, event)}
	}
	for kind, wantAck := range map[nstance.NoticeKind]bool{nstance.Rebalance: true, nstance.Reclaim: false, nstance.Stop: false, nstance.Terminate: false} {
		t.Run(string(kind), func(t *testing.T) {
			inNoticeSession(t, func(t *testing.T, s *noticeSession) {
				for i := range noticeBurst {
					passedOn, acknowledged := s.send(of(kind, i))
					require.Equal(t, 1, passedOn)
					require.True(t, acknowledged)
				}
				latest := of(kind, noticeBurst)
				for range 2 {
					passedOn, acknowledged := s.send(latest)
					require.Zero(t, passedOn)
					require.Equal(t, wantAck, acknowledged)
				}
				withdrawn := of(kind, 0)
				withdrawn.Cancelled = true
				_, acknowledged := s.send(withdrawn)
				require.Equal(t, wantAck, acknowledged, "withdrawal")

				<-time.After(noticeInterval)
				passedOn, acknowledged := s.send(latest)
				require.Equal(t, 1, passedOn, "there is room again")
				require.True(t, acknowledged)
			})
		})
	}
}
