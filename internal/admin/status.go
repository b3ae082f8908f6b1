package admin

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func statusCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "Show the state of the shard", Args: arguments()}
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, _ []string) error {
		resp, err := c.GetShardStatus(cmd.Context(), &apiv1.GetShardStatusRequest{})
		return out.result(document{resp}, err, func(t *table) { writeStatus(t, resp, c.addr) })
	})
	return cmd
}

// standbys lists the servers that could take over.
func standbys(list []*apiv1.Standby) string {
	var out []string
	for _, b := range list {
		one := cmp.Or(b.GetAddress(), "a server without an advertised address")
		if b.GetVersion() != "" {
			one += ", version " + b.GetVersion()
		}
		if b.GetAddressFailed() {
			one += ", could not take the shard's address"
		}
		out = append(out, one)
	}
	return cmp.Or(strings.Join(out, "; "), "no other server")
}

func writeStatus(t *table, s *apiv1.GetShardStatusResponse, server string) {
	t.row("Shard:", s.GetShard())
	t.row("Cluster:", s.GetCluster())
	t.row("Server:", server+", version "+s.GetVersion())
	t.row("Leader:", yesNo(s.GetLeader())+", epoch "+strconv.FormatUint(s.GetEpoch(), 10)+", "+t.since("", s.GetTermStartedAt()))
	if s.GetLeaderAddress() != "" && s.GetLeaderAddress() != server {
		t.row("Reached at:", s.GetLeaderAddress())
	}
	t.row("Standing by:", standbys(s.GetStandbys()))
	if s.GetFrozen() != "" {
		t.row("Frozen:", t.since(s.GetFrozen(), s.GetFrozenAt()))
	}
	t.row("Groups:", strconv.Itoa(int(s.GetGroups())))
	t.row("Instances:", strconv.Itoa(int(s.GetInstances())))
	t.row("Agents:", strconv.Itoa(int(s.GetAgentsConnected()))+" connected")
	if len(s.GetAttention()) > 0 {
		writeAttention(t, s)
		return
	}
	for _, h := range s.GetHolds() {
		if h.GetKind() != "frozen" { // which stands above
			t.row("Held:", t.since(h.GetKind()+": "+h.GetReason(), h.GetSince()))
		}
	}
	if len(s.GetProblems()) == 0 {
		t.row("Needs attention:", "nothing")
		return
	}
	t.say("Needs attention:")
	for _, problem := range s.GetProblems() { // of a server that has no list
		t.say("- %s", problem)
	}
}

// writeAttention lists what needs attention and, indented, who has acknowledged it and the remedy.
func writeAttention(t *table, s *apiv1.GetShardStatusResponse) {
	t.say("Needs attention:")
	for _, a := range s.GetAttention() {
		t.say("- %s", attentionLine(a, t.now))
		if a.GetAcknowledged() != nil {
			t.lines = append(t.lines, "    "+printable(acknowledgedBy(a.GetAcknowledged())))
		}
		if a.GetRemedy() != "" {
			t.lines = append(t.lines, "    remedy: "+printable(a.GetRemedy()))
		}
	}
	if s.GetAttentionOmitted() > 0 {
		t.say("- and %d more", s.GetAttentionOmitted())
	}
}

func attentionLine(a *apiv1.Attention, now time.Time) string {
	line := a.GetKind() + ": " + a.GetSubject()
	if a.GetSince() != nil {
		line += ", for " + short(max(0, now.Sub(a.GetSince().AsTime())))
	}
	line += ": " + a.GetWhy()
	if until := wire.TimeOf(a.GetUntil()); until.After(now) && a.GetKind() != "alarm" {
		line += " (until " + stamp(until) + ")"
	}
	return line
}

// needsAttention returns in one line each what needs attention.
func needsAttention(s *apiv1.GetShardStatusResponse, now time.Time) []string {
	if len(s.GetAttention()) == 0 {
		return s.GetProblems()
	}
	var out []string
	for _, a := range s.GetAttention() {
		line := attentionLine(a, now)
		if a.GetAcknowledged() != nil {
			line = acknowledgedBy(a.GetAcknowledged()) + ": " + line
		}
		out = append(out, line)
	}
	return out
}
