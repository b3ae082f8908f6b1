package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

const (
	maxStories = 500 // instances whose stories are fetched for one list of events
	width      = 8   // of them at the same time
)

// eventQuery says which events are wanted.
type eventQuery struct {
	tenant   nstance.TenantID
	group    string
	instance string
	after    uint64
}

func (p *program) eventsCommand() *cobra.Command {
	var q eventQuery
	var follow bool
	var tenant string
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happened, or what happens",
		Long: "Show what happened to the instances that exist, and to those that they replaced. With --follow, show\n" +
			"what happens from now on, or after the given number, until interrupted; a broken connection resumes.",
		Args: arguments(),
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "go on with what happens")
	f.StringVar(&q.group, "group", "", "only of this group")
	f.StringVar(&q.instance, "instance", "", "only of this instance")
	f.Uint64Var(&q.after, "after", 0, "only those after the one with this number (seq)")
	tenantFlag(cmd, &tenant)
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		q.tenant = nstance.TenantID(tenant)
		if q.instance != "" {
			if _, err := nstance.ParseInstanceID(q.instance); err != nil {
				return err
			}
		}
		if follow {
			return p.followEvents(cmd.Context(), r, out, q)
		}
		return r.with(cmd.Context(), func(c *client) error {
			events, err := c.events(cmd.Context(), q)
			if err != nil {
				return seek(err)
			}
			return out.print(events, func(t *table) { t.events(events) })
		})
	}
	return cmd
}

func (p *program) followEvents(ctx context.Context, r *remote, out *output, q eventQuery) error {
	first := true
	req := &apiv1.WatchInstanceEventsRequest{AfterSeq: q.after, Group: q.group, Instance: q.instance}
	for n, err := range r.follow(ctx, req) {
		switch {
		case err != nil:
			return err
		case n.gap:
			p.stderr.note("warning: events may be missing here, the server no longer holds all that came before")
			continue
		case n.synced || q.tenant != "" && n.event.Tenant != q.tenant:
			continue
		}
		if err := p.printEvent(out, n.event, first); err != nil {
			return err
		}
		first = false
	}
	return nil
}

func (p *program) printEvent(out *output, e nstance.Event, first bool) error {
	if out.form != formTable {
		return out.line(e)
	}
	text := eventLine(e)
	if first {
		text = streamed("TIME", "EVENT", "GROUP", "INSTANCE", "DETAILS") + text
	}
	return out.write([]byte(text))
}

// streamed formats a line of a table whose end is not known.
func streamed(at, event, group, instance, details string) string {
	return strings.TrimRight(fmt.Sprintf("%-24s   %-21s   %-20s   %-29s   %s", at, event, group, instance, details), " ") + "\n"
}

func eventLine(e nstance.Event) string {
	return streamed(stamp(e.Time), printable(string(e.Type)), printable(groupText(e)), printable(string(e.Instance)), printable(details(e)))
}

func (t *table) events(events []nstance.Event) {
	if len(events) == 0 {
		t.say("no events")
		return
	}
	t.eventHead()
	for _, e := range events {
		t.event(e)
	}
}

func (t *table) eventHead() { t.row("TIME", "EVENT", "GROUP", "INSTANCE", "DETAILS") }

func (t *table) event(e nstance.Event) {
	t.row(stamp(e.Time), string(e.Type), groupText(e), string(e.Instance), details(e))
}

func groupText(e nstance.Event) string {
	if e.Group == "" {
		return string(e.Tenant)
	}
	return nstance.GroupKey{Tenant: e.Tenant, Group: e.Group}.String()
}

// details says what else there is to an event.
func details(e nstance.Event) string {
	var out []string
	add := func(format, value string) {
		if value != "" {
			out = append(out, fmt.Sprintf(format, value))
		}
	}
	add("replaces %s", string(e.Replaces))
	add("%s", e.Reason)
	add("%s", e.Error)
	if n := e.Notice; n != nil {
		add("%s", strings.TrimSpace(string(n.Kind)+" "+n.Action))
		add("by %s", stamp(n.Deadline))
		add("from %s", n.Source)
	}
	if d := e.Drain; d != nil {
		add("%s", drainText(*d))
	}
	return strings.Join(out, ", ")
}

// events returns what the journal holds about the instances that q selects.
func (c *client) events(ctx context.Context, q eventQuery) ([]nstance.Event, error) {
	var events []nstance.Event
	if q.instance != "" {
		s, err := c.story(ctx, nstance.InstanceID(q.instance))
		if err != nil {
			return nil, err
		}
		events = s.Events
	} else {
		list, err := c.instances(ctx, q.tenant, q.group)
		if err != nil {
			return nil, err
		}
		if events, err = c.stories(ctx, list); err != nil {
			return nil, err
		}
	}
	if q.after != 0 {
		events = slices.DeleteFunc(events, func(e nstance.Event) bool { return uint64(e.Seq) <= q.after })
	}
	return append([]nstance.Event{}, events...), nil
}

// stories returns the events of the given instances and of those that they
// replaced, in order.
func (c *client) stories(ctx context.Context, list []Instance) ([]nstance.Event, error) {
	slices.SortFunc(list, func(a, b Instance) int { return b.CreatedAt.Compare(a.CreatedAt) }) // the latest first
	var ids []nstance.InstanceID
	for _, i := range list {
		ids = append(ids, i.ID)
	}
	seen := map[nstance.InstanceID]bool{}
	var all []nstance.Event
	for len(ids) > 0 && len(seen) < maxStories {
		ids = ids[:min(len(ids), maxStories-len(seen))]
		for _, id := range ids {
			seen[id] = true
		}
		events, err := c.storiesOf(ctx, ids)
		if err != nil {
			return nil, err
		}
		all, ids = append(all, events...), replacedBy(events, seen)
	}
	slices.SortStableFunc(all, func(a, b nstance.Event) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Seq, b.Seq))
	})
	return all, nil
}

// storiesOf fetches stories side by side. An instance that has gone meanwhile
// has none.
func (c *client) storiesOf(ctx context.Context, ids []nstance.InstanceID) ([]nstance.Event, error) {
	var mu sync.Mutex
	var all []nstance.Event
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(width)
	for _, id := range ids {
		g.Go(func() error {
			s, err := c.story(ctx, id)
			if errors.Is(err, nstance.NotFound) {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, s.Events...)
			return err
		})
	}
	err := g.Wait()
	return all, err
}

func replacedBy(events []nstance.Event, seen map[nstance.InstanceID]bool) []nstance.InstanceID {
	var ids []nstance.InstanceID
	for _, e := range events {
		if e.Replaces != "" && !seen[e.Replaces] && !slices.Contains(ids, e.Replaces) {
			ids = append(ids, e.Replaces)
		}
	}
	return ids
}
