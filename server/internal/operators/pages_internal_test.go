package operators

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// listed returns a part of a list of instances, of which that named gone is left out.
func listed(limit int32, page string, ids ...string) (out []string, next string, err error) {
	req := &apiv1.ListInstancesRequest{Limit: limit, Page: page}
	all, next, err := pageOf(req, ids, func(id string) string { return id }, func(id string) *apiv1.Instance {
		if id == "gone" {
			return nil
		}
		return &apiv1.Instance{Id: id}
	})
	for _, m := range all {
		out = append(out, m.GetId())
	}
	return out, next, err
}

func TestPages(t *testing.T) {
	huge := strings.Repeat("x", maxAnswer)
	for name, c := range map[string]struct {
		limit int32
		page  string
		ids   []string
		want  []string
		next  string
	}{
		"all of a list":                 {0, "", []string{"a", "b", "c"}, []string{"a", "b", "c"}, ""},
		"as many as there are":          {3, "", []string{"a", "b", "c"}, []string{"a", "b", "c"}, ""},
		"the first":                     {2, "", []string{"a", "b", "c"}, []string{"a", "b"}, "b"},
		"the next":                      {2, "b", []string{"a", "b", "c"}, []string{"c"}, ""},
		"after one that is gone":        {1, "b", []string{"a", "c"}, []string{"c"}, ""},
		"without what is deleted":       {2, "", []string{"a", "gone", "z"}, []string{"a", "z"}, ""},
		"a page that ends with such":    {1, "", []string{"a", "gone", "z"}, []string{"a"}, "gone"},
		"no more than one answer holds": {0, "", []string{"a", "b" + huge, "c"}, []string{"a"}, "a"},
		"one in any case":               {0, "a", []string{"a", "b" + huge, "c"}, []string{"b" + huge}, "b" + huge},
	} {
		t.Run(name, func(t *testing.T) {
			got, next, err := listed(c.limit, c.page, c.ids...)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			require.Equal(t, c.next, next)
		})
	}
	_, _, err := listed(-1, "")
	require.ErrorIs(t, err, nstance.Invalid)
}

// TestAnswersAreBounded: what does not fit into one answer is left out, and counted.
func TestAnswersAreBounded(t *testing.T) {
	half := &apiv1.Event{Reason: strings.Repeat("x", maxAnswer/2-4)} // with its tag and length
	first, last := &apiv1.Event{Reason: "first"}, &apiv1.Event{Reason: "last"}
	require.Equal(t, []*apiv1.Event{first, half}, fitting([]*apiv1.Event{first, half, half, last}))
	require.Equal(t, []*apiv1.Event{half, last}, fittingEnd([]*apiv1.Event{first, half, half, last}), "the latest stay")
	require.Len(t, fitting([]*apiv1.Event{half, half}), 2)
	require.Len(t, fittingEnd([]*apiv1.Event{half, half}), 2)

	group := &apiv1.GroupPlan{}
	for i := range maxPlanned + 2 {
		group.Instances = append(group.Instances, &apiv1.InstancePlan{Id: fmt.Sprint(i)})
	}
	for i := range maxPlannedFields + 3 {
		group.Fields = append(group.Fields, &apiv1.FieldChange{Path: fmt.Sprint(i), Before: strings.Repeat("b", maxPlannedText), After: strings.Repeat("a", maxPlannedText+1)})
	}
	large := &apiv1.GroupPlan{Group: strings.Repeat("x", maxAnswer)}
	resp := fitPlan(&apiv1.PlanResponse{Groups: []*apiv1.GroupPlan{group, large, {}}})
	require.Len(t, resp.GetGroups(), 1)
	require.EqualValues(t, 2, resp.GetGroupsOmitted())
	require.Len(t, group.GetInstances(), maxPlanned)
	require.EqualValues(t, 2, group.GetInstancesOmitted())
	require.Len(t, group.GetFields(), maxPlannedFields+1)
	require.Equal(t, "and 3 more", group.GetFields()[maxPlannedFields].GetPath())
	require.Len(t, group.GetFields()[0].GetBefore(), maxPlannedText)
	require.Equal(t, strings.Repeat("a", maxPlannedText)+fmt.Sprintf("... (%d bytes)", maxPlannedText+1), group.GetFields()[0].GetAfter())

	var problems []string
	for i := range maxProblems + 1 {
		problems = append(problems, fmt.Sprint(i))
	}
	require.Len(t, fitProblems(problems[:maxProblems]), maxProblems)
	require.Equal(t, append(problems[:maxProblems:maxProblems], "and 1 more"), fitProblems(problems))
	wide := strings.Repeat("x", maxProblemBytes/2)
	require.Equal(t, []string{wide, wide, "and 2 more"}, fitProblems([]string{wide, wide, "x", "y"}))
}

// TestReasons: what is kept of one names the caller in any case.
func TestReasons(t *testing.T) {
	c := caller{Identity: nstance.Identity{Subject: "eve"}}
	require.Equal(t, "asked for by eve", c.because(""))
	require.Equal(t, "busy (asked for by eve)", c.because("busy"))
	long := c.because(strings.Repeat("x", longestReason))
	require.Len(t, long, longestReason)
	require.True(t, strings.HasSuffix(long, "x (asked for by eve)"))
	c.Subject = strings.Repeat("s", longestReason)
	require.Contains(t, c.because("busy"), c.Subject)
}
