package admin

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func (p *program) interruptionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "interruption", Short: "Interruption notices and their outcomes",
		Long: "Notices in the server's journal, and the outcome of each.",
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
	cmd.Flags().Int32Var(&req.Limit, "limit", 100, "number of notices, up to 1000")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return r.with(cmd.Context(), func(c *client) error {
			list, err := c.interruptions(cmd.Context(), req)
			if err != nil {
				return err
			}
			return out.print(documents(list), func(t *table) { t.interruptions(list) })
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
				return fault(nstance.NotFound, nil, "see nstance-admin interruption list", fmt.Sprintf("no interruption %.128s", args[0]))
			}
			return out.print(documents(list), func(t *table) {
				for _, i := range list {
					t.interruption(i)
				}
			})
		})
	}
	return cmd
}

func (c *client) interruptions(ctx context.Context, req *apiv1.ListInterruptionsRequest) ([]*apiv1.Interruption, error) {
	resp, err := c.ListInterruptions(ctx, req)
	return resp.GetInterruptions(), err
}

// noticeTime is what times of steps are counted from.
func noticeTime(i *apiv1.Interruption) time.Time {
	return wire.TimeOf(cmp.Or(i.GetDetectedAt(), i.GetReceivedAt()))
}

// step returns how long after the notice something happened, or "" if it did not.
func step(i *apiv1.Interruption, at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	return "+" + max(0, at.AsTime().Sub(noticeTime(i))).Round(time.Millisecond).String()
}

func (t *table) interruptions(list []*apiv1.Interruption) {
	if len(list) == 0 {
		t.say("no interruptions")
		return
	}
	t.row("EVENT", "GROUP", "INSTANCE", "KIND", "SOURCE", "AGE", "REPLACEMENT REQUESTED", "DRAINED", "GONE", "REPLACED")
	for _, i := range list {
		t.row(i.GetEventId(), wire.GroupKeyOf(i).String(), i.GetInstance(), i.GetNotice().GetKind(), i.GetNotice().GetSource(),
			t.age(noticeTime(i)), step(i, i.GetReplacementRequestedAt()), drainOutcome(i), step(i, i.GetDeletedAt()), step(i, i.GetReplacementReadyAt()))
	}
}

// drainOutcome formats how the drain ended, and when.
func drainOutcome(i *apiv1.Interruption) string {
	switch i.GetDrainOutcome() {
	case "":
		return ""
	case string(nstance.OutcomeDrained):
		return step(i, i.GetDrainedAt())
	}
	return i.GetDrainOutcome() + " " + step(i, i.GetDrainedAt())
}

func (t *table) interruption(i *apiv1.Interruption) {
	t.row("Event:", i.GetEventId())
	t.row("Instance:", i.GetInstance()+" of "+wire.GroupKeyOf(i).String())
	t.row("Notice:", i.GetNotice().GetKind()+" from "+i.GetNotice().GetSource())
	t.row("Deadline:", stamp(wire.TimeOf(i.GetNotice().GetDeadline())))
	t.row("Rehearsal:", yesNo(i.GetRehearsal()))
	t.row("Withdrawn:", yesNo(i.GetWithdrawn()))
	t.row("Detected:", stamp(wire.TimeOf(i.GetDetectedAt())))
	t.row("Received:", step(i, i.GetReceivedAt()))
	t.row("Replacement requested:", step(i, i.GetReplacementRequestedAt())+" "+i.GetReplacement())
	t.row("Drain started:", step(i, i.GetDrainStartedAt()))
	t.row("Drain ended:", drainOutcome(i))
	t.row("Gone:", step(i, i.GetDeletedAt()))
	t.row("Replacement ready:", step(i, i.GetReplacementReadyAt()))
}
