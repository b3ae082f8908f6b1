package admin

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/nearest"
	"github.com/nstance-go/nstance/internal/wire"
)

// listedStates are the states that a list shows.
var listedStates = []nstance.State{
	nstance.Pending, nstance.Provisioning, nstance.Booting, nstance.Ready, nstance.Gone, nstance.Draining, nstance.Deleting,
}

// An instanceFilter chooses instances: those in one of the states, with all of the
// labels.
type instanceFilter struct {
	states []nstance.State
	labels []string
}

// labels of an instance that have values. A label without one is a condition.
var labelNames = []string{"market", "type", "zone", "agent", "version", "reason"}

func newInstanceFilter(states, labels []string) (f instanceFilter, err error) {
	for _, s := range states {
		if err := nearest.Among("--state", nstance.State(s), listedStates); err != nil {
			return f, err
		}
		f.states = append(f.states, nstance.State(s))
	}
	for _, l := range labels {
		if name, _, ok := strings.Cut(l, "="); ok {
			if err := nearest.Among("--label", name, labelNames); err != nil {
				return f, err
			}
		}
		f.labels = append(f.labels, l)
	}
	return f, nil
}

func (f instanceFilter) apply(list []*apiv1.Instance) (out []*apiv1.Instance) {
	for _, i := range list {
		in := len(f.states) == 0 || slices.Contains(f.states, nstance.State(i.GetState()))
		if in && !slices.ContainsFunc(f.labels, func(l string) bool { return !hasLabel(i, l) }) {
			out = append(out, i)
		}
	}
	return out
}

func hasLabel(i *apiv1.Instance, label string) bool {
	name, value, ok := strings.Cut(label, "=")
	if !ok {
		return slices.Contains(strings.Split(remarks(i), ","), label)
	}
	switch name {
	case "market":
		return i.GetMarket() == value
	case "type":
		return i.GetInstanceType() == value
	case "zone":
		return i.GetZone() == value
	case "version":
		return i.GetLastReport().GetSoftware() == value
	case "agent":
		return connection(i.GetConnected()) == value
	default:
		return i.GetReason() == value
	}
}

// sortInstances sorts by ID, or by something else first: the youngest, the
// latest report, the alphabet.
func sortInstances(list []*apiv1.Instance, by string) {
	slices.SortStableFunc(list, func(a, b *apiv1.Instance) int {
		var c int
		switch by {
		case "age":
			c = wire.TimeOf(b.GetCreatedAt()).Compare(wire.TimeOf(a.GetCreatedAt()))
		case "report":
			c = wire.TimeOf(b.GetLastReportAt()).Compare(wire.TimeOf(a.GetLastReportAt()))
		case "state":
			c = cmp.Compare(a.GetState(), b.GetState())
		case "group":
			c = cmp.Compare(wire.GroupKeyOf(a).String(), wire.GroupKeyOf(b).String())
		}
		return cmp.Or(c, cmp.Compare(a.GetId(), b.GetId()))
	})
}
