package admin

import (
	"cmp"
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

func interruptionCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "interruption", Short: "Interruption notices and their outcomes",
		Long: "Notices and the outcome of each, of instances that live and of those that have ended: from the ledger in\n" +
			"object storage, which every leader has.",
	}
	cmd.AddCommand(interruptionListCommand(env), interruptionShowCommand(env), interruptionRatesCommand(env))
	return cmd
}

func interruptionListCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List notices, the newest first", Args: arguments()}
	r, out := newRemote(cmd, env), newOutput(cmd)
	req := &apiv1.ListInterruptionsRequest{}
	var since, until string
	cmd.Flags().StringVar(&req.Group, "group", "", "only of this group")
	cmd.Flags().StringVar(&req.Instance, "instance", "", "only of this instance, or of those whose ID begins so")
	cmd.Flags().Int32Var(&req.Limit, "limit", 100, "number of notices, up to 1000")
	cmd.Flags().StringVar(&since, "since", "", "only notices since then: how long ago, or a time")
	cmd.Flags().StringVar(&until, "until", "", "only notices before then: how long ago, or a time")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := setPeriod(time.Now(), since, until, &req.Since, &req.Until); err != nil {
			return err
		}
		return r.with(cmd.Context(), func(c *client) error {
			list, err := listInterruptions(cmd, c, req)
			return out.result(documents(list), err, func(t *table) { writeInterruptions(t, list) })
		})
	}
	return cmd
}

func interruptionShowCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show EVENT", Short: "Show one notice step by step",
		Long: "Show one notice step by step. EVENT is its ID as interruption list shows it; one announcement may\nconcern several instances.",
		Args: arguments("EVENT"),
	}
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, args []string) error {
		list, err := listInterruptions(cmd, c, &apiv1.ListInterruptionsRequest{EventId: args[0], Limit: 1000})
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return fault(nstance.NotFound, nil, "see nstance-admin interruption list", fmt.Sprintf("no interruption %.128s", args[0]))
		}
		return out.print(documents(list), func(t *table) {
			for _, i := range list {
				writeInterruption(t, i)
			}
		})
	})
	return cmd
}

// listInterruptions returns as many interruptions as the request says.
func listInterruptions(cmd *cobra.Command, c *client, req *apiv1.ListInterruptionsRequest) ([]*apiv1.Interruption, error) {
	return readLedger(cmd, req.GetLimit(), func(page string) (*apiv1.ListInterruptionsResponse, error) {
		req.Page = page
		return c.ListInterruptions(cmd.Context(), req)
	}, (*apiv1.ListInterruptionsResponse).GetInterruptions)
}

// A ledgerPage is an answer from the ledger.
type ledgerPage interface {
	paged
	GetProblems() []string
}

// readLedger is firstPages of the ledger, and warns of what cannot be read.
func readLedger[P ledgerPage, T any](cmd *cobra.Command, limit int32, ask func(page string) (P, error), itemsOf func(P) []T) ([]T, error) {
	warned := map[string]bool{}
	return firstPages(int(limit), func(page string) (P, error) {
		resp, err := ask(page)
		warnUnread(cmd, resp.GetProblems(), warned)
		return resp, err
	}, itemsOf)
}

// warnUnread warns once of each object of the ledger that cannot be read.
func warnUnread(cmd *cobra.Command, problems []string, warned map[string]bool) {
	for _, text := range problems {
		if !warned[text] {
			stderrOf(cmd).note("warning: what the ledger holds here is missing: %s", text)
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

func writeInterruptions(t *table, list []*apiv1.Interruption) {
	if len(list) == 0 {
		t.say("no interruptions")
		return
	}
	t.row("EVENT", "GROUP", "INSTANCE", "KIND", "SOURCE", "AGE", "REPLACEMENT REQUESTED", "DRAINED", "GONE", "REPLACED")
	for _, i := range list {
		t.row(i.GetEventId(), wire.GroupKeyOf(i).String(), i.GetInstance(), i.GetNotice().GetKind(), i.GetNotice().GetSource(),
			t.age(wire.Time(noticeTime(i))), step(i, i.GetReplacementRequestedAt()), drainOutcome(i), step(i, i.GetDeletedAt()), step(i, i.GetReplacementReadyAt()))
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

func writeInterruption(t *table, i *apiv1.Interruption) {
	t.row("Event:", i.GetEventId())
	t.row("Instance:", i.GetInstance()+" of "+wire.GroupKeyOf(i).String())
	t.row("Notice:", i.GetNotice().GetKind()+" from "+i.GetNotice().GetSource())
	t.row("Deadline:", stampOf(i.GetNotice().GetDeadline()))
	t.row("Rehearsal:", yesNo(i.GetRehearsal()))
	t.row("Withdrawn:", yesNo(i.GetWithdrawn()))
	t.row("Detected:", stampOf(i.GetDetectedAt()))
	t.row("Received:", step(i, i.GetReceivedAt()))
	t.row("Replacement requested:", step(i, i.GetReplacementRequestedAt())+" "+i.GetReplacement())
	t.row("Drain started:", step(i, i.GetDrainStartedAt()))
	t.row("Drain ended:", drainOutcome(i))
	t.row("Gone:", step(i, i.GetDeletedAt()))
	t.row("Replacement ready:", step(i, i.GetReplacementReadyAt()))
	t.fields([]field{
		{"Time left", timeLeft(i)}, {"Machine ended", step(i, i.GetGoneAt())}, {"Pool", pool(i)}, {"Ignored", i.GetIgnored()}, {"Outcome", i.GetOutcome()},
	})
}
