// Command plan asks what would be done next for machines that this program knows itself.
package main

import (
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// A vm is a machine as this program knows it.
type vm struct {
	name    string
	booted  time.Time
	evicted time.Time // when its cloud takes it; zero: it does not
}

func main() {
	now := time.Now()
	vms := []vm{{"web-a", now.Add(-time.Hour), time.Time{}}, {"web-b", now.Add(-time.Hour), now.Add(2 * time.Minute)}, {"web-c", now.Add(-time.Hour), time.Time{}}}
	view := plan.View{
		Group: nstance.Group{
			Key: nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: "web"}, Size: len(vms), DrainTimeout: 5 * time.Minute,
			Rollout: nstance.Rollout{MaxSurge: nstance.Count{N: 1}, HaltAfter: 2},
		},
		Hash: "v1:sha256:50d858e0",
	}
	for _, v := range vms {
		view.Members = append(view.Members, member(v, view.Hash, now))
	}
	for _, action := range plan.Plan(view, now).Actions {
		fmt.Println(action)
	}
}

func member(v vm, hash string, now time.Time) plan.Member {
	m := plan.Member{
		ID: nstance.InstanceID(v.name), State: nstance.Booting, HasMachine: true, Reason: plan.ReasonSize, Hash: hash,
		CreatedAt: v.booted, RegisteredAt: v.booted, GoodSince: v.booted,
	}
	if !v.evicted.IsZero() {
		m.Notices = []nstance.Notice{{Kind: nstance.Reclaim, Source: "own", EventID: v.name, DetectedAt: now, ReceivedAt: now, Deadline: v.evicted}}
	}
	return m
}
