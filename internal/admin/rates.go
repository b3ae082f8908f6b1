package admin

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func interruptionRatesCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "rates", Short: "Count a period's interruptions by instance type, zone and market",
		Long: "Count a period's interruptions by instance type, zone and market: how often the cloud takes machines back,\n" +
			"how much warning it really gives, and how many drains ended in that time. Rehearsals do not count.",
		Args: arguments(),
	}
	out, read := newOutput(cmd), readRates(cmd, env)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return read(cmd, func(resp *apiv1.GetInterruptionRatesResponse) error {
			return out.print(document{resp}, func(t *table) { writeRates(t, resp) })
		})
	}
	return cmd
}

// readRates gives a command the flags of a period, and returns what reads the rates of
// that period and passes them on.
func readRates(cmd *cobra.Command, env environment) func(*cobra.Command, func(*apiv1.GetInterruptionRatesResponse) error) error {
	r := newRemote(cmd, env)
	var since, until string
	cmd.Flags().StringVar(&since, "since", "30d", "from then on: how long ago, or a time")
	cmd.Flags().StringVar(&until, "until", "", "until then: how long ago, or a time; default now")
	return func(cmd *cobra.Command, use func(*apiv1.GetInterruptionRatesResponse) error) error {
		req := &apiv1.GetInterruptionRatesRequest{}
		if err := setPeriod(time.Now(), since, until, &req.Since, &req.Until); err != nil {
			return err
		}
		return r.with(cmd.Context(), func(c *client) error {
			resp, err := c.GetInterruptionRates(cmd.Context(), req)
			if err != nil {
				return err
			}
			warnUnread(cmd, resp.GetProblems(), map[string]bool{})
			return use(resp)
		})
	}
}

func writeRates(t *table, resp *apiv1.GetInterruptionRatesResponse) {
	since, until := wire.TimeOf(resp.GetSince()), wire.TimeOf(resp.GetUntil())
	if len(resp.GetRates()) == 0 {
		t.say("no machines between %s and %s", since.Format(time.RFC3339), until.Format(time.RFC3339))
		return
	}
	t.say("from %s to %s", since.Format(time.RFC3339), until.Format(time.RFC3339))
	t.row("TYPE", "ZONE", "MARKET", "HOURS", "NOTICES", "RECLAIMS", "PER DAY", "PER 100 HOURS", "UNWARNED", "TOO LATE", "MEDIAN NOTICE", "P10 NOTICE", "DRAINED IN TIME", "REBALANCE THEN RECLAIM")
	for _, r := range resp.GetRates() {
		t.row(cmp.Or(r.GetInstanceType(), "unknown"), cmp.Or(r.GetZone(), "unknown"), cmp.Or(r.GetMarket(), "unknown"),
			strconv.FormatFloat(r.GetMachineTime().AsDuration().Hours(), 'f', 1, 64), kindCounts(r.GetNotices()),
			count(r.GetReclaims()), fmt.Sprintf("%.2f", r.GetReclaimsPerDay()), fmt.Sprintf("%.2f", r.GetReclaimsPer_100Hours()),
			count(r.GetUnwarned()), count(r.GetTooLate()), noticeLength(r.GetMedianNotice()), noticeLength(r.GetP10Notice()), drainedInTime(r), foretold(r))
	}
}

// kindCounts formats numbers of notices by kind, such as "rebalance 2, reclaim 1".
func kindCounts(kinds map[string]int32) string {
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		out = append(out, fmt.Sprintf("%s %d", kind, kinds[kind]))
	}
	return strings.Join(out, ", ")
}

// foretold formats how many recommendations to rebalance were followed by a reclaim, or ""
// if there was none.
func foretold(r *apiv1.InterruptionRate) string {
	if r.GetRecommended() == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d", r.GetRecommendedReclaimed(), r.GetRecommended())
}

func count(n int32) string { return strconv.Itoa(int(n)) }

// noticeLength formats a length of notices to the second, or "" if there was none.
func noticeLength(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return d.AsDuration().Round(time.Second).String()
}

// drainedInTime formats such as "3 of 4", or "" if no drain has ended.
func drainedInTime(r *apiv1.InterruptionRate) string {
	if r.GetDrains() == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d", r.GetDrainsInTime(), r.GetDrains())
}
