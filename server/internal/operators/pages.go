package operators

import (
	"fmt"
	"sort"

	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/clip"
)

// Bounds on one answer: gRPC's own limit for a message is 4 MiB.
const (
	maxAnswer = 2 << 20 // bytes of a page

	maxPlanned       = 1000     // instances of one group in a plan
	maxPlannedFields = 200      // of one group in a plan
	maxPlannedText   = 1 << 10  // bytes of a field's value in a plan
	maxProblems      = 1000     // in a shard's status
	maxProblemBytes  = 64 << 10 // of all problems in a shard's status
)

// A pageRequest asks for a part of a list.
type pageRequest interface {
	GetLimit() int32
	GetPage() string
}

// pageOf returns the part of a list that was asked for, as messages, and what to
// ask for next; empty: nothing follows. The list is sorted by key, which must not
// be empty. message may leave an item out, with nil.
func pageOf[T any, M interface {
	comparable
	proto.Message
}](req pageRequest, list []T, key func(T) string, message func(T) M) (out []M, next string, err error) {
	var none M
	limit := int(req.GetLimit())
	if limit < 0 {
		return nil, "", nstance.FieldError("limit", "use 1 or more, or leave it out", "%d is out of range", limit)
	}
	first := sort.Search(len(list), func(i int) bool { return key(list[i]) > req.GetPage() })
	size := 0
	for i, item := range list[first:] {
		m := message(item)
		if m == none {
			continue
		}
		if size += proto.Size(m); len(out) > 0 && (len(out) == limit || size > maxAnswer) {
			return out, key(list[first+i-1]), nil
		}
		out = append(out, m)
	}
	return out, "", nil
}

// fitting returns as much of a list as one answer holds, from its beginning.
func fitting[M proto.Message](list []M) []M {
	size := 0
	for i, m := range list {
		if size += proto.Size(m); size > maxAnswer {
			return list[:i]
		}
	}
	return list
}

// fittingEnd is fitting from the end of a list.
func fittingEnd[M proto.Message](list []M) []M {
	size := 0
	for i := len(list) - 1; i >= 0; i-- {
		if size += proto.Size(list[i]); size > maxAnswer {
			return list[i+1:]
		}
	}
	return list
}

// fitPlan cuts an answer to what one message holds, and counts what it leaves out.
func fitPlan(resp *apiv1.PlanResponse) *apiv1.PlanResponse {
	for _, g := range resp.GetGroups() {
		if n := len(g.GetInstances()); n > maxPlanned {
			g.Instances, g.InstancesOmitted = g.GetInstances()[:maxPlanned], int32(n-maxPlanned)
		}
		if n := len(g.GetFields()); n > maxPlannedFields {
			g.Fields = append(g.GetFields()[:maxPlannedFields], &apiv1.FieldChange{Path: fmt.Sprintf("and %d more", n-maxPlannedFields)})
		}
		for _, f := range g.GetFields() {
			f.Before, f.After = cutValue(f.GetBefore()), cutValue(f.GetAfter())
		}
	}
	all := resp.GetGroups()
	resp.Groups = fitting(all)
	resp.GroupsOmitted = int32(len(all) - len(resp.GetGroups()))
	return resp
}

// cutValue shortens a text to what a plan shows of it.
func cutValue(text string) string {
	if len(text) <= maxPlannedText {
		return text
	}
	return fmt.Sprintf("%s... (%d bytes)", clip.Text(text, maxPlannedText), len(text))
}

// fitProblems returns as many problems as a status holds.
func fitProblems(all []string) []string {
	size := 0
	for i, p := range all {
		if size += len(p); i == maxProblems || size > maxProblemBytes {
			return append(all[:i:i], fmt.Sprintf("and %d more", len(all)-i))
		}
	}
	return all
}
