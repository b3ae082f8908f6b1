package admin

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func (p *program) statusCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "Show the state of the shard", Args: arguments()}
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return r.with(cmd.Context(), func(c *client) error {
			resp, err := c.GetShardStatus(cmd.Context(), &apiv1.GetShardStatusRequest{})
			if err != nil {
				return err
			}
			s := statusOf(resp, c.addr)
			return out.print(s, func(t *table) { t.status(s) })
		})
	}
	return cmd
}

func statusOf(w *apiv1.GetShardStatusResponse, server string) ShardStatus {
	s := ShardStatus{
		Cluster: nstance.ClusterID(w.GetCluster()), Shard: nstance.ShardID(w.GetShard()), Server: server,
		Version: w.GetVersion(), Leader: w.GetLeader(), Epoch: w.GetEpoch(), TermStartedAt: wire.TimeOf(w.GetTermStartedAt()),
		Groups: int(w.GetGroups()), Instances: int(w.GetInstances()), AgentsConnected: int(w.GetAgentsConnected()),
		Frozen: w.GetFrozen(), FrozenAt: wire.TimeOf(w.GetFrozenAt()),
		LeaderAddress: w.GetLeaderAddress(), Standbys: []Standby{}, Holds: holdsFrom(w.GetHolds()),
		Problems: append([]string{}, w.GetProblems()...), Attention: []Attention{}, Omitted: int(w.GetAttentionOmitted()),
	}
	for _, a := range w.GetAttention() {
		s.Attention = append(s.Attention, Attention{
			Kind: a.GetKind(), Subject: a.GetSubject(), Tenant: nstance.TenantID(a.GetTenant()), Group: nstance.GroupID(a.GetGroup()),
			Since: wire.TimeOf(a.GetSince()), Until: wire.TimeOf(a.GetUntil()), Why: a.GetWhy(), Remedy: a.GetRemedy(),
		})
	}
	for _, b := range w.GetStandbys() {
		s.Standbys = append(s.Standbys, Standby{b.GetAddress(), b.GetVersion(), b.GetAddressFailed(), wire.TimeOf(b.GetSince())})
	}
	return s
}

// standbys says who could take over.
func standbys(list []Standby) string {
	var out []string
	for _, b := range list {
		one := cmp.Or(b.Address, "a server that does not tell its address")
		if b.Version != "" {
			one += ", version " + b.Version
		}
		if b.AddressFailed {
			one += ", could not take the shard's address"
		}
		out = append(out, one)
	}
	return cmp.Or(strings.Join(out, "; "), "no other server")
}

func (t *table) status(s ShardStatus) {
	t.row("Shard:", string(s.Shard))
	t.row("Cluster:", string(s.Cluster))
	t.row("Server:", s.Server+", version "+s.Version)
	t.row("Leader:", yesNo(s.Leader)+", epoch "+strconv.FormatUint(s.Epoch, 10)+", "+t.since("", stamp(s.TermStartedAt), t.age(s.TermStartedAt)))
	if s.LeaderAddress != "" && s.LeaderAddress != s.Server {
		t.row("Reached at:", s.LeaderAddress)
	}
	t.row("Standing by:", standbys(s.Standbys))
	if s.Frozen != "" {
		t.row("Frozen:", t.since(s.Frozen, stamp(s.FrozenAt), t.age(s.FrozenAt)))
	}
	t.row("Groups:", strconv.Itoa(s.Groups))
	t.row("Instances:", strconv.Itoa(s.Instances))
	t.row("Agents:", strconv.Itoa(s.AgentsConnected)+" connected")
	if len(s.Attention) > 0 {
		t.attention(s)
		return
	}
	for _, h := range s.Holds {
		if h.Kind != "frozen" { // which stands above
			t.row("Held:", t.since(h.Kind+": "+h.Reason, stamp(h.Since), t.age(h.Since)))
		}
	}
	if len(s.Problems) == 0 {
		t.row("Needs attention:", "nothing")
		return
	}
	t.say("Needs attention:")
	for _, problem := range s.Problems { // of a server that has no list
		t.say("- %s", problem)
	}
}

// attention says what needs attention and, indented, what to do.
func (t *table) attention(s ShardStatus) {
	t.say("Needs attention:")
	for _, a := range s.Attention {
		t.say("- %s", a.line(t.now))
		if a.Remedy != "" {
			t.lines = append(t.lines, "    do: "+printable(a.Remedy))
		}
	}
	if s.Omitted > 0 {
		t.say("- and %d more", s.Omitted)
	}
}

func (a Attention) line(now time.Time) string {
	line := a.Kind + ": " + a.Subject
	if !a.Since.IsZero() {
		line += ", for " + short(max(0, now.Sub(a.Since)))
	}
	line += ": " + a.Why
	if left := a.Until.Sub(now); left > 0 && a.Kind != "alarm" {
		line += " (until " + stamp(a.Until) + ")"
	}
	return line
}

// needs returns in one line each what needs attention.
func (s ShardStatus) needs(now time.Time) []string {
	if len(s.Attention) == 0 {
		return s.Problems
	}
	var out []string
	for _, a := range s.Attention {
		out = append(out, a.line(now))
	}
	return out
}
