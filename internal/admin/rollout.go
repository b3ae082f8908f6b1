package admin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/duration"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/wire"
)

// The states of a Rollout.
const (
	rolloutDone   = "done"
	rolloutMoving = "moving"
	rolloutHeld   = "held"   // paused or frozen: an operator must resume it
	rolloutHalted = "halted" // too many replacements failed
)

func groupRolloutCommand(env environment) *cobra.Command {
	var tenant string
	var interval, wait time.Duration
	cmd := &cobra.Command{
		Use: "rollout GROUP", Short: "Watch a group's rollout until it is done or halted",
		Long: `Watch a group's rollout until every member is ready and of the desired
definition, which is exit code 0, or until it is halted, which is exit code 6. On a
terminal the view is refreshed; elsewhere each change is a line.`,
		Args: arguments("GROUP"),
	}
	tenantFlag(cmd, &tenant)
	cmd.Flags().Var(duration.NewFlag(&interval, time.Second), "interval", "time between two views; many members are listed less often")
	cmd.Flags().Var(duration.NewFlag(&wait, 0), "wait", "how long to watch at most, then exit code 5; 0 for as long as it takes")
	r, out := newRemote(cmd, env), newOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if interval < 50*time.Millisecond {
			return nstance.FieldError("--interval", "use 50ms or more", "is %s", interval)
		}
		w := &rolloutWatch{link: link{r: r}, out: out, tenant: nstance.TenantID(tenant), groups: groupWatch{name: args[0]}, interval: interval, limit: wait, began: time.Now()}
		return w.run(cmd.Context())
	}
	return cmd
}

// A rolloutWatch follows one group, across changes of leader.
type rolloutWatch struct {
	link     link
	out      *output
	tenant   nstance.TenantID
	groups   groupWatch
	interval time.Duration
	limit    time.Duration
	began    time.Time
	members  []*apiv1.Instance // as last listed
	listed   time.Time         // when that was
	changed  bool              // the group has changed since
	drawn    int               // lines on the terminal that the next view replaces
	lastLine string            // where standard output is no terminal
}

// A Rollout is what group rollout prints: the progress of a group.
type Rollout struct {
	Time   time.Time     `json:"time"`
	State  string        `json:"state"`            // moving, held, halted or done
	Reason string        `json:"reason,omitempty"` // why it is held or halted
	Fresh  int32         `json:"fresh"`            // ready members of the desired definition
	Group  groupDocument `json:"group"`
}

// run returns nil when the rollout is done, or when ctx ends.
func (w *rolloutWatch) run(ctx context.Context) error {
	defer w.link.disconnect()
	if w.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = withLimit(ctx, w.limit)
		defer cancel()
	}
	for {
		done, err := w.watchConnection(ctx)
		switch {
		case done:
			return nil
		case errors.Is(context.Cause(ctx), errLimit):
			return fault(nstance.Unavailable, nil, "repeat it to go on watching", fmt.Sprintf("the rollout is not done after %s", w.limit))
		case ctx.Err() != nil:
			return nil
		case err == nil:
			continue
		}
		wait, err := w.reconnectDelay(err)
		if err != nil {
			return err
		}
		sleep.For(ctx, wait)
	}
}

// watchConnection watches over one connection. It ends when the rollout is done, and
// without an error to reconnect with a new certificate.
func (w *rolloutWatch) watchConnection(ctx context.Context) (done bool, err error) {
	if err := w.link.connect(ctx); err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	arrivals, serve, err := w.groups.open(ctx, w.link.client)
	if err != nil {
		return false, err
	}
	wg.Go(serve)
	tick := time.NewTicker(w.interval)
	defer tick.Stop()
	for !w.link.renewalDue() {
		select {
		case h := <-arrivals:
			if h.err != nil {
				return false, h.err
			}
			w.link.recordSuccess()
			if r := h.msg.GetRenewal(); r != nil {
				w.link.requestRenewal(r.GetWithin().AsDuration())
			}
			if !w.groups.handleMessage(h.msg) {
				continue
			}
			w.changed = true
		case <-tick.C:
		case <-ctx.Done():
			return false, ctx.Err()
		}
		if done, err := w.refresh(ctx); done || err != nil {
			return done, err
		}
	}
	return false, nil
}

// refresh shows the current rollout, and reports whether it is done.
func (w *rolloutWatch) refresh(ctx context.Context) (done bool, err error) {
	if !w.groups.synced {
		return false, nil
	}
	g, err := w.groups.group(w.tenant)
	if err != nil {
		return false, err
	}
	if w.changed && time.Since(w.listed) >= w.listInterval() {
		if w.members, err = w.link.client.instances(ctx, nstance.TenantID(g.GetTenant()), g.GetGroup()); err != nil {
			return false, err
		}
		w.members = slices.DeleteFunc(w.members, func(i *apiv1.Instance) bool { return i.GetOnDemand() })
		w.listed, w.changed = time.Now(), false
	}
	s := rolloutOf(g, w.members, time.Now().UTC())
	if err := w.show(s, w.members); err != nil || s.State == rolloutDone {
		return err == nil, err
	}
	if s.State == rolloutHalted {
		return false, w.halted(s)
	}
	return false, nil
}

// listInterval is how long a list of the members is used: a list of ten thousand has
// ten megabytes.
func (w *rolloutWatch) listInterval() time.Duration {
	return max(w.interval, time.Duration(len(w.members))*time.Millisecond)
}

func (w *rolloutWatch) halted(s Rollout) error {
	return fault(nstance.Conflict, nil, "correct the definition, or go back: nstance-admin group rollback "+s.Group.GetGroup(), "the rollout is halted: "+s.Reason)
}

// reconnectDelay returns how long to wait after a broken connection, or the error if
// a retry cannot help.
func (w *rolloutWatch) reconnectDelay(err error) (time.Duration, error) {
	wait, again := w.link.connectionLost(err)
	if !again {
		return 0, err
	}
	w.link.r.stderr.note("connection lost, trying again in %s: %v", wait.Round(time.Millisecond), err)
	w.drawn = 0
	return wait, nil
}

// rolloutOf returns the progress of a group.
func rolloutOf(g *apiv1.Group, members []*apiv1.Instance, now time.Time) Rollout {
	s := Rollout{Time: now, State: rolloutMoving, Group: groupDocument{g}}
	for _, i := range members {
		if nstance.State(i.GetState()) == nstance.Ready && !i.GetDrifted() {
			s.Fresh++
		}
	}
	// The list may be older than the counts, which bound what is true of it now.
	s.Fresh = max(0, g.GetReady()-g.GetStale(), min(s.Fresh, g.GetReady(), g.GetReady()+g.GetBooting()-g.GetStale()))
	switch {
	case g.GetHalted() != "":
		s.State, s.Reason = rolloutHalted, g.GetHalted()
	case g.GetStale() == 0 && g.GetBooting() == 0 && g.GetLeaving() == 0 && s.Fresh >= g.GetSize():
		s.State = rolloutDone
	case g.GetPaused() || g.GetFrozen():
		s.State, s.Reason = rolloutHeld, holds(g.GetHolds())
	}
	return s
}

// show prints the rollout if anything has changed, or draws it anew.
func (w *rolloutWatch) show(s Rollout, members []*apiv1.Instance) error {
	if w.out.form == formTable && isTerminal(w.out.stdout()) {
		return w.draw(s, members)
	}
	line := s.line()
	if line == w.lastLine {
		return nil
	}
	w.lastLine = line
	if w.out.form != formTable {
		return w.out.line(s)
	}
	return w.out.write([]byte(stamp(s.Time) + "  " + printable(line) + "\n"))
}

// line returns the rollout in one line, without members.
func (s Rollout) line() string {
	g := s.Group
	out := fmt.Sprintf("%s  %d of %d fresh and ready, %d stale, %d booting, %d leaving", s.State, s.Fresh, g.GetSize(), g.GetStale(), g.GetBooting(), g.GetLeaving())
	if why := cmp.Or(holds(g.GetHolds()), s.Reason); why != "" {
		out += "  " + why
	}
	return out
}

// barWidth is how many characters a progress bar has.
const barWidth = 40

// shownMembers is how many members are drawn at most, those in motion first.
const shownMembers = 15

// draw replaces the last drawing.
func (w *rolloutWatch) draw(s Rollout, members []*apiv1.Instance) error {
	t := &table{now: time.Now()}
	full := barWidth
	if size := int(s.Group.GetSize()); size > 0 {
		full = min(barWidth, barWidth*int(s.Fresh)/size)
	}
	t.say("group %s  [%s%s]  %s", wire.GroupKeyOf(s.Group), strings.Repeat("#", full), strings.Repeat(".", barWidth-full),
		short(time.Since(w.began)))
	t.say("%s", s.line())
	t.say("")
	t.row("ID", "STATE", "DEFINITION", "AGE")
	slices.SortStableFunc(members, func(a, b *apiv1.Instance) int { return cmp.Compare(motionRank(a), motionRank(b)) })
	for _, i := range members[:min(shownMembers, len(members))] {
		definition := "desired"
		if i.GetDrifted() {
			definition = "older"
		}
		t.row(i.GetId(), i.GetState(), definition, t.age(i.GetCreatedAt()))
	}
	if more := len(members) - shownMembers; more > 0 {
		t.say("and %d more", more)
	}
	var b bytes.Buffer
	if w.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\x1b[J", w.drawn) // up, and clear what is below
	}
	w.drawn = len(t.lines)
	if err := t.flush(&b); err != nil {
		return err
	}
	return w.out.write(b.Bytes())
}

// motionRank sorts members: those in motion, those to be replaced, the others.
func motionRank(i *apiv1.Instance) int {
	switch {
	case nstance.State(i.GetState()) != nstance.Ready:
		return 0
	case i.GetDrifted():
		return 1
	}
	return 2
}
