package nodedrain_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// TestDrainComesAgain: a drain that is requested again after it was stopped, for another executor,
// because it ended or was withdrawn, is carried out anew, and acknowledged. Without an API server it
// ends at its deadline.
func TestDrainComesAgain(t *testing.T) {
	const far, soon, past = time.Hour, 100 * time.Millisecond, -time.Second
	type event struct {
		typ        nstance.DrainEventType
		generation uint64
		left       time.Duration
		executor   nstance.Executor
	}
	operator, agent := nstance.ExecutorOperator, nstance.ExecutorAgent
	for name, c := range map[string]struct {
		events []event
		want   uint64 // generation that is acknowledged
	}{
		"once":                          {[]event{{nstance.DrainRequested, 1, soon, operator}}, 1},
		"tightened":                     {[]event{{nstance.DrainRequested, 1, far, operator}, {nstance.DrainTightened, 1, soon, operator}}, 1},
		"reassigned, and back":          {[]event{{nstance.DrainRequested, 1, far, operator}, {nstance.DrainReassigned, 1, far, agent}, {nstance.DrainReassigned, 1, soon, operator}}, 1},
		"ended, and requested again":    {[]event{{nstance.DrainRequested, 1, far, operator}, {nstance.DrainEnded, 1, far, operator}, {nstance.DrainRequested, 1, soon, operator}}, 1},
		"withdrawn, and again":          {[]event{{nstance.DrainRequested, 1, far, operator}, {nstance.DrainCancelled, 1, far, operator}, {nstance.DrainRequested, 1, soon, operator}}, 1},
		"withdrawn, and anew":           {[]event{{nstance.DrainRequested, 1, far, operator}, {nstance.DrainCancelled, 1, far, operator}, {nstance.DrainRequested, 2, soon, operator}}, 2},
		"a newer one":                   {[]event{{nstance.DrainRequested, 1, far, operator}, {nstance.DrainRequested, 2, soon, operator}}, 2},
		"given to the operator later":   {[]event{{nstance.DrainRequested, 1, far, agent}, {nstance.DrainReassigned, 1, soon, operator}}, 1},
		"another follows one that ends": {[]event{{nstance.DrainRequested, 1, past, operator}, {nstance.DrainRequested, 2, soon, operator}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &script{acks: make(chan nstance.Ack, 8), tenants: make(chan nstance.TenantID, 1)}
			now := time.Now()
			for i, e := range c.events {
				s.events = append(s.events, nstance.DrainEvent{Seq: nstance.Seq(i + 1), Type: e.typ, Drain: nstance.Drain{
					Instance: "web-1", Generation: e.generation, Deadline: now.Add(e.left), Executor: e.executor,
				}})
			}
			d, err := nodedrain.New(&rest.Config{Host: "https://127.0.0.1:1"}, s, nil)
			require.NoError(t, err)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- d.Run(ctx) }()
			select {
			case ack := <-s.acks:
				require.Equal(t, c.want, ack.Generation)
				require.Equal(t, nstance.OutcomeFailed, ack.Outcome)
			case <-time.After(time.Minute):
				t.Error("no drain was carried out")
			}
			stop()
			require.NoError(t, <-ended)
			require.Empty(t, s.acks, "once")
		})
	}
}
