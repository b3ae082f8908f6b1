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
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/storage"
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

// record gives the session's instance a record.
func (s *noticeSession) record(t *testing.T, epoch uint64, reason string) {
	t.Helper()
	recs := records.New(storage.NewMemory(), "s1", &records.Options{Epoch: epoch})
	s.id = testID(t)
	_, err := recs.Create(t.Context(), records.Instance{ID: s.id, Tenant: "default", Group: "web", Reason: reason})
	require.NoError(t, err)
	s.agents.shard = recordShard{s.shard, recs}
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

// TestAcknowledgedByAFormerLeader: a notice of which the agent says so is settled, unless the record has lost
// it: storage was restored since, or the record was made anew.
func TestAcknowledgedByAFormerLeader(t *testing.T) {
	const epoch = 5_000_007
	for name, c := range map[string]struct {
		epoch    uint64
		reason   string
		passedOn int
	}{
		"an earlier term":          {epoch: epoch - 3},
		"before a restore":         {epoch: 7, passedOn: 1},
		"its record was made anew": {epoch: epoch - 3, reason: records.ReasonAdopted, passedOn: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inNoticeSession(t, func(t *testing.T, s *noticeSession) {
				s.record(t, c.epoch, c.reason)
				s.agents.Epoch = epoch
				n := nstance.Notice{Kind: nstance.Maintenance, Source: "aws/maintenance", EventID: "reboot"}
				s.handleNotices(&apiv1.StandingNotices{Revision: 1, Notices: []*apiv1.Notice{wire.NoticeAt(n, time.Now())}, Acknowledged: []string{"reboot"}})
				require.Len(t, s.shard.observed, c.passedOn)
			})
		})
	}
}

// TestRoomForReclaims: notices that doom nothing leave room for those that do.
func TestRoomForReclaims(t *testing.T) {
	inNoticeSession(t, func(t *testing.T, s *noticeSession) {
		for i := range noticeBurst + 1 {
			s.send(nstance.Notice{Kind: nstance.Rebalance, Source: "aws/rebalance", EventID: fmt.Sprint(i)})
		}
		passedOn, acknowledged := s.send(nstance.Notice{Kind: nstance.Reclaim, Source: "aws/spot", EventID: "reclaim"})
		require.Equal(t, 1, passedOn)
		require.True(t, acknowledged)
	})
}

// TestNoticesInOneSet: more than an agent may have are not looked at.
func TestNoticesInOneSet(t *testing.T) {
	inNoticeSession(t, func(t *testing.T, s *noticeSession) {
		var all []nstance.Notice
		for i := range wire.MaxNotices + 1 {
			all = append(all, nstance.Notice{Kind: nstance.Reclaim, Source: "aws/spot", EventID: fmt.Sprint(i)})
		}
		passedOn, _ := s.send(all...)
		require.Equal(t, wire.MaxNotices, passedOn)
	})
}

// TestLateAcknowledgement: what is durable of an older set acknowledges nothing that was
// acknowledged before.
func TestLateAcknowledgement(t *testing.T) {
	inNoticeSession(t, func(t *testing.T, s *noticeSession) {
		for _, revision := range []uint64{3, 2, 3, 4} {
			s.acknowledgeNotices(revision)
		}
		synctest.Wait()
		require.Len(t, s.agent.Sent, 2)
		require.EqualValues(t, 4, s.agent.Sent[1].GetAcknowledgement().GetNoticesRevision())
	})
}

// TestLoneDrainOfAnUnknownNotice: it is acknowledged, or the agent would repeat it for ever,
// and counts only for a notice that the instance sent.
func TestLoneDrainOfAnUnknownNotice(t *testing.T) {
	inNoticeSession(t, func(t *testing.T, s *noticeSession) {
		facts := &factShard{fakeShard: s.shard}
		s.agents.shard = facts
		s.notices.receive(nstance.Notice{Kind: nstance.Reclaim, Source: "aws/spot", EventID: "known"})
		for _, r := range []*apiv1.DrainResult{
			{EventId: "unknown", Outcome: "drained"}, {EventId: "known", Outcome: "blocked"}, {EventId: "known", Outcome: "drained"},
		} {
			s.handleDrainResult(r)
		}
		synctest.Wait()
		require.Len(t, s.agent.Sent, 3)
		require.Equal(t, []nstance.Fact{nstance.DrainedWithoutServer{ID: "web1", EventID: "known", Outcome: nstance.OutcomeDrained}}, facts.facts)
	})
}

// TestDrainIsSentWithTheTimeLeft: the machine's clock may be wrong.
func TestDrainIsSentWithTheTimeLeft(t *testing.T) {
	inNoticeSession(t, func(t *testing.T, s *noticeSession) {
		s.session.send(drainCommand(nstance.Drain{Instance: "web1", Generation: 1, Deadline: time.Now().Add(time.Minute)}))
		synctest.Wait()
		require.Equal(t, time.Minute, s.agent.Sent[0].GetDrain().GetTimeLeft().AsDuration())
	})
}

// TestNoticesOfAFormerLeader: what that has acknowledged is durable already.
func TestNoticesOfAFormerLeader(t *testing.T) {
	inNoticeSession(t, func(t *testing.T, s *noticeSession) {
		s.record(t, 0, "")
		known := nstance.Notice{Kind: nstance.Reclaim, Source: "aws/spot", EventID: "known"}
		s.handleNotices(&apiv1.StandingNotices{
			Revision: 1, Acknowledged: []string{"known"}, Notices: []*apiv1.Notice{wire.NoticeAt(known, time.Now())},
		})
		synctest.Wait()
		require.Empty(t, s.shard.observed)
		require.EqualValues(t, 1, s.agent.Sent[0].GetAcknowledgement().GetNoticesRevision())

		s.revision = 1
		passedOn, acknowledged := s.send(known)
		require.Zero(t, passedOn)
		require.True(t, acknowledged, "as part of a new set")
		known.Cancelled = true
		passedOn, _ = s.send(known)
		require.Equal(t, 1, passedOn, "its end is news")
	})
}
