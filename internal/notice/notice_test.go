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
		"almost the same start":     {maintenance, func(n *nstance.Notice) { n.NotBefore = now.Add(time.Minute) }, true},
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

// TestRepeats: only what an operator or a drain would act upon is another form of a notice.
func TestRepeats(t *testing.T) {
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	known := nstance.Notice{Kind: nstance.Maintenance, Action: "stop", Source: "aws/maintenance", EventID: "m", NotBefore: now, Deadline: now, Machines: []string{"a"}}
	for name, c := range map[string]struct {
		change  func(*nstance.Notice)
		repeats bool
	}{
		"the same":                  {func(*nstance.Notice) {}, true},
		"detected later":            {func(n *nstance.Notice) { n.DetectedAt = now }, true},
		"two seconds less":          {func(n *nstance.Notice) { n.Deadline = now.Add(-2 * time.Second) }, true},
		"less time":                 {func(n *nstance.Notice) { n.Deadline = now.Add(-2*time.Second - 1) }, false},
		"more time":                 {func(n *nstance.Notice) { n.Deadline = now.Add(time.Hour) }, true},
		"without a deadline":        {func(n *nstance.Notice) { n.Deadline = time.Time{} }, true},
		"another start":             {func(n *nstance.Notice) { n.NotBefore = now.Add(1) }, false},
		"the start in another zone": {func(n *nstance.Notice) { n.NotBefore = now.In(time.FixedZone("CET", 3600)) }, true},
		"another action":            {func(n *nstance.Notice) { n.Action = "reboot" }, false},
		"another source":            {func(n *nstance.Notice) { n.Source = "aws/maintenance/eventbridge" }, false},
		"another kind":              {func(n *nstance.Notice) { n.Kind = nstance.Reclaim }, false},
		"another event":             {func(n *nstance.Notice) { n.EventID = "n" }, false},
		"other machines":            {func(n *nstance.Notice) { n.Machines = []string{"a", "b"} }, false},
		"withdrawn":                 {func(n *nstance.Notice) { n.Cancelled = true }, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := known
			c.change(&n)
			require.Equal(t, c.repeats, notice.Repeats(n, known))
		})
	}
	endless := known
	endless.Deadline = time.Time{}
	require.False(t, notice.Repeats(known, endless), "a first deadline")
}

func TestRestarts(t *testing.T) {
	for _, c := range []struct {
		kind     nstance.NoticeKind
		action   string
		restarts bool
	}{
		{nstance.Maintenance, "instance-reboot", true},
		{nstance.Maintenance, "", true},
		{nstance.Maintenance, "Redeploy", true},
		{nstance.Maintenance, "Freeze", false},
		{nstance.Maintenance, "MIGRATE_ON_HOST_MAINTENANCE", false},
		{nstance.Reclaim, "terminate", false},
	} {
		require.Equal(t, c.restarts, notice.Restarts(nstance.Notice{Kind: c.kind, Action: c.action}), c.action)
	}
}

func TestTakenBack(t *testing.T) {
	for _, c := range []struct {
		cause  nstance.LossCause
		market nstance.MarketType
		served bool
		taken  bool
	}{
		{nstance.LossReclaimed, nstance.OnDemand, false, true},
		{"", nstance.Spot, true, true},
		{"", nstance.Spot, false, false},
		{"", nstance.OnDemand, true, false},
		{"another", nstance.Spot, true, false},
	} {
		require.Equal(t, c.taken, notice.TakenBack(c.cause, c.market, c.served), c)
	}
}
