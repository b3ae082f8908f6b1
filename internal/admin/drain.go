package admin

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

func drainCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "drain", Short: "Carry out drains: empty machines before they are deleted"}
	cmd.AddCommand(drainWatchCommand(env), drainAckCommand(env))
	return cmd
}

func drainWatchCommand(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "watch", Short: "Register as executor of drains, and print each drain",
		Long: `Act as executor of drains until interrupted: of all in the identity's tenant, for an
administrator of all in the shard. While this runs, new drains do not use an agent's
hook. Print each drain and its changes: with -o json one object a line.

A drain is over once "drain ack" acknowledges it, or at its deadline. If this command
ends, other executors take over after 10 s.`,
		Args: arguments(),
	}
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		w := &drainWatch{print: func(c DrainChange) error { return printDrain(out, c) }}
		req := &apiv1.WatchInstanceEventsRequest{DrainExecutor: true}
		for n, err := range r.follow(cmd.Context(), req) {
			if err != nil {
				return err
			}
			if err := w.handle(n); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

func printDrain(out *output, c DrainChange) error {
	if out.form != formTable {
		return out.line(c)
	}
	d := c.Drain.Drain
	return out.write([]byte(streamed(stamp(time.Now()), c.Change, printable(wire.GroupKeyOf(d).String()), printable(d.GetInstance()), printable(drainText(d)))))
}

// A drainWatch keeps the drains that are to be carried out, and prints what
// changes about them.
type drainWatch struct {
	print    func(DrainChange) error
	open     map[string]*apiv1.Drain // printed, and not over
	snapshot map[string]bool         // draining, in the snapshot that is being read
}

func (w *drainWatch) handle(n followMessage) error {
	switch d, typ := n.event.GetDrain(), nstance.EventType(n.event.GetType()); {
	case n.instance != nil:
		return w.handleSnapshot(n.instance)
	case n.synced:
		return w.endAbsent()
	case typ == nstance.EventDrainStarted, typ == nstance.EventDrainTightened, typ == nstance.EventDrainReassigned:
		if d == nil {
			return nil
		}
		return w.update(d)
	case typ == nstance.EventDrainCancelled:
		return w.end(n.event.GetInstance(), drainCancelled)
	case typ == nstance.EventDeleteRequested, typ == nstance.EventDeleted:
		return w.end(n.event.GetInstance(), drainEnded)
	}
	return nil
}

func (w *drainWatch) handleSnapshot(i *apiv1.Instance) error {
	if i.GetDrain() == nil || nstance.State(i.GetState()) != nstance.Draining {
		return nil
	}
	if w.snapshot == nil {
		w.snapshot = map[string]bool{}
	}
	w.snapshot[i.GetId()] = true
	return w.update(i.GetDrain())
}

// endAbsent ends what has ended while no event was read.
func (w *drainWatch) endAbsent() error {
	present := w.snapshot
	w.snapshot = nil
	for _, id := range slices.Sorted(maps.Keys(w.open)) {
		if present[id] {
			continue
		}
		if err := w.end(id, drainEnded); err != nil {
			return err
		}
	}
	return nil
}

// update takes a drain as it stands.
func (w *drainWatch) update(d *apiv1.Drain) error {
	if nstance.Executor(d.GetExecutor()) != nstance.ExecutorOperator {
		return w.end(d.GetInstance(), drainReassigned)
	}
	old, known := w.open[d.GetInstance()]
	change := drainRequested
	if known && old.GetGeneration() == d.GetGeneration() {
		if proto.Equal(old.GetDeadline(), d.GetDeadline()) && slices.EqualFunc(old.GetCauses(), d.GetCauses(), func(a, b *apiv1.Cause) bool { return proto.Equal(a, b) }) {
			return nil
		}
		change = drainTightened
	}
	if w.open == nil {
		w.open = map[string]*apiv1.Drain{}
	}
	w.open[d.GetInstance()] = d
	return w.print(DrainChange{Change: change, Drain: drainDocument{d}})
}

func (w *drainWatch) end(id, change string) error {
	d, known := w.open[id]
	if !known {
		return nil
	}
	delete(w.open, id)
	return w.print(DrainChange{Change: change, Drain: drainDocument{d}})
}

func drainAckCommand(env environment) *cobra.Command {
	var failed, dryRun bool
	req := &apiv1.AcknowledgeDrainedRequest{Outcome: string(nstance.OutcomeDrained)}
	cmd := &cobra.Command{
		Use: "ack INSTANCE", Short: "Acknowledge a drain as done, or as failed",
		Long: `Acknowledge a drain, after which the machine is deleted at once. With --failed the
failure is only recorded, and the deadline decides. It is accepted only while the
executor of that drain is an operator: see "drain watch".`,
		Args: instanceArgument,
	}
	f := cmd.Flags()
	f.Uint64Var(&req.Generation, "generation", 0, "of the drain, as drain watch prints it")
	f.BoolVar(&failed, "failed", false, "the drain failed")
	f.StringVar(&req.Message, "reason", "", "reason, for the journal")
	dryRunFlag(cmd, &dryRun)
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if req.GetGeneration() == 0 {
			return nstance.FieldError("--generation", "copy it from drain watch", "is missing")
		}
		if failed {
			req.Outcome = string(nstance.OutcomeFailed)
		}
		return r.withInstance(cmd.Context(), args[0], func(c *client, id nstance.InstanceID) error {
			req.Id = string(id)
			resp, err := c.acknowledge(cmd.Context(), req, dryRun)
			return out.result(document{resp}, seek(err), func(t *table) {
				if dryRun {
					t.say("drain %d of %s: %s would be accepted", req.GetGeneration(), id, req.GetOutcome())
					return
				}
				t.say("drain %d of %s: %s", req.GetGeneration(), id, req.GetOutcome())
			})
		})
	}
	return cmd
}

// acknowledge reports an outcome, or only checks that it would count.
func (c *client) acknowledge(ctx context.Context, req *apiv1.AcknowledgeDrainedRequest, dryRun bool) (*apiv1.AcknowledgeDrainedResponse, error) {
	if !dryRun {
		return c.AcknowledgeDrained(ctx, req)
	}
	resp, err := c.GetInstance(ctx, &apiv1.GetInstanceRequest{Id: req.GetId()})
	if err != nil {
		return nil, err
	}
	i, d := resp.GetInstance(), resp.GetInstance().GetDrain()
	switch {
	case d == nil || nstance.State(i.GetState()) != nstance.Draining:
		return nil, nstance.Errorf(nstance.NotFound, "instance %s is not draining", req.GetId())
	case d.GetGeneration() != req.GetGeneration():
		return nil, nstance.Errorf(nstance.Conflict, "instance %s is in drain %d, not %d", req.GetId(), d.GetGeneration(), req.GetGeneration())
	case nstance.Executor(d.GetExecutor()) != nstance.ExecutorOperator:
		return nil, nstance.Errorf(nstance.Denied, "the executor of drain %d of %s is %q", d.GetGeneration(), req.GetId(), d.GetExecutor())
	}
	return &apiv1.AcknowledgeDrainedResponse{}, nil
}

// The changes of a DrainChange.
const (
	drainRequested  = "requested"  // empty the machine, then acknowledge
	drainTightened  = "tightened"  // the same drain ends earlier, or has other causes
	drainCancelled  = "cancelled"  // the machine stays
	drainReassigned = "reassigned" // another executor empties it
	drainEnded      = "ended"      // it is being deleted
)

// A DrainChange is what drain watch prints.
type DrainChange struct {
	Change string        `json:"change"` // requested, tightened, cancelled, reassigned or ended
	Drain  drainDocument `json:"drain"`
}
