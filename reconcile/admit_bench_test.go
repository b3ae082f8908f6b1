package reconcile

import (
	"fmt"
	"testing"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/place"
)

// BenchmarkShortage is how long the lock is held while 10,000 members are missing,
// and nine shapes are sold out or not (T15).
func BenchmarkShortage(b *testing.B) {
	for _, soldOut := range []bool{true, false} {
		b.Run(fmt.Sprintf("sold out=%t", soldOut), func(b *testing.B) {
			r, specs := newIdleShard(b, 1, 0)
			r.groups[specs[0].Key].history.FullAt = 10_000 // all are losses, which wait for no answer
			spec := specs[0]
			spec.Size, spec.Definition.InstanceTypes = 10_000, nil
			for i := range 9 {
				typ := fmt.Sprintf("type%d", i)
				spec.Definition.InstanceTypes = append(spec.Definition.InstanceTypes, typ)
				shape := place.Shape{InstanceType: typ, Market: nstance.OnDemand}
				if soldOut {
					r.places.Refused(shape, eventNow, eventNow)
				}
			}
			r.Observe(nstance.Desired{Groups: []nstance.Group{spec}})
			processQueue(r)
			var longest time.Duration
			for b.Loop() {
				began := time.Now()
				r.process(spec.Key)
				held := time.Since(began)
				began = time.Now()
				r.admitDue()
				longest = max(longest, held, time.Since(began))
			}
			b.ReportMetric(float64(longest.Microseconds()), "longest-µs")
			b.ReportMetric(float64(len(r.members)), "members")
		})
	}
}
