package reconcile

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLaneOrder: steps run in order of arrival, so that none starves.
func TestLaneOrder(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	l := newLane(1)
	var submitted, performed []*member
	for range 5 {
		m := &member{}
		submitted = append(submitted, m)
		l.submit(m)
	}
	l.run(ctx, func(_ context.Context, m *member) {
		if performed = append(performed, m); len(performed) == len(submitted) {
			stop()
		}
	})
	require.Len(t, performed, len(submitted))
	for i, m := range submitted {
		require.Same(t, m, performed[i])
	}
}
