package admin_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func (*world) AcknowledgeAttention(_ context.Context, req *apiv1.AcknowledgeAttentionRequest) (*apiv1.AcknowledgeAttentionResponse, error) {
	if req.GetKind() == "nothing" {
		return nil, nstance.Errorf(nstance.NotFound, "nothing needs attention of kind nothing")
	}
	resp := &apiv1.AcknowledgeAttentionResponse{Subject: req.GetSubject(), Entries: 1, Unchanged: req.GetReason() == "again", Acknowledged: &apiv1.AttentionAcknowledgement{
		By: "eve", Reason: req.GetReason(), Until: wire.Time(time.Now().Add(req.GetDuration().AsDuration())),
	}}
	if req.GetSubject() == "" {
		resp.Subject, resp.Entries = "shard", 2
	}
	return resp, nil
}

func (*world) UnacknowledgeAttention(_ context.Context, req *apiv1.UnacknowledgeAttentionRequest) (*apiv1.UnacknowledgeAttentionResponse, error) {
	return &apiv1.UnacknowledgeAttentionResponse{Subject: req.GetSubject(), Unchanged: req.GetKind() == "nothing"}, nil
}

func TestAttention(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	t.Run("ack", func(t *testing.T) {
		r := w.run("attention", "ack", "short", "group", "blue/db", "--for", "4h", "--reason", "ticket 7")
		require.Zero(t, r.code, r.errors)
		require.Regexp(t, `^short: group blue/db is acknowledged until 20\S+Z\n$`, r.out)
		req, ok := w.requests[len(w.requests)-1].(*apiv1.AcknowledgeAttentionRequest)
		require.True(t, ok)
		require.Equal(t, []string{"short", "group blue/db", "ticket 7"}, []string{req.GetKind(), req.GetSubject(), req.GetReason()})
		require.Equal(t, 4*time.Hour, req.GetDuration().AsDuration())
		require.False(t, req.GetDryRun())
		require.Regexp(t, `^alarm: shard \(2 entries\) would be acknowledged until `, w.run("attention", "ack", "alarm", "--for", "30d", "--dry-run").out)
		require.Regexp(t, `^clock: shard is acknowledged already, until `, w.run("attention", "ack", "clock", "shard", "--for", "2h", "--reason", "again").out)
		require.Equal(t, 3, w.run("attention", "ack", "nothing", "--for", "2h").code)
	})
	t.Run("unack", func(t *testing.T) {
		require.Equal(t, "the acknowledgement of short: group blue/db has ended\n", w.run("attention", "unack", "short", "group blue/db").out)
		require.Equal(t, "the acknowledgement of clock: shard would end\n", w.run("attention", "unack", "clock", "shard", "--dry-run").out)
		require.Equal(t, "nothing is not acknowledged: nothing to end\n", w.run("attention", "unack", "nothing").out)
	})
	t.Run("list", func(t *testing.T) {
		r := w.run("attention", "list")
		require.Zero(t, r.code, r.errors)
		require.Regexp(t, `clock +shard +60s +- +- +- +it is wrong\n`, r.out)
		require.Regexp(t, `short +group blue/db +- +20\S+Z +admin-1 +ticket 7 +0 of 1 members are ready\n`, r.out)
		require.Contains(t, r.out, "and 3 more\n")
		require.Contains(t, w.run("attention", "list", "-o", "json").out, `"reason": "ticket 7"`)
	})
	t.Run("what is missing", func(t *testing.T) {
		for args, says := range map[string]string{"ack --for 2h": "argument KIND is missing", "unack": "argument KIND is missing", "ack clock": "--for: is missing", "ack clock --for 2": "--for"} {
			r := w.run(append([]string{"attention"}, strings.Fields(args)...)...)
			require.Equal(t, 2, r.code, args)
			require.Contains(t, r.errors, says, args)
		}
	})
	t.Run("completion", func(t *testing.T) {
		require.Contains(t, w.run("__complete", "attention", "ack", "").out, "clock\nhalted\nshort\n:")
		require.Contains(t, w.run("__complete", "attention", "ack", "halted", "group", "").out, "default/web\n:")
		require.Equal(t, "short", strings.SplitN(w.run("__complete", "attention", "unack", "").out, "\n", 2)[0])
	})
	t.Run("status and top", func(t *testing.T) {
		require.Regexp(t, `- short: group blue/db: 0 of 1 members are ready\n    acknowledged by admin-1 until 20\S+Z: ticket 7\n`, w.run("status").out)
		require.Contains(t, w.run("top").out, "2 in need of attention, and 4 acknowledged (p shows all): clock: shard")
	})
}
