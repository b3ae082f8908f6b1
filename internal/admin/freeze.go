package admin

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// A freezeChange is a freeze or a thaw.
type freezeChange struct {
	name, short, long string
	send              func(ctx context.Context, c *client, f freezeFlags) (proto.Message, error)
}

type freezeFlags struct {
	tenant, group, reason string
	dryRun                bool
}

func freezeCommand(env environment) *cobra.Command {
	return freezeChangeCommand(env, freezeChange{
		name: "freeze", short: "Stop all changes of machines, except drains under way",
		long: "Stop all changes of machines in the shard or a group, durably: nothing is made, drained or deleted, except members\n" +
			"that leave already. Agents report and renew as usual. Notices are recorded, and handled after the thaw.",
		send: func(ctx context.Context, c *client, f freezeFlags) (proto.Message, error) {
			return c.Freeze(ctx, &apiv1.FreezeRequest{Tenant: f.tenant, Group: f.group, Reason: f.reason, DryRun: f.dryRun})
		},
	})
}

func thawCommand(env environment) *cobra.Command {
	return freezeChangeCommand(env, freezeChange{
		name: "thaw", short: "End a freeze", long: "End a freeze. The freeze of the shard and that of a group end separately.",
		send: func(ctx context.Context, c *client, f freezeFlags) (proto.Message, error) {
			return c.Thaw(ctx, &apiv1.ThawRequest{Tenant: f.tenant, Group: f.group, DryRun: f.dryRun})
		},
	})
}

func freezeChangeCommand(env environment, ch freezeChange) *cobra.Command {
	cmd := &cobra.Command{Use: ch.name, Short: ch.short, Long: ch.long}
	cmd.AddCommand(freezeShardCommand(env, ch), freezeGroupCommand(env, ch))
	return cmd
}

func (f *freezeFlags) add(cmd *cobra.Command, ch freezeChange) {
	dryRunFlag(cmd, &f.dryRun)
	if ch.name == "freeze" {
		cmd.Flags().StringVar(&f.reason, "reason", "", "reason, shown in the status")
	}
}

func freezeShardCommand(env environment, ch freezeChange) *cobra.Command {
	var f freezeFlags
	cmd := &cobra.Command{Use: "shard", Short: ch.short + ", in the whole shard", Long: ch.long, Args: arguments()}
	f.add(cmd, ch)
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, _ []string) error {
		answer, err := ch.send(cmd.Context(), c, f)
		return out.result(document{answer}, err, func(t *table) { writeFreezeChanged(t, "shard "+string(c.id.Shard), ch, f, answer) })
	})
	return cmd
}

func freezeGroupCommand(env environment, ch freezeChange) *cobra.Command {
	var f freezeFlags
	cmd := &cobra.Command{Use: "group GROUP", Short: ch.short + ", in one group", Long: ch.long, Args: arguments("GROUP")}
	tenantFlag(cmd, &f.tenant)
	f.add(cmd, ch)
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, args []string) error {
		g, err := c.group(cmd.Context(), nstance.TenantID(f.tenant), args[0])
		if err != nil {
			return err
		}
		f.tenant, f.group = g.GetTenant(), g.GetGroup()
		answer, err := ch.send(cmd.Context(), c, f)
		return out.result(document{answer}, err, func(t *table) { writeFreezeChanged(t, "group "+wire.GroupKeyOf(g).String(), ch, f, answer) })
	})
	return cmd
}

func writeFreezeChanged(t *table, what string, ch freezeChange, f freezeFlags, answer proto.Message) {
	switch {
	case unchanged(answer) && ch.name == "freeze":
		t.say("%s is frozen already, the reason stays", what)
	case unchanged(answer):
		t.say("%s is not frozen by itself: nothing to thaw", what)
	case f.dryRun:
		t.say("%s: %s would be accepted", what, ch.name)
	case ch.name == "freeze":
		t.say("%s is frozen", what)
	default:
		t.say("%s is thawed", what)
	}
}
