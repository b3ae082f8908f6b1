package notice_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/notice"
)

// TestSameEvent: what two sources announce is one event if kind, cloud and time fit.
func TestSameEvent(t *testing.T) {
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	agent := nstance.Notice{Kind: nstance.Reclaim, Action: "terminate", Source: "aws/spot", EventID: "a", Deadline: now}
	maintenance := nstance.Notice{Kind: nstance.Maintenance, Action: "instance-stop", Source: "aws/maintenance", EventID: "m", NotBefore: now}
	for name, c := range map[string]struct {
		known  nstance.Notice
		change func(*nstance.Notice)
		same   bool
	}{
		"another source":            {agent, func(*nstance.Notice) {}, true},
		"almost the same time":      {agent, func(n *nstance.Notice) { n.Deadline = now.Add(time.Minute) }, true},
		"without a time":            {agent, func(n *nstance.Notice) { n.Deadline = time.Time{} }, true},
		"its withdrawal":            {agent, func(n *nstance.Notice) { n.Cancelled = true }, true},
		"another word for it":       {maintenance, func(n *nstance.Notice) { n.Action = "AWS_EC2_INSTANCE_STOP_SCHEDULED" }, true},
		"the next interruption":     {agent, func(n *nstance.Notice) { n.Deadline = now.Add(2 * time.Minute) }, false},
		"the same source":           {agent, func(n *nstance.Notice) { n.Source = agent.Source }, false},
		"another announcement":      {agent, func(n *nstance.Notice) { n.Source = "aws/autoscaling" }, false},
		"another cloud":             {agent, func(n *nstance.Notice) { n.Source = "gcp/spot/eventbridge" }, false},
		"another kind":              {agent, func(n *nstance.Notice) { n.Kind = nstance.Rebalance }, false},
		"another start":             {maintenance, func(n *nstance.Notice) { n.NotBefore = now.Add(time.Hour) }, false},
		"maintenance without start": {maintenance, func(n *nstance.Notice) { n.NotBefore = time.Time{} }, false},
		"rehearsals":                {nstance.Notice{Kind: nstance.Reclaim, Source: "rehearsal/eve", Deadline: now}, func(n *nstance.Notice) { n.Source = "rehearsal/eve/2" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := c.known
			n.EventID, n.Source = "b", n.Source+"/eventbridge"
			c.change(&n)
			require.Equal(t, c.same, notice.SameEvent(n, c.known))
			require.Equal(t, c.same, notice.SameEvent(c.known, n))
		})
	}
}
