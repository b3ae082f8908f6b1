package admin

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// A groupChange is a command that changes one group.
type groupChange struct {
	use, short, long string
	doneText         string
	unchangedText    string
	takesReason      bool
	canUndo          bool
	confirmation     func(g *apiv1.Group) string
	send             func(ctx context.Context, c *client, g *apiv1.Group, f groupChangeFlags) (groupAnswer, error)
}

type groupChangeFlags struct {
	tenant, reason    string
	undo, yes, dryRun bool
}

func groupPauseCommand(env environment) *cobra.Command {
	return groupChangeCommand(env, groupChange{
		use: "pause GROUP", short: "Stop a group's rollout", doneText: "is paused", unchangedText: "is paused already", takesReason: true,
		long: "Stop a group's rollout until it is resumed, across changes of leader. Members lost until then are replaced from the last\n" +
			"definition with which all of them were ready. Surplus members are deleted all the same.",
		send: func(ctx context.Context, c *client, g *apiv1.Group, f groupChangeFlags) (groupAnswer, error) {
			return c.PauseGroup(ctx, &apiv1.PauseGroupRequest{Tenant: g.GetTenant(), Group: g.GetGroup(), Reason: f.reason, DryRun: f.dryRun})
		},
	})
}

func groupResumeCommand(env environment) *cobra.Command {
	return groupChangeCommand(env, groupChange{
		use: "resume GROUP", short: "End a pause or a halt", doneText: "continues", unchangedText: "is neither paused nor halted: nothing to resume",
		long: "End a group's pause or halt. The failures that led to a halt are reset.",
		send: func(ctx context.Context, c *client, g *apiv1.Group, f groupChangeFlags) (groupAnswer, error) {
			return c.ResumeGroup(ctx, &apiv1.ResumeGroupRequest{Tenant: g.GetTenant(), Group: g.GetGroup(), DryRun: f.dryRun})
		},
	})
}

func groupRollbackCommand(env environment) *cobra.Command {
	return groupChangeCommand(env, groupChange{
		use: "rollback GROUP", short: "Go back to the last good definition", doneText: "is rolled back", canUndo: true,
		long: "Make the last definition with which all members were ready the desired one, instead of the configured one.\n" +
			"Members of another definition are replaced as in any rollout. The rollback ends when another definition is\n" +
			"configured, or with --undo.",
		confirmation: func(g *apiv1.Group) string {
			return fmt.Sprintf("rolling group %s back replaces every member that was made from its configured definition", wire.GroupKeyOf(g))
		},
		send: func(ctx context.Context, c *client, g *apiv1.Group, f groupChangeFlags) (groupAnswer, error) {
			return c.RollbackGroup(ctx, &apiv1.RollbackGroupRequest{Tenant: g.GetTenant(), Group: g.GetGroup(), Undo: f.undo, DryRun: f.dryRun})
		},
	})
}

func groupChangeCommand(env environment, o groupChange) *cobra.Command {
	var f groupChangeFlags
	cmd := &cobra.Command{Use: o.use, Short: o.short, Long: o.long, Args: arguments("GROUP")}
	tenantFlag(cmd, &f.tenant)
	dryRunFlag(cmd, &f.dryRun)
	if o.takesReason {
		cmd.Flags().StringVar(&f.reason, "reason", "", "reason, shown in the status")
	}
	if o.canUndo {
		cmd.Flags().BoolVar(&f.undo, "undo", false, "back to the configured definition")
	}
	if o.confirmation != nil {
		yesFlag(cmd, &f.yes)
	}
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, args []string) error {
		answer, err := applyGroupChange(cmd, c, o, f, args[0])
		return out.result(document{answer}, err, func(t *table) { writeGroupChanged(t, answer, o, f) })
	})
	return cmd
}

func applyGroupChange(cmd *cobra.Command, c *client, o groupChange, f groupChangeFlags, name string) (groupAnswer, error) {
	ctx := cmd.Context()
	g, err := c.group(ctx, nstance.TenantID(f.tenant), name)
	if err != nil {
		return nil, err
	}
	if o.confirmation != nil && !f.undo && !f.dryRun {
		dry := f
		dry.dryRun = true
		if _, err := o.send(ctx, c, g, dry); err != nil { // do not ask for confirmation of a change that would fail
			return nil, err
		}
		if err := confirm(cmd, f.yes, o.confirmation(g)); err != nil {
			return nil, err
		}
	}
	return o.send(ctx, c, g, f)
}

// A groupAnswer is an answer about one group.
type groupAnswer interface {
	proto.Message
	GetGroup() *apiv1.Group
}

// unchanged reports whether the server changed nothing.
func unchanged(answer proto.Message) bool {
	a, ok := answer.(interface{ GetUnchanged() bool })
	return ok && a.GetUnchanged()
}

func writeGroupChanged(t *table, answer groupAnswer, o groupChange, f groupChangeFlags) {
	g := answer.GetGroup()
	what := o.doneText
	if f.undo {
		what = "is wanted as it is configured"
	}
	if unchanged(answer) {
		t.say("group %s %s", wire.GroupKeyOf(g), o.unchangedText)
		return
	}
	if f.dryRun {
		t.say("group %s: %s would be accepted", wire.GroupKeyOf(g), o.use[:len(o.use)-len(" GROUP")])
		return
	}
	t.say("group %s %s", wire.GroupKeyOf(g), what)
	if len(g.GetHolds()) > 0 {
		t.say("held: %s", holds(g.GetHolds()))
	}
}
