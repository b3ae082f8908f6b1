// Package notice compares notices and says what they mean: one rule each for agents, servers
// and what they record.
package notice

import (
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
)

// deadlineSlack is how far repeated measurements of one deadline may differ:
// clouds give whole seconds, and messages take time.
const deadlineSlack = 2 * time.Second

// Tightens reports whether n leaves less time than known, its earlier form.
func Tightens(n, known nstance.Notice) bool {
	return !n.Deadline.IsZero() && (known.Deadline.IsZero() || n.Deadline.Before(known.Deadline.Add(-deadlineSlack)))
}

// Repeats reports whether n adds nothing to known, an earlier form of it: deadlines only
// tighten, and the present measurement of an unchanged deadline differs a little from the
// earlier one.
func Repeats(n, known nstance.Notice) bool {
	return n.EventID == known.EventID && n.Kind == known.Kind && n.Action == known.Action && n.Source == known.Source &&
		n.Cancelled == known.Cancelled && n.NotBefore.Equal(known.NotBefore) && slices.Equal(n.Machines, known.Machines) && !Tightens(n, known)
}

// eventSlack is how far two sources may differ on the time of one event: EC2's event bus
// has no time of the interruption, only that of the warning. Two interruptions of one
// instance are at least as far apart as EC2's warning is early, two minutes.
const eventSlack = time.Minute

// SameEvent reports whether n and known, of two sources for the same kind of
// announcement, announce one event of a machine: aws/spot by the machine's agent, and
// aws/spot/eventbridge by the provider. A cloud's event IDs differ by source. The end of
// a notice, Cancelled, is the same event as the notice.
func SameEvent(n, known nstance.Notice) bool {
	return n.Kind == known.Kind && n.Source != known.Source && announcement(n) == announcement(known) && !Rehearsed(n) &&
		n.NotBefore.Sub(known.NotBefore).Abs() <= eventSlack &&
		(n.Deadline.IsZero() || known.Deadline.IsZero() || n.Deadline.Sub(known.Deadline).Abs() <= eventSlack)
}

// announcement returns the cloud and what it announces, without the way.
func announcement(n nstance.Notice) string {
	cloud, rest, _ := strings.Cut(n.Source, "/")
	what, _, _ := strings.Cut(rest, "/")
	return cloud + "/" + what
}

// Restarts reports whether n is maintenance that ends or restarts the machine, as far as
// it says. Live migration (Compute Engine's MIGRATE_ON_HOST_MAINTENANCE) and a
// freeze of seconds (Azure's Freeze) do not.
func Restarts(n nstance.Notice) bool {
	return n.Kind == nstance.Maintenance && n.Action != "Freeze" && !strings.HasPrefix(n.Action, "MIGRATE")
}

// RehearsalSource begins the source of a notice that is rehearsed: the cloud takes
// nothing back.
const RehearsalSource = "rehearsal/"

// Rehearsed reports whether n was made for a rehearsal.
func Rehearsed(n nstance.Notice) bool { return strings.HasPrefix(n.Source, RehearsalSource) }

// TakenBack reports whether a machine that ended by itself, without a notice, counts as
// reclaimed. Spot capacity that served and ends without a known cause does; any other machine
// may have been powered off from inside, or was never made.
func TakenBack(cause nstance.LossCause, market nstance.MarketType, served bool) bool {
	return cause == nstance.LossReclaimed || cause == "" && market == nstance.Spot && served
}
