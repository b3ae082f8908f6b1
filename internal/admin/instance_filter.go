package admin

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/nearest"
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
var labelNames = []string{"market", "type", "agent", "reason"}

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

func (f instanceFilter) apply(list []Instance) []Instance {
	out := []Instance{}
	for _, i := range list {
		in := len(f.states) == 0 || slices.Contains(f.states, i.State)
		if in && !slices.ContainsFunc(f.labels, func(l string) bool { return !i.has(l) }) {
			out = append(out, i)
		}
	}
	return out
}

func (i Instance) has(label string) bool {
	name, value, ok := strings.Cut(label, "=")
	if !ok {
		return slices.Contains(strings.Split(remarks(i), ","), label)
	}
	switch name {
	case "market":
		return string(i.Market) == value
	case "type":
		return i.InstanceType == value
	case "agent":
		return connection(i.Connected) == value
	default:
		return i.Reason == value
	}
}

// sortInstances sorts by ID, or by something else first: the youngest, the
// latest report, the alphabet.
func sortInstances(list []Instance, by string) {
	slices.SortStableFunc(list, func(a, b Instance) int {
		var c int
		switch by {
		case "age":
			c = b.CreatedAt.Compare(a.CreatedAt)
		case "report":
			c = b.LastReportAt.Compare(a.LastReportAt)
		case "state":
			c = cmp.Compare(a.State, b.State)
		case "group":
			c = cmp.Compare(a.key().String(), b.key().String())
		}
		return cmp.Or(c, cmp.Compare(a.ID, b.ID))
	})
}
