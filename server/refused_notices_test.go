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

// TestRefusedNotices: notices that no agent sends raise one alarm for each session, end no
// session, and hide no other notice.
func TestRefusedNotices(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	id := w.awaitMachine(nstance.DefaultTenant)
	k := w.connectReady(id)
	bad := func(change func(n *apiv1.Notice)) *apiv1.Notice {
		n := wire.NoticeAt(reclaimNotice("bad", time.Minute), time.Now())
		change(n)
		return n
	}
	refused := []*apiv1.Notice{
		bad(func(n *apiv1.Notice) { n.EventId = "" }),
		bad(func(n *apiv1.Notice) { n.EventId = "e\n1" }),
		bad(func(n *apiv1.Notice) { n.Action = "\x1b[2J" }),
		bad(func(n *apiv1.Notice) { n.TimeLeft = durationpb.New(20 * 366 * 24 * time.Hour) }),
	}
	k.awaitAck(k.sendNotices(refused...))
	k.awaitAck(k.sendNotices(refused...))
	k.awaitAck(k.sendReportWith(refused...))
	e := w.awaitEvent(nstance.EventAlarm, id)
	require.Contains(t, e.Reason, "notice refused: event_id:")
	require.Equal(t, nstance.Invalid, e.Code)
	require.Equal(t, 1, w.countEvents(nstance.EventAlarm), "one for the session")
	require.Zero(t, w.countEvents(nstance.EventNoticeReceived))

	k = k.client.connect()
	k.awaitAck(k.sendNotices(refused[0]))
	require.Equal(t, 2, w.countEvents(nstance.EventAlarm), "one for the next session")

	newer := wire.NoticeAt(reclaimNotice("newer", time.Minute), time.Now())
	newer.Kind = "hibernate"
	k.awaitAck(k.sendNotices(refused[0], newer))
	require.Contains(t, w.awaitEvent(nstance.EventNoticeIgnored, id).Reason, "hibernate", "a kind of a newer agent")

	k.awaitAck(k.sendNotices(refused[0], wire.NoticeAt(reclaimNotice("e1", time.Minute), time.Now())))
	require.Equal(t, "e1", w.awaitEvent(nstance.EventNoticeReceived, id).Notice.EventID, "what can be read counts")
	require.Equal(t, 2, w.countEvents(nstance.EventAlarm))
}
