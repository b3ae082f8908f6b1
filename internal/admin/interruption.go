package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func (p *program) interruptionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "interruption", Short: "Notices, and what became of each",
		Long: "Notices, and what became of each, as far as the server's journal reaches back.",
	}
	cmd.AddCommand(p.interruptionListCommand(), p.interruptionShowCommand())
	return cmd
}

func (p *program) interruptionListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List notices, the newest first", Args: arguments()}
	r, out := p.remote(cmd), p.output(cmd)
	req := &apiv1.ListInterruptionsRequest{}
	cmd.Flags().StringVar(&req.Group, "group", "", "only of this group")
	cmd.Flags().StringVar(&req.Instance, "instance", "", "only of this instance")
	cmd.Flags().Int32Var(&req.Limit, "limit", 100, "at most so many, up to 1000")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return r.with(cmd.Context(), func(c *client) error {
			list, err := c.interruptions(cmd.Context(), req)
			if err != nil {
				return err
			}
			return out.print(list, func(t *table) { t.interruptions(list) })
		})
	}
	return cmd
}

func (p *program) interruptionShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show EVENT", Short: "Show one notice step by step",
		Long: "Show one notice step by step. EVENT is its ID as interruption list shows it; one announcement may\nconcern several instances.",
		Args: arguments("EVENT"),
	}
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.with(cmd.Context(), func(c *client) error {
			list, err := c.interruptions(cmd.Context(), &apiv1.ListInterruptionsRequest{EventId: args[0], Limit: 1000})
			if err != nil {
				return err
			}
			if len(list) == 0 {
				return fault(nstance.NotFound, nil, "nstance-admin interruption list shows those there are", fmt.Sprintf("no interruption %.128s", args[0]))
			}
			return out.print(list, func(t *table) {
				for _, i := range list {
					t.interruption(i)
				}
			})
		})
	}
	return cmd
}

func (c *client) interruptions(ctx context.Context, req *apiv1.ListInterruptionsRequest) ([]Interruption, error) {
	resp, err := c.ListInterruptions(ctx, req)
	if err != nil {
		return nil, err
	}
	list := []Interruption{}
	for _, i := range resp.GetInterruptions() {
		list = append(list, interruptionOf(i))
	}
	return list, nil
}

func interruptionOf(w *apiv1.Interruption) Interruption {
	n := wire.NoticeOf(w.GetNotice())
	return Interruption{
		EventID: w.GetEventId(), Tenant: nstance.TenantID(w.GetTenant()), Group: nstance.GroupID(w.GetGroup()),
		Instance: nstance.InstanceID(w.GetInstance()), Kind: n.Kind, Source: n.Source, Deadline: n.Deadline,
		Rehearsal: w.GetRehearsal(), Withdrawn: w.GetWithdrawn(), DetectedAt: wire.TimeOf(w.GetDetectedAt()), ReceivedAt: wire.TimeOf(w.GetReceivedAt()),
		ReplacementRequestedAt: wire.TimeOf(w.GetReplacementRequestedAt()), Replacement: nstance.InstanceID(w.GetReplacement()),
		ReplacementReadyAt: wire.TimeOf(w.GetReplacementReadyAt()), DrainStartedAt: wire.TimeOf(w.GetDrainStartedAt()),
		DrainedAt: wire.TimeOf(w.GetDrainedAt()), DrainOutcome: w.GetDrainOutcome(), DeletedAt: wire.TimeOf(w.GetDeletedAt()),
	}
}

// begun is what times of steps are counted from.
func (i Interruption) begun() time.Time {
	if i.DetectedAt.IsZero() {
		return i.ReceivedAt
	}
	return i.DetectedAt
}

// step says how long after the notice something happened, or "" if it did not.
func (i Interruption) step(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return "+" + max(0, at.Sub(i.begun())).Round(time.Millisecond).String()
}

func (t *table) interruptions(list []Interruption) {
	if len(list) == 0 {
		t.say("no interruptions")
		return
	}
	t.row("EVENT", "GROUP", "INSTANCE", "KIND", "SOURCE", "AGE", "REPLACEMENT REQUESTED", "DRAINED", "GONE", "REPLACED")
	for _, i := range list {
		t.row(i.EventID, nstance.GroupKey{Tenant: i.Tenant, Group: i.Group}.String(), string(i.Instance), string(i.Kind), i.Source,
			t.age(i.begun()), i.step(i.ReplacementRequestedAt), i.drained(), i.step(i.DeletedAt), i.step(i.ReplacementReadyAt))
	}
}

// drained says how the drain ended, and when.
func (i Interruption) drained() string {
	switch i.DrainOutcome {
	case "":
		return ""
	case string(nstance.OutcomeDrained):
		return i.step(i.DrainedAt)
	}
	return i.DrainOutcome + " " + i.step(i.DrainedAt)
}

func (t *table) interruption(i Interruption) {
	t.row("Event:", i.EventID)
	t.row("Instance:", string(i.Instance)+" of "+nstance.GroupKey{Tenant: i.Tenant, Group: i.Group}.String())
	t.row("Notice:", string(i.Kind)+" from "+i.Source)
	t.row("Deadline:", stamp(i.Deadline))
	t.row("Rehearsal:", yesNo(i.Rehearsal))
	t.row("Withdrawn:", yesNo(i.Withdrawn))
	t.row("Detected:", stamp(i.DetectedAt))
	t.row("Received:", i.step(i.ReceivedAt))
	t.row("Replacement requested:", i.step(i.ReplacementRequestedAt)+" "+string(i.Replacement))
	t.row("Drain started:", i.step(i.DrainStartedAt))
	t.row("Drain ended:", i.drained())
	t.row("Gone:", i.step(i.DeletedAt))
	t.row("Replacement ready:", i.step(i.ReplacementReadyAt))
}
