package plan_test

import (
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// Plan is called for a full group, before and after the cloud announces the reclaim of
// one machine in two minutes. The drain ends ten seconds before the reclaim, and the
// replacement does not wait for it.
func ExamplePlan() {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	view := plan.View{
		Group: nstance.Group{
			Key:          nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "web"},
			Size:         3,
			DrainTimeout: 5 * time.Minute,
			Rollout:      nstance.Rollout{MaxSurge: nstance.Count{N: 1}, HaltAfter: 2},
		},
		Hash: "v1:sha256:50d858e0",
	}
	for _, id := range []nstance.InstanceID{"web-a", "web-b", "web-c"} {
		view.Members = append(view.Members, plan.Member{
			ID: id, State: nstance.Booting, HasMachine: true, Reason: plan.ReasonSize, Hash: view.Hash,
			CreatedAt: now.Add(-time.Hour), RegisteredAt: now.Add(-59 * time.Minute), GoodSince: now.Add(-59 * time.Minute),
		})
	}
	fmt.Println("actions before:", len(plan.Plan(view, now).Actions))

	view.Members[1].Notices = []nstance.Notice{{
		Kind: nstance.Reclaim, Action: "terminate", Source: "aws/spot", EventID: "e1",
		DetectedAt: now, Deadline: now.Add(2 * time.Minute),
	}}
	for _, action := range plan.Plan(view, now).Actions {
		fmt.Println(action)
	}
	// Output:
	// actions before: 0
	// start_drain web-b until 2026-03-01T12:01:50Z
	// create (replace) for web-b
}
