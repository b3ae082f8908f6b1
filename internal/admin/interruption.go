package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
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
		Long: "Notices and the outcome of each, of instances that live and of those that have ended: from the ledger in\n" +
			"object storage, which every leader has.",
	}
	cmd.AddCommand(p.interruptionListCommand(), p.interruptionShowCommand(), p.interruptionRatesCommand())
	return cmd
}

func (p *program) interruptionListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List notices, the newest first", Args: arguments()}
	r, out := p.remote(cmd), p.output(cmd)
	req := &apiv1.ListInterruptionsRequest{}
	var since, until string
	cmd.Flags().StringVar(&req.Group, "group", "", "only of this group")
	cmd.Flags().StringVar(&req.Instance, "instance", "", "only of this instance, or of those whose ID begins so")
	cmd.Flags().Int32Var(&req.Limit, "limit", 100, "number of notices, up to 1000")
	cmd.Flags().StringVar(&since, "since", "", "only notices since then: how long ago, or a time")
	cmd.Flags().StringVar(&until, "until", "", "only notices before then: how long ago, or a time")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := setPeriod(p.now(), since, until, &req.Since, &req.Until); err != nil {
			return err
		}
		return r.with(cmd.Context(), func(c *client) error {
			list, err := p.interruptions(cmd.Context(), c, req)
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
			list, err := p.interruptions(cmd.Context(), c, &apiv1.ListInterruptionsRequest{EventId: args[0], Limit: 1000})
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

// interruptions returns as many interruptions as the request says, and warns of what
// cannot be read.
func (p *program) interruptions(ctx context.Context, c *client, req *apiv1.ListInterruptionsRequest) ([]*apiv1.Interruption, error) {
	var list []*apiv1.Interruption
	warned := map[string]bool{}
	err := eachPage(func(page string) (paged, error) {
		req.Page = page
		resp, err := c.ListInterruptions(ctx, req)
		list = append(list, resp.GetInterruptions()...)
		p.warnUnread(resp.GetProblems(), warned)
		if len(list) >= int(req.GetLimit()) && resp != nil {
			resp.NextPage = ""
		}
		return resp, err
	})
	return list[:min(len(list), int(req.GetLimit()))], err
}

// warnUnread warns once of each object of the ledger that cannot be read.
func (p *program) warnUnread(problems []string, warned map[string]bool) {
	for _, text := range problems {
		if !warned[text] {
			p.stderr.note("warning: what the ledger holds here is missing: %s", text)
		}
		warned[text] = true
	}
}

// setPeriod sets the bounds of a period from two flags.
func setPeriod(now time.Time, since, until string, from, to **timestamppb.Timestamp) error {
	for _, t := range []struct {
		flag, text string
		to         **timestamppb.Timestamp
	}{{"--since", since, from}, {"--until", until, to}} {
		at, err := instant(t.flag, t.text, now)
		if err != nil {
			return err
		}
		*t.to = wire.Time(at)
	}
	return nil
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

// A pooled message names a pool.
type pooled interface {
	GetInstanceType() string
	GetZone() string
	GetMarket() string
}

// pool formats what the cloud takes capacity back from.
func pool(of pooled) string {
	return strings.Join(slices.DeleteFunc([]string{of.GetInstanceType(), of.GetZone(), of.GetMarket()}, func(s string) bool { return s == "" }), ", ")
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

// timeLeft formats how long before the cloud's deadline the drain ended, or the machine
// without one; empty: there is no deadline, or no end yet.
func timeLeft(i *apiv1.Interruption) string {
	deadline, end := i.GetNotice().GetDeadline(), cmp.Or(i.GetDrainedAt(), i.GetGoneAt(), i.GetDeletedAt())
	if deadline == nil || end == nil {
		return ""
	}
	left := deadline.AsTime().Sub(end.AsTime()).Round(time.Millisecond)
	if left < 0 {
		return "none, the deadline was missed by " + (-left).String()
	}
	return left.String()
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
	for _, f := range []struct{ name, value string }{
		{"Time left:", timeLeft(i)}, {"Machine ended:", step(i, i.GetGoneAt())}, {"Pool:", pool(i)}, {"Ignored:", i.GetIgnored()}, {"Outcome:", i.GetOutcome()},
	} {
		if f.value != "" {
			t.row(f.name, f.value)
		}
	}
}
