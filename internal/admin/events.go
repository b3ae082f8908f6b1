package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/duration"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/nearest"
	"github.com/nstance-go/nstance/internal/wire"
)

// eventQuery selects events.
type eventQuery struct {
	tenant   nstance.TenantID
	group    string
	instance string
	after    uint64
	types    []string
	since    string
	until    string
	limit    int
	all      bool
}

func eventsCommand(env environment) *cobra.Command {
	var q eventQuery
	var follow bool
	var tenant string
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show the events of the journal",
		Long: `Show the newest --limit events of the server's journal, oldest first. --all streams
the whole journal, oldest first: with -o json one object a line, as an export.

With --follow, show new events, or those after the given number, until interrupted.
It reconnects and resumes after a broken connection.`,
		Args: arguments(),
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "continue with new events")
	f.StringVar(&q.group, "group", "", "only of this group")
	f.StringVar(&q.instance, "instance", "", "only of this instance")
	f.StringSliceVar(&q.types, "type", nil, "only of these types, such as ready or alarm")
	f.StringVar(&q.since, "since", "", "only events since then: how long ago, or a time")
	f.StringVar(&q.until, "until", "", "only events until then: how long ago, or a time")
	f.IntVar(&q.limit, "limit", 1000, "number of events, the newest")
	f.BoolVar(&q.all, "all", false, "the whole journal")
	f.Uint64Var(&q.after, "after", 0, "only those after the one with this number (seq)")
	tenantFlag(cmd, &tenant)
	// It fails only for a flag that does not exist, or twice for one.
	_ = cmd.RegisterFlagCompletionFunc("type", completions(eventtype.All()))
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		q.tenant = nstance.TenantID(tenant)
		for _, t := range q.types {
			if err := nearest.Among("--type", nstance.EventType(t), eventtype.All()); follow && err != nil { // else the server knows best
				return err
			}
		}
		if q.instance != "" {
			if _, err := nstance.ParseInstanceID(q.instance); err != nil {
				return err
			}
		}
		if follow {
			return followEvents(cmd, r, out, q)
		}
		return r.with(cmd.Context(), func(c *client) error {
			if q.all {
				return exportEvents(cmd.Context(), c, out, q)
			}
			events, err := c.events(cmd.Context(), q, time.Now())
			return out.result(documents(events), err, func(t *table) { writeEvents(t, events) })
		})
	}
	return cmd
}

func followEvents(cmd *cobra.Command, r *remote, out *output, q eventQuery) error {
	first := true
	req := &apiv1.WatchInstanceEventsRequest{AfterSeq: q.after, Group: q.group, Instance: q.instance}
	for n, err := range r.follow(cmd.Context(), req) {
		switch {
		case err != nil:
			return err
		case n.gap:
			stderrOf(cmd).note("warning: events may be missing here, the server no longer has all earlier ones")
			continue
		case n.synced || q.tenant != "" && n.event.GetTenant() != string(q.tenant):
			continue
		}
		if err := printEvent(out, n.event, first); err != nil {
			return err
		}
		first = false
	}
	return nil
}

// exportEvents prints the whole journal as it comes.
func exportEvents(ctx context.Context, c *client, out *output, q eventQuery) error {
	first := true
	return c.pages(ctx, q, time.Now(), func(e *apiv1.Event) error {
		defer func() { first = false }()
		return printEvent(out, e, first)
	})
}

func printEvent(out *output, e *apiv1.Event, first bool) error {
	if out.form != formTable {
		return out.line(document{e})
	}
	text := eventLine(e)
	if first {
		text = streamed("TIME", "EVENT", "GROUP", "INSTANCE", "DETAILS") + text
	}
	return out.write([]byte(text))
}

// streamed formats one line of a table of unknown length.
func streamed(at, event, group, instance, details string) string {
	return strings.TrimRight(fmt.Sprintf("%-24s   %-23s   %-20s   %-29s   %s", at, event, group, instance, details), " ") + "\n"
}

func eventLine(e *apiv1.Event) string {
	return streamed(stampOf(e.GetTime()), printable(e.GetType()), printable(groupText(e)), printable(e.GetInstance()), printable(details(e)))
}

func writeEvents(t *table, events []*apiv1.Event) {
	if len(events) == 0 {
		t.say("no events")
		return
	}
	writeEventHead(t)
	for _, e := range events {
		writeEvent(t, e)
	}
}

func writeEventHead(t *table) { t.row("TIME", "EVENT", "GROUP", "INSTANCE", "DETAILS") }

func writeEvent(t *table, e *apiv1.Event) {
	t.row(stampOf(e.GetTime()), e.GetType(), groupText(e), e.GetInstance(), details(e))
}

func groupText(e *apiv1.Event) string {
	if e.GetGroup() == "" {
		return e.GetTenant()
	}
	return wire.GroupKeyOf(e).String()
}

// details formats the other fields of an event.
func details(e *apiv1.Event) string {
	var out []string
	add := func(format, value string) {
		if value != "" {
			out = append(out, fmt.Sprintf(format, value))
		}
	}
	add("replaces %s", e.GetReplaces())
	add("%s", e.GetReason())
	add("%s", e.GetError())
	if n := e.GetNotice(); n != nil {
		add("%s", strings.TrimSpace(n.GetKind()+" "+n.GetAction()))
		add("by %s", stampOf(n.GetDeadline()))
		add("from %s", n.GetSource())
	}
	if d := e.GetDrain(); d != nil {
		add("%s", drainText(d))
	}
	return strings.Join(out, ", ")
}

// request returns what to ask the journal for.
func (q eventQuery) request(now time.Time) (*apiv1.ListEventsRequest, error) {
	req := &apiv1.ListEventsRequest{
		Tenant: string(q.tenant), Group: q.group, Instance: q.instance, Types: q.types, Limit: int32(q.limit), Newest: !q.all,
	}
	if err := setPeriod(now, q.since, q.until, &req.Since, &req.Until); err != nil {
		return nil, err
	}
	if q.limit < 1 || q.limit > maxEvents {
		return nil, nstance.FieldError("--limit", "use 1 to 10000, or --all", "%d is out of range", q.limit)
	}
	if q.after != 0 { // everything after a number, from there on
		req.Page, req.Newest = strconv.FormatUint(q.after, 10), false
	}
	return req, nil
}

// maxEvents is how many events are asked for at most.
const maxEvents = 10_000

// instant reads a time, or how long ago it was; empty is the zero time.
func instant(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := duration.Parse(text); err == nil {
		return now.Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, nstance.FieldError(flag, "write how long ago, such as 30m or 2d, or a time, such as 2026-01-31T12:00:00Z", "%.64q is neither", text)
	}
	return at, nil
}

// events returns what the journal holds, oldest first.
func (c *client) events(ctx context.Context, q eventQuery, now time.Time) ([]*apiv1.Event, error) {
	var out []*apiv1.Event
	err := c.pages(ctx, q, now, func(e *apiv1.Event) error {
		out = append(out, e)
		return nil
	})
	slices.SortStableFunc(out, func(a, b *apiv1.Event) int { return cmp.Compare(a.GetSeq(), b.GetSeq()) })
	if err == nil && len(out) == 0 && q.group != "" { // nothing must not hide a mistyped name
		_, err = c.group(ctx, q.tenant, q.group)
	}
	return out, err
}

// pages calls do with each event that q asks for, page by page.
func (c *client) pages(ctx context.Context, q eventQuery, now time.Time, do func(*apiv1.Event) error) error {
	req, err := q.request(now)
	if err != nil {
		return err
	}
	for left := q.limit; ; {
		resp, err := c.ListEvents(ctx, req)
		if err != nil {
			return err
		}
		for _, e := range resp.GetEvents() {
			if err := do(e); err != nil {
				return err
			}
		}
		left -= len(resp.GetEvents())
		if req.Page = resp.GetNextPage(); req.Page == "" || !q.all && left <= 0 {
			return nil
		}
		if !q.all {
			req.Limit = int32(left)
		}
	}
}
