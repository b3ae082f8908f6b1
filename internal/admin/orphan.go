package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

func orphanCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "orphan", Short: "Orphans: machines with the shard's marks and without a record",
		Long: "Machines with the shard's marks and without a record. The server deletes an orphan by itself once it is\n" +
			"certain that no record can name it; the others need a decision.",
	}
	cmd.AddCommand(orphanListCommand(env), orphanAdoptCommand(env), orphanDeleteCommand(env))
	return cmd
}

func orphanListCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List machines without a record", Args: arguments()}
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, _ []string) error {
		list, err := c.orphans(cmd.Context())
		return out.result(documents(list), err, func(t *table) { writeOrphans(t, list) })
	})
	return cmd
}

func (c *client) orphans(ctx context.Context) ([]*apiv1.Orphan, error) {
	return allPages(func(page string) (*apiv1.ListOrphansResponse, error) {
		return c.ListOrphans(ctx, &apiv1.ListOrphansRequest{Page: page})
	}, (*apiv1.ListOrphansResponse).GetOrphans)
}

func writeOrphans(t *table, list []*apiv1.Orphan) {
	if len(list) == 0 {
		t.say("no machines without a record")
		return
	}
	t.row("ID", "TENANT", "GROUP", "PROVIDER ID", "STATUS", "TYPE", "AGE", "SEEN", "SPARED BECAUSE")
	for _, o := range list {
		t.row(o.GetId(), o.GetTenant(), o.GetGroup(), o.GetProviderId(), o.GetStatus(), o.GetInstanceType(),
			t.age(o.GetCreatedAt()), t.age(o.GetSeenAt()), o.GetSpared())
	}
}

func orphanAdoptCommand(env environment) *cobra.Command {
	return orphanActionCommand(env, orphanAction{
		use: "adopt ID...", short: "Make machines without a record members again", action: "adopt",
		long: "Make machines without a record members of the groups in their marks, as after a loss of storage. Their agents\n" +
			"are taken back with the certificates they have. What is then more than a group's size is drained and deleted.",
		how: "adopting %d machines makes them members of their groups, which drain what is more than their size",
		call: func(ctx context.Context, c *client, id string, dryRun bool) (*apiv1.Orphan, error) {
			resp, err := c.AdoptOrphan(ctx, &apiv1.AdoptOrphanRequest{Id: id, DryRun: dryRun})
			return resp.GetOrphan(), err
		},
	})
}

func orphanDeleteCommand(env environment) *cobra.Command {
	return orphanActionCommand(env, orphanAction{
		use: "delete ID...", short: "Delete machines without a record", action: "delete",
		long: "Delete machines without a record, without a drain, whatever spares them. That they have no record, and whose\n" +
			"they are, is looked at again all the same.",
		how: "deleting %d machines ends whatever runs on them, without a drain",
		call: func(ctx context.Context, c *client, id string, dryRun bool) (*apiv1.Orphan, error) {
			resp, err := c.DeleteOrphan(ctx, &apiv1.DeleteOrphanRequest{Id: id, DryRun: dryRun})
			return resp.GetOrphan(), err
		},
	})
}

// An orphanAction is a command about orphans.
type orphanAction struct {
	use, short, long, action string
	how                      string // what it does to so many machines
	call                     func(ctx context.Context, c *client, id string, dryRun bool) (*apiv1.Orphan, error)
}

func orphanActionCommand(env environment, d orphanAction) *cobra.Command {
	var yes, dryRun bool
	cmd := &cobra.Command{Use: d.use, Short: d.short, Long: d.long, Args: instanceArguments}
	yesFlag(cmd, &yes)
	dryRunFlag(cmd, &dryRun)
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, args []string) error {
		if err := d.check(cmd.Context(), c, args); err != nil {
			return err
		}
		if err := confirm(cmd, yes || dryRun, fmt.Sprintf(d.how, len(args))); err != nil {
			return err
		}
		done, err := d.execute(cmd.Context(), c, args, dryRun)
		if len(done) == 0 {
			return err
		}
		return errors.Join(err, out.print(documents(done), func(t *table) { writeDecisions(t, done, d.action, dryRun) }))
	})
	return cmd
}

// check asks about all of them before anything is done to one.
func (d orphanAction) check(ctx context.Context, c *client, ids []string) error {
	for _, id := range ids {
		if _, err := d.call(ctx, c, id, true); err != nil {
			return seekOrphan(err)
		}
	}
	return nil
}

// execute returns the orphans that it handled, up to the first error.
func (d orphanAction) execute(ctx context.Context, c *client, ids []string, dryRun bool) ([]*apiv1.Orphan, error) {
	var done []*apiv1.Orphan
	for _, id := range ids {
		o, err := d.call(ctx, c, id, dryRun)
		if err != nil {
			return done, seekOrphan(err)
		}
		done = append(done, o)
	}
	return done, nil
}

func seekOrphan(err error) error {
	if errors.Is(err, nstance.NotFound) {
		return fault(nstance.NotFound, err, "see nstance-admin orphan list", err.Error())
	}
	return err
}

func writeDecisions(t *table, done []*apiv1.Orphan, action string, dryRun bool) {
	for _, o := range done {
		switch {
		case dryRun:
			t.say("machine %s (%s): %s would be accepted", o.GetProviderId(), o.GetId(), action)
		case action == "adopt":
			t.say("machine %s (%s): adopted by %s/%s", o.GetProviderId(), o.GetId(), o.GetTenant(), o.GetGroup())
		default:
			t.say("machine %s (%s): delete accepted", o.GetProviderId(), o.GetId())
		}
	}
}
