package reconcile

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLaneOrder: what came first is done first, so that nothing starves.
func TestLaneOrder(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	l := newLane(1)
	var done []int
	for i := range 5 {
		l.submit(func(context.Context) {
			if done = append(done, i); len(done) == 5 {
				stop()
			}
		})
	}
	l.run(ctx)
	require.Equal(t, []int{0, 1, 2, 3, 4}, done)
}
