package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/duration"
	"github.com/nstance-go/nstance/internal/wire"
)

// A Rehearsal is what interrupt prints. Latencies are counted from the
// injection by the server's clock; one that is absent has not happened, or not
// yet.
type Rehearsal struct {
	Instance    nstance.InstanceID `json:"instance"`
	DryRun      bool               `json:"dry_run"`
	EventID     string             `json:"event_id,omitempty"` // of the pretended notice
	Plan        []string           `json:"plan,omitempty"`     // with dry_run: what would happen
	Waited      bool               `json:"waited"`             // the rest was observed
	Complete    bool               `json:"complete"`           // all of it has happened
	InjectedAt  time.Time          `json:"injected_at,omitzero"`
	Replacement nstance.InstanceID `json:"replacement,omitempty"`

	ReceivedMS             *int64 `json:"received_ms,omitempty"`
	ReplacementRequestedMS *int64 `json:"replacement_requested_ms,omitempty"`
	DrainedMS              *int64 `json:"drained_ms,omitempty"`
	DrainOutcome           string `json:"drain_outcome,omitempty"` // drained, failed or cut_short
	ReplacementReadyMS     *int64 `json:"replacement_ready_ms,omitempty"`
	DeletedMS              *int64 `json:"deleted_ms,omitempty"`
}

// An interruption holds the flags of the command.
type interruption struct {
	id     nstance.InstanceID
	notice time.Duration
	limit  time.Duration // of waiting
	dryRun bool
	wait   bool
	real   bool // through the metadata service
	yes    bool
}

func (p *program) interruptCommand() *cobra.Command {
	var i interruption
	cmd := &cobra.Command{
		Use:   "interrupt ID",
		Short: "Simulate a reclaim of an instance",
		Long: "Simulate a reclaim: the server receives a notice as if the cloud reclaimed the instance, and reacts as it\n" +
			"would then. The instance is drained and deleted, and replaced. With --wait, the latency of each stage is\n" +
			"reported.",
		Args: instanceArgument,
	}
	f := cmd.Flags()
	f.Var(duration.NewFlag(&i.notice, 2*time.Minute), "notice", "time until the simulated reclaim, at most 1h")
	f.BoolVar(&i.real, "through-metadata", false, "publish the notice on the machine's own metadata service, where its agent finds it; local machines only")
	f.BoolVar(&i.wait, "wait", false, "wait until all stages are over")
	f.Var(duration.NewFlag(&i.limit, 15*time.Minute), "wait-timeout", "how long to wait at most")
	yesFlag(cmd, &i.yes)
	dryRunFlag(cmd, &i.dryRun)
	r, out := p.remote(cmd), p.output(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return r.with(cmd.Context(), func(c *client) (err error) {
			if i.id, err = c.instanceID(cmd.Context(), args[0]); err != nil {
				return err
			}
			return p.interrupt(cmd.Context(), r, c, i, out)
		})
	}
	return cmd
}

func (p *program) interrupt(ctx context.Context, r *remote, c *client, i interruption, out *output) error {
	s, err := c.instanceHistory(ctx, i.id)
	if err != nil {
		return seek(err)
	}
	of := s.GetInstance()
	if nstance.State(of.GetState()).Leaving() {
		return fault(nstance.Conflict, nil, "choose another instance", fmt.Sprintf("instance %s is %s already", i.id, of.GetState()))
	}
	if err := p.confirm(ctx, i.yes || i.dryRun, fmt.Sprintf("instance %s of group %s is %s; this drains it, then deletes it%s",
		i.id, wire.GroupKeyOf(of), of.GetState(), replaced(of))); err != nil {
		return err
	}
	x := &rehearsal{p: p, r: r, c: c, i: i, of: of, Rehearsal: Rehearsal{Instance: i.id, DryRun: i.dryRun}}
	if i.wait && !i.dryRun {
		err = x.observe(ctx)
	} else {
		err = x.inject(ctx)
	}
	if err != nil && !x.injected {
		return seek(err)
	}
	if perr := out.print(x.Rehearsal, func(t *table) { t.rehearsal(x.Rehearsal) }); perr != nil {
		return errors.Join(err, perr)
	}
	return err
}

// A rehearsal is one interruption under way.
type rehearsal struct {
	Rehearsal
	p            *program
	r            *remote
	c            *client
	i            interruption
	of           *apiv1.Instance
	replacements map[nstance.InstanceID]bool
	injected     bool
}

// inject sends the notice to the server. It is never repeated: each call is another
// notice.
func (x *rehearsal) inject(ctx context.Context) error {
	resp, err := x.c.Interrupt(ctx, &apiv1.InterruptRequest{Id: string(x.i.id), DryRun: x.i.dryRun, Notice: durationpb.New(x.i.notice), ThroughMetadata: x.i.real})
	if err != nil {
		return err
	}
	x.EventID, x.injected = resp.GetEventId(), true
	if x.i.dryRun {
		x.Plan = resp.GetPlan()
	}
	return nil
}

// observe injects once the watch is open, and watches until everything has happened.
func (x *rehearsal) observe(ctx context.Context) error {
	x.Waited, x.replacements = true, map[nstance.InstanceID]bool{}
	limited, cancel := context.WithTimeout(ctx, x.i.limit)
	defer cancel()
	for n, err := range x.r.follow(limited, &apiv1.WatchInstanceEventsRequest{Group: x.of.GetGroup()}) {
		switch {
		case err != nil:
			return err
		case n.gap:
			err = x.catchUp(limited)
		case n.synced:
			err = x.inject(limited)
		default:
			x.handleEvent(wire.EventOf(n.event))
		}
		if err == nil {
			err = x.checkComplete(limited)
		}
		if err != nil || x.Complete {
			return err
		}
	}
	if ctx.Err() != nil {
		return errors.New("interrupted: the rehearsal goes on at the server")
	}
	return fault(nstance.Unavailable, nil, "nstance-admin events --follow shows the rest",
		fmt.Sprintf("not everything happened within %s: %s is still missing", x.i.limit, strings.Join(x.missing(), ", ")))
}

// catchUp reads from the journal the events that the stream missed.
func (x *rehearsal) catchUp(ctx context.Context) error {
	q := eventQuery{tenant: nstance.TenantID(x.of.GetTenant()), group: x.of.GetGroup(), limit: maxEvents}
	events, err := x.c.events(ctx, q, x.p.now())
	for _, e := range events {
		x.handleEvent(wire.EventOf(e))
	}
	return err
}

// handleEvent records the stage of an event. Events may come twice.
func (x *rehearsal) handleEvent(e nstance.Event) {
	mine := e.Instance == x.i.id
	switch {
	case mine && e.Notice != nil && x.injected && (x.EventID == "" || e.Notice.EventID == x.EventID):
		x.EventID = e.Notice.EventID // the agent names it where it goes through the metadata service
		if x.InjectedAt = e.Notice.DetectedAt; x.InjectedAt.IsZero() {
			x.InjectedAt = e.Time
		}
		if e.Type == nstance.EventNoticeReceived {
			x.stage(&x.ReceivedMS, e, "notice received")
		}
	case x.InjectedAt.IsZero() || e.Time.Before(x.InjectedAt): // not of this rehearsal
	case e.Replaces == x.i.id && e.Type == nstance.EventReplacementRequested:
		x.Replacement, x.replacements[e.Instance] = e.Instance, true
		x.stage(&x.ReplacementRequestedMS, e, "replacement requested: "+string(e.Instance))
	case x.replacements[e.Instance] && e.Type == nstance.EventReady:
		x.Replacement = e.Instance
		x.stage(&x.ReplacementReadyMS, e, "replacement ready")
	case !mine:
	case e.Type == nstance.EventDrainAcknowledged:
		x.drained(e, e.Reason)
	case e.Type == nstance.EventDrainCutShort:
		x.drained(e, "cut_short")
	case e.Type == nstance.EventDeleted:
		x.stage(&x.DeletedMS, e, "deleted")
	}
}

func (x *rehearsal) drained(e nstance.Event, outcome string) {
	if x.DrainOutcome != string(nstance.OutcomeDrained) {
		x.DrainOutcome = outcome
	}
	x.stage(&x.DrainedMS, e, "drain over: "+outcome)
}

func (x *rehearsal) stage(at **int64, e nstance.Event, what string) {
	if *at != nil {
		return
	}
	ms := max(0, e.Time.Sub(x.InjectedAt)).Milliseconds()
	*at = &ms
	x.p.stderr.note("%9s  %s", seconds(ms), printable(what))
}

// checkComplete decides whether everything has happened. An instance deleted without
// a replacement may have needed none: then the group has its size.
func (x *rehearsal) checkComplete(ctx context.Context) error {
	if x.DeletedMS == nil || x.Complete {
		return nil
	}
	if x.ReplacementRequestedMS != nil || x.of.GetOnDemand() {
		x.Complete = x.of.GetOnDemand() || x.ReplacementReadyMS != nil
		return nil
	}
	g, err := x.c.group(ctx, nstance.TenantID(x.of.GetTenant()), x.of.GetGroup())
	if errors.Is(err, nstance.NotFound) {
		x.Complete = true
		return nil
	}
	x.Complete = err == nil && g.GetReady() >= g.GetSize()
	return err
}

func (x *rehearsal) missing() []string {
	var out []string
	for _, s := range x.stages() {
		if s.ms == nil && s.name != "drain over" {
			out = append(out, s.name)
		}
	}
	return out
}

type stage struct {
	name string
	ms   *int64
}

func (r Rehearsal) stages() []stage {
	return []stage{
		{"notice received", r.ReceivedMS}, {"replacement requested", r.ReplacementRequestedMS}, {"drain over", r.DrainedMS},
		{"replacement ready", r.ReplacementReadyMS}, {"deleted", r.DeletedMS},
	}
}

func (t *table) rehearsal(r Rehearsal) {
	switch {
	case r.DryRun && len(r.Plan) == 0:
		t.say("no change")
	case r.DryRun:
		for _, line := range r.Plan {
			t.say("would %s", line)
		}
	case !r.Waited && r.EventID == "":
		t.say("instance %s: a notice is published on its metadata service, nstance-admin instance get shows the outcome", r.Instance)
	case !r.Waited:
		t.say("instance %s: notice %s injected, nstance-admin instance get shows the outcome", r.Instance, r.EventID)
	default:
		t.row("STAGE", "AFTER", "DETAILS")
		for _, s := range r.stages() {
			t.row(s.name, latency(s.ms), r.details(s.name))
		}
	}
}

func (r Rehearsal) details(stage string) string {
	switch stage {
	case "replacement requested":
		return string(r.Replacement)
	case "drain over":
		return r.DrainOutcome
	}
	return ""
}

func latency(ms *int64) string {
	if ms == nil {
		return ""
	}
	return seconds(*ms)
}

func seconds(ms int64) string {
	return fmt.Sprintf("%.3fs", time.Duration(ms*int64(time.Millisecond)).Seconds())
}
