package admission_test

import (
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/admission"
	"github.com/nstance-go/nstance/reconcile/internal/place"
)

// The queue grants losses first, and uses the next type once the first one is sold out.
func Example() {
	places := place.New()
	q := admission.New(places)
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	request := admission.Request{Count: 2, Request: place.Request{InstanceTypes: []string{"m5.large", "m5a.large"}, Market: nstance.Market{Type: nstance.Spot}}}
	web, batch := nstance.GroupKey{Tenant: "a", Group: "web"}, nstance.GroupKey{Tenant: "b", Group: "batch"}

	request.Class = admission.Growth
	q.Demand(batch, request)
	request.Class = admission.Loss
	q.Demand(web, request)

	unlimited := func() (bool, time.Time) { return true, time.Time{} }
	pass := func() {
		q.Pass(now, 10, false, unlimited, func(g admission.Grant) {
			fmt.Println(g.Group.Group, g.Shape.InstanceType)
			now = now.Add(time.Second)
			places.Ended(g.Shape, now)
			if g.Shape.InstanceType == "m5.large" {
				places.Refused(g.Shape, now.Add(-time.Second), now)
			} else {
				places.Accepted(g.Shape, now.Add(-time.Second), now)
			}
		})
	}
	pass()
	// Output:
	// web m5.large
	// web m5a.large
	// batch m5a.large
	// batch m5a.large
}
