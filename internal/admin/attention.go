package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/duration"
)

func attentionCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "attention", Short: "What needs attention: list it, acknowledge it",
		Long: "List what needs attention, and acknowledge it, so that it does not alert for a while.",
	}
	cmd.AddCommand(attentionAckCommand(env), attentionUnackCommand(env), attentionListCommand(env))
	return cmd
}

// entryArguments demands a kind. The words of the subject may follow.
func entryArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return misused(cmd, errors.New("argument KIND is missing: attention list shows kinds and subjects"))
	}
	return nil
}

// parseEntry returns the kind and the subject, whose words may be separate arguments.
func parseEntry(args []string) (kind, subject string) { return args[0], strings.Join(args[1:], " ") }

// completeEntry offers kinds, then the words of subjects.
func completeEntry(env environment, acknowledged bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return completeNames(env, func(c *client, ctx context.Context) (words []string, err error) {
			resp, err := c.GetShardStatus(ctx, &apiv1.GetShardStatusRequest{})
			for _, a := range resp.GetAttention() {
				all := append([]string{a.GetKind()}, strings.Fields(a.GetSubject())...)
				if len(all) > len(args) && slices.Equal(all[:len(args)], args) && (!acknowledged || a.GetAcknowledged() != nil) {
					words = append(words, all[len(args)])
				}
			}
			slices.Sort(words)
			return slices.Compact(words), err
		})(cmd, args, begun)
	}
}

func attentionAckCommand(env environment) *cobra.Command {
	var length time.Duration
	var reason string
	var dryRun bool
	cmd := &cobra.Command{
		Use: "ack KIND [SUBJECT]", Short: "Acknowledge what needs attention, so that it does not alert for a while",
		Long: "Acknowledge the entries of a kind about a subject, durably. They are still shown, after the others, with who\n" +
			"acknowledged them, why and until when, and do not alert. The acknowledgement ends by itself: when its time is\n" +
			"over, or when the entries are gone for 20 minutes. Another alarm that is raised later alerts, and so does one entry\n" +
			"more than there are now. SUBJECT may be left out where attention list shows only one for the kind. A repetition\n" +
			"replaces duration and reason, and acknowledges what has come since.",
		Args: entryArguments, ValidArgsFunction: completeEntry(env, false),
	}
	cmd.Flags().Var(duration.NewFlag(&length, 0), "for", "how long, from 1m to 30d")
	cmd.Flags().StringVar(&reason, "reason", "", "reason, shown with the entries")
	dryRunFlag(cmd, &dryRun)
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if length <= 0 {
			return nstance.FieldError("--for", "say how long, such as 4h, at most 30d", "is missing")
		}
		kind, subject := parseEntry(args)
		return r.with(cmd.Context(), func(c *client) error {
			answer, err := c.AcknowledgeAttention(cmd.Context(), &apiv1.AcknowledgeAttentionRequest{
				Kind: kind, Subject: subject, Duration: durationpb.New(length), Reason: reason, DryRun: dryRun,
			})
			return out.result(document{answer}, err, func(t *table) { writeAcknowledged(t, kind, answer, dryRun) })
		})
	}
	return cmd
}

func writeAcknowledged(t *table, kind string, answer *apiv1.AcknowledgeAttentionResponse, dryRun bool) {
	what := kind + ": " + answer.GetSubject()
	if n := answer.GetEntries(); n > 1 {
		what += fmt.Sprintf(" (%d entries)", n)
	}
	switch until := stampOf(answer.GetAcknowledged().GetUntil()); {
	case answer.GetUnchanged():
		t.say("%s is acknowledged already, until %s", what, until)
	case dryRun:
		t.say("%s would be acknowledged until %s", what, until)
	default:
		t.say("%s is acknowledged until %s", what, until)
	}
}

func attentionUnackCommand(env environment) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use: "unack KIND [SUBJECT]", Short: "End an acknowledgement",
		Long: "End an acknowledgement: the entries alert again. SUBJECT may be left out where only one of the kind is acknowledged.",
		Args: entryArguments, ValidArgsFunction: completeEntry(env, true),
	}
	dryRunFlag(cmd, &dryRun)
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, args []string) error {
		kind, subject := parseEntry(args)
		answer, err := c.UnacknowledgeAttention(cmd.Context(), &apiv1.UnacknowledgeAttentionRequest{Kind: kind, Subject: subject, DryRun: dryRun})
		return out.result(document{answer}, err, func(t *table) { writeUnacknowledged(t, kind, answer, dryRun) })
	})
	return cmd
}

func writeUnacknowledged(t *table, kind string, answer *apiv1.UnacknowledgeAttentionResponse, dryRun bool) {
	what := kind
	if answer.GetSubject() != "" {
		what += ": " + answer.GetSubject()
	}
	switch {
	case answer.GetUnchanged():
		t.say("%s is not acknowledged: nothing to end", what)
	case dryRun:
		t.say("the acknowledgement of %s would end", what)
	default:
		t.say("the acknowledgement of %s has ended", what)
	}
}

func attentionListCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List what needs attention, and what of it is acknowledged", Args: arguments()}
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = r.run(func(c *client, _ []string) error {
		resp, err := c.GetShardStatus(cmd.Context(), &apiv1.GetShardStatusRequest{})
		return out.result(documents(resp.GetAttention()), err, func(t *table) { writeAttentionTable(t, resp) })
	})
	return cmd
}

func writeAttentionTable(t *table, s *apiv1.GetShardStatusResponse) {
	if len(s.GetAttention()) == 0 {
		t.say("nothing needs attention")
		return
	}
	t.row("KIND", "SUBJECT", "FOR", "ACKNOWLEDGED UNTIL", "BY", "REASON", "WHY")
	for _, a := range s.GetAttention() {
		known := a.GetAcknowledged()
		t.row(a.GetKind(), a.GetSubject(), t.age(a.GetSince()), stampOf(known.GetUntil()), known.GetBy(), known.GetReason(), a.GetWhy())
	}
	if n := s.GetAttentionOmitted(); n > 0 {
		t.say("and %d more", n)
	}
}

// acknowledgedBy says in words who has acknowledged an entry, until when and why.
func acknowledgedBy(a *apiv1.AttentionAcknowledgement) string {
	text := "acknowledged by " + a.GetBy() + " until " + stampOf(a.GetUntil())
	if a.GetReason() != "" {
		text += ": " + a.GetReason()
	}
	return text
}
