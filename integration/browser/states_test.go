//go:build browser

package browser_test

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wave"
	"github.com/nstance-go/nstance/internal/web"
)

// states are what a shard may look like, by the name of its picture.
func states() map[string]func() web.Status {
	return map[string]func() web.Status{"idle": idle, "reclaim": reclaim, "wave": massReclaim, "rollout": rollout, "shortage": shortage}
}

// idle is a shard of three groups in which nothing happens.
func idle() web.Status { return past(estate(24, "web", "api", "workers")) }

// reclaim is one in which a machine is taken.
func reclaim() web.Status {
	s := idle()
	take(&s, 1, 30*time.Second)
	return s
}

// massReclaim is a larger one that loses 120 machines at once.
func massReclaim() web.Status {
	s := past(estate(360, "web", "api", "workers"))
	take(&s, 120, 52*time.Second)
	alarmed := time.Now().Add(-50 * time.Second)
	s.Attention = []web.Attention{
		{Kind: "alarm", Count: 1, Subject: "group default/web", Since: alarmed, Until: alarmed.Add(time.Hour), Why: "notices for 120 of 120 members", Remedy: "nstance-admin events --type alarm"},
		{Kind: "short", Count: 1, Subject: "group default/web", Since: alarmed, Why: "109 of 120 members are ready, 11 booting, 120 leaving", Remedy: "nstance-admin events --group web"},
	}
	return s
}

// rollout is one whose second group gets another definition.
func rollout() web.Status {
	s := idle()
	g := &s.Groups[1]
	g.Stale, g.Booting, g.Leaving, g.States = 5, 1, 1, map[string]int{"ready": 7, "draining": 1, "booting": 1}
	s.Totals.Stale = 5
	n := 0
	for i := range s.Instances {
		if row := &s.Instances[i]; row.Group == "api" && n < 5 {
			if row.Stale = true; n == 0 {
				row.State, row.Deadline = "draining", time.Now().Add(100*time.Second)
			}
			n++
		}
	}
	return s
}

// shortage is one whose third group finds no capacity.
func shortage() web.Status {
	s := idle()
	until, since := time.Now().Add(95*time.Second), time.Now().Add(-5*time.Minute)
	why := "InsufficientInstanceCapacity: m7g.large spot in eu-1a, eu-1b, eu-1c"
	g := &s.Groups[2]
	g.Ready, g.Booting, g.States = 5, 3, map[string]int{"ready": 5, "pending": 3}
	g.Holds = []web.Hold{{Kind: "capacity", Reason: why, Since: since, Until: until}}
	s.Totals.Ready, s.Totals.Booting = 21, 3
	n := 0
	for i := range s.Instances {
		if row := &s.Instances[i]; row.Group == "workers" && n < 3 {
			row.State, row.Connected, row.ProviderID, row.ReportedAt = "pending", false, "", time.Time{}
			n++
		}
	}
	s.Attention = []web.Attention{
		{Kind: "capacity", Count: 1, Subject: "group default/workers", Since: since, Until: until, Why: why, Remedy: "permit more instance types, subnets or markets"},
		{Kind: "short", Count: 1, Subject: "group default/workers", Since: since, Why: "5 of 8 members are ready, 3 booting", Remedy: "nstance-admin events --group workers"},
		{Kind: "config_refused", Count: 2, Since: since.Add(-time.Hour)},
	}
	return s
}

// estate is a shard with members in groups of equal size.
func estate(members int, groups ...string) web.Status {
	now := time.Now()
	s := web.Status{
		Version: "0.3.0", Cluster: "prod", Shard: "eu1a", Leader: true, Epoch: 7, Since: now.Add(-50 * time.Hour), LeaderAddress: "10.0.0.1:8993",
		Standbys: []web.Standby{{Address: "10.0.0.2:8993", Version: "0.3.0"}}, InstancesTotal: members, Attention: []web.Attention{},
	}
	types, zones := []string{"m7g.large", "m7g.xlarge", "c7g.large"}, []string{"eu-1a", "eu-1b", "eu-1c"}
	pools := map[web.Pool]int{}
	for _, name := range groups {
		g := web.Group{Tenant: "default", Group: name, Size: members / len(groups), Ready: members / len(groups), States: map[string]int{"ready": members / len(groups)}}
		for n := range g.Size {
			i := web.Instance{
				ID: fmt.Sprintf("%s06h1fg130dtd%05d", name, n), Tenant: "default", Group: name, State: "ready", Market: "spot", InstanceType: types[n%3], Zone: zones[n/3%3],
				ProviderID: fmt.Sprintf("i-0%08x", n*7919), CreatedAt: now.Add(-time.Duration(n*37%5000+1) * time.Minute), ReportedAt: now, Connected: true, CPU: float64(20 + n%50), Memory: float64(30 + n%40), Price: .0421,
			}
			if n%8 == 7 {
				i.Market, g.OnDemand = "on-demand", g.OnDemand+1
			} else {
				g.Spot++
			}
			pools[web.Pool{InstanceType: i.InstanceType, Zone: i.Zone, Market: i.Market, PricePerHour: i.Price}]++
			s.Instances = append(s.Instances, i)
		}
		g.CostPerHour = float64(g.Size) * .0421
		s.Groups = append(s.Groups, g)
		t := &s.Totals
		t.Size, t.Ready, t.Spot, t.OnDemand, t.CostPerHour = t.Size+g.Size, t.Ready+g.Ready, t.Spot+g.Spot, t.OnDemand+g.OnDemand, t.CostPerHour+g.CostPerHour
	}
	for p, n := range pools {
		p.Members, p.MachineHours = n, float64(n)*700
		if p.Market == "spot" {
			p.Reclaims = n % 7
			p.ReclaimsPer100H = 100 * float64(p.Reclaims) / p.MachineHours
		}
		s.Pools = append(s.Pools, p)
	}
	slices.SortFunc(s.Pools, func(a, b web.Pool) int {
		return cmp.Or(b.Members-a.Members, cmp.Compare(a.InstanceType+a.Zone+a.Market, b.InstanceType+b.Zone+b.Market))
	})
	s.PoolsTotal = len(s.Pools)
	s.Day = web.Day{From: now.UTC().Truncate(15 * time.Minute).Add(15*time.Minute - 24*time.Hour)}
	return s
}

// past adds what happened earlier in the day.
func past(s web.Status) web.Status {
	noticed := time.Now().Add(-9 * time.Hour)
	list := interruptions(&s, 20, noticed)
	for n, i := range list {
		id := fmt.Sprintf("web06h1ffqzght%05d", n)
		i.Instance, i.DrainOutcome = id, "drained"
		i.DrainedAt = timestamppb.New(i.GetDetectedAt().AsTime().Add(42 * time.Second))
		if n == 4 {
			i.DrainOutcome, i.DrainedAt = "cut short", timestamppb.New(i.GetDetectedAt().AsTime().Add(109*time.Second))
		}
		i.DeletedAt = timestamppb.New(i.GetDrainedAt().AsTime().Add(2 * time.Second))
	}
	addInterruptions(&s, list)
	s.Day.Slots = []web.Slot{{At: s.Day.From.Add(4 * time.Hour), Drained: 3}, {At: noticed.UTC().Truncate(15 * time.Minute), Drained: 19, Incomplete: 1}}
	s.Day.Total = web.Slot{Drained: 22, Incomplete: 1}
	s.Day.Marks = []web.Mark{
		{Time: noticed.Add(-time.Hour), Event: "config_accepted", Reason: "prod.jsonc by anna"}, {Time: noticed, Event: "alarm", Tenant: "default", Group: "web", Reason: "notices for 8 of 8 members"},
	}
	for n := range 30 {
		e := nstance.Event{Seq: nstance.Seq(n + 1), Time: noticed.Add(time.Duration(n) * 4 * time.Second), Type: nstance.EventReady, Tenant: "default", Group: "web", Instance: nstance.InstanceID(s.Instances[n%8].ID)}
		if n%3 == 0 {
			e.Type, e.Instance, e.Reason = nstance.EventDeleteRequested, nstance.InstanceID(list[n%20].GetInstance()), "notice: aws/spot terminate"
		}
		s.Events = append(s.Events, e)
	}
	return s
}

// interruptions are notices for the first members of the first group, or for any.
func interruptions(s *web.Status, count int, noticed time.Time) (list []*apiv1.Interruption) {
	for n := range count {
		i, at := s.Instances[n%len(s.Instances)], noticed.Add(time.Duration(n)*8*time.Second/time.Duration(count))
		list = append(list, &apiv1.Interruption{
			EventId: fmt.Sprintf("%s-%d", noticed.Format("150405"), n), Tenant: i.Tenant, Group: i.Group, Instance: i.ID, InstanceType: i.InstanceType, Zone: i.Zone, Market: "spot",
			DetectedAt: timestamppb.New(at), Notice: &apiv1.Notice{Deadline: timestamppb.New(at.Add(2 * time.Minute))}, DrainStartedAt: timestamppb.New(at.Add(time.Second)),
			Replacement: fmt.Sprintf("web06h1fh8kq2m%05d", n), ReplacementRequestedAt: timestamppb.New(at), ReplacementReadyAt: timestamppb.New(at.Add(19 * time.Second)),
		})
	}
	return list
}

// take has the cloud take members of the first group, so long ago. A third of them is drained,
// two of a hundred were cut short, and nine of ten are replaced.
func take(s *web.Status, count int, ago time.Duration) {
	list := interruptions(s, count, time.Now().Add(-ago))
	for n, i := range list {
		row := &s.Instances[n]
		row.State, row.Deadline = "draining", i.GetNotice().GetDeadline().AsTime().Add(-11*time.Second)
		if n > count*9/10 {
			i.Replacement, i.ReplacementReadyAt, i.ReplacementRequestedAt = "", nil, nil
		}
		switch {
		case n < count/3:
			i.DrainOutcome, i.DrainedAt = "drained", timestamppb.New(i.GetDetectedAt().AsTime().Add(40*time.Second))
		case n < count/3+count/50:
			i.DrainOutcome, i.DrainedAt = "cut short", timestamppb.New(i.GetDetectedAt().AsTime().Add(41*time.Second))
		}
	}
	addInterruptions(s, list)
	g, w := &s.Groups[0], s.Waves[0]
	g.Leaving, g.Booting, g.Ready = count, w.Machines-w.Replaced, g.Size-count+w.Replaced
	g.States = map[string]int{"draining": count, "ready": g.Ready, "booting": g.Booting}
	s.Totals.Leaving, s.Totals.Booting, s.Totals.Ready = count, g.Booting, s.Totals.Ready-g.Booting
	running := w.Machines - w.Drained - w.Incomplete
	s.Day.Slots = append(s.Day.Slots, web.Slot{At: time.Now().UTC().Truncate(15 * time.Minute), Running: running, Drained: w.Drained, Incomplete: w.Incomplete})
	t := &s.Day.Total
	t.Running, t.Drained, t.Incomplete = t.Running+running, t.Drained+w.Drained, t.Incomplete+w.Incomplete
}

// addInterruptions adds a wave and its rows, as the server does.
func addInterruptions(s *web.Status, list []*apiv1.Interruption) {
	var rows []web.Interruption
	waves := wave.Of(list)
	for _, w := range waves {
		for _, i := range w.Members {
			rows = append(rows, rowOf(w.ID, i))
			if s.InterruptionsTotal++; !wave.Over(i) {
				s.InterruptionsRunning++
			}
		}
	}
	s.Waves = append(waves, s.Waves...)
	s.WavesTotal = len(s.Waves)
	s.Interruptions = append(rows[:min(len(rows), 200)], s.Interruptions...)
}

func rowOf(id string, i *apiv1.Interruption) web.Interruption {
	asTime := func(t *timestamppb.Timestamp) time.Time {
		if t == nil {
			return time.Time{}
		}
		return t.AsTime()
	}
	row := web.Interruption{
		Event: i.GetEventId(), Tenant: i.GetTenant(), Group: i.GetGroup(), Instance: i.GetInstance(), Kind: "reclaim", Source: "aws/spot", Wave: id, Result: string(wave.ResultOf(i)),
		InstanceType: i.GetInstanceType(), Zone: i.GetZone(), Market: i.GetMarket(), NoticedAt: asTime(i.GetDetectedAt()), Deadline: asTime(i.GetNotice().GetDeadline()),
		Replacement: i.GetReplacement(), ReplacementRequestedAt: asTime(i.GetReplacementRequestedAt()), ReplacementReadyAt: asTime(i.GetReplacementReadyAt()),
		DrainStartedAt: asTime(i.GetDrainStartedAt()), DrainedAt: asTime(i.GetDrainedAt()), DrainOutcome: i.GetDrainOutcome(), DeletedAt: asTime(i.GetDeletedAt()),
	}
	if row.DrainedAt.IsZero() {
		row.DrainDeadline = row.Deadline.Add(-11 * time.Second)
	}
	return row
}
