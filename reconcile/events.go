package reconcile

import (
	"context"
	"iter"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/feed"
)

// Events yields the events that happen after this call, in order, until ctx ends. The
// loop may take its time and call anything; several loops may run at once. One that
// falls more than 1,024 events behind goes on with the latest 1,024: Event.Seq, which
// otherwise grows by one, shows the gap. What the missed ones were about is in Instances.
func (r *Reconciler) Events(ctx context.Context) iter.Seq[nstance.Event] {
	at := r.events.Last()
	return func(yield func(nstance.Event) bool) {
		for ctx.Err() == nil {
			for item, err := range r.events.Subscribe(ctx, at, feed.View[nstance.Event]{}) {
				if err != nil { // it fell behind
					at = r.events.First()
					break
				}
				at = item.Seq
				e := item.Value
				if e.Seq = item.Seq; item.Kind == feed.Event && !yield(e) {
					return
				}
			}
		}
	}
}
