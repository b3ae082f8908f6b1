package admission_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/admission"
	"github.com/nstance-go/nstance/reconcile/internal/avoid"
	"github.com/nstance-go/nstance/reconcile/internal/place"
)

// queueTest runs admission passes at a time that the test sets.
type queueTest struct {
	*testing.T
	q       queue
	now     time.Time
	tokens  int
	granted []string // tenant/group and instance type of each create
	shapes  []place.Shape
	next    time.Time
}

// A queue is a queue with its places.
type queue struct {
	*admission.Queue
	*place.Map
}

func newQueue() queue {
	places := place.New()
	return queue{admission.New(places), places}
}

// avoid replaces the pools that are avoided.
func (q queue) avoid(all []avoid.Entry) { q.AvoidedPools.Restore(all, time.Time{}) }

func newQueueTest(t *testing.T) *queueTest {
	return &queueTest{T: t, q: newQueue(), now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), tokens: 1 << 30}
}

func group(name string) nstance.GroupKey {
	tenant, id, _ := strings.Cut(name, "/")
	return nstance.GroupKey{Tenant: nstance.TenantID(tenant), Group: nstance.GroupID(id)}
}

// request is a request for n creates of the given types.
func request(class admission.Class, n int, types ...string) admission.Request {
	return admission.Request{Class: class, Count: n, Request: place.Request{InstanceTypes: types, Market: nstance.Market{Type: nstance.Spot}}}
}

func spot(typ string) place.Shape {
	return place.Shape{InstanceType: typ, Market: nstance.Spot}
}

// pass admits up to limit creates and returns their groups.
func (d *queueTest) pass(limit int) []string { return d.passFor(limit, false) }

func (d *queueTest) passFor(limit int, lossesOnly bool) []string {
	d.granted, d.shapes = nil, nil
	budget := func() (bool, time.Time) {
		if d.tokens == 0 {
			return false, d.now.Add(time.Second)
		}
		d.tokens--
		return true, time.Time{}
	}
	d.next = d.q.Pass(d.now, limit, lossesOnly, budget, func(g admission.Grant) {
		d.granted = append(d.granted, g.Group.String())
		d.shapes = append(d.shapes, g.Shape)
	})
	return d.granted
}

// proven lets a shape have capacity for as many parallel creates as a test needs.
func (d *queueTest) proven(types ...string) {
	for _, typ := range types {
		for range 10 {
			d.q.Accepted(spot(typ), d.now, d.now)
		}
		d.q.Demand(group("prove/"+typ), request(admission.Growth, 1, typ))
		require.Len(d, d.pass(1), 1)
		d.end(spot(typ), true)
		for range 10 {
			d.q.Accepted(spot(typ), d.now, d.now)
		}
	}
	d.q.Demand(group("prove/x"))
}

// end completes a create that was sent now.
func (d *queueTest) end(s place.Shape, accepted bool) {
	d.q.Ended(s, d.now)
	if accepted {
		d.q.Accepted(s, d.now, d.now)
	} else {
		d.q.Refused(s, d.now, d.now)
	}
}

func TestOrder(t *testing.T) {
	d := newQueueTest(t)
	d.proven("m")
	d.q.Demand(group("a/big"), request(admission.Growth, 6, "m"))
	d.q.Demand(group("a/second"), request(admission.Growth, 2, "m"))
	d.q.Demand(group("b/web"), request(admission.Loss, 2, "m"), request(admission.Growth, 2, "m"))
	d.q.Demand(group("c/web"), request(admission.Loss, 1, "m"), request(admission.Single, 1, "m"))
	d.tokens = 100
	require.Equal(t, []string{
		"b/web", "c/web", "b/web", // losses, tenants in turn
		"c/web",                               // an instance on demand
		"a/big", "b/web", "a/second", "b/web", // growth: tenants in turn, groups in turn within a tenant
		"a/big", "a/second", "a/big", "a/big", "a/big", "a/big",
	}, d.pass(100))
	require.Zero(t, d.next)
	require.Empty(t, d.q.Waits(group("a/big"), d.now))
}

func TestRepeatedDemandKeepsTurn(t *testing.T) {
	d := newQueueTest(t)
	d.proven("m")
	d.q.Demand(group("a/big"), request(admission.Growth, 100, "m"))
	require.Len(t, d.pass(3), 3)
	for range 4 { // repeating the same demand gains no turn
		d.q.Demand(group("a/big"), request(admission.Growth, 100, "m"))
		d.q.Demand(group("b/web"), request(admission.Growth, 100, "m"))
	}
	require.Equal(t, []string{"a/big", "b/web", "a/big", "b/web"}, d.pass(4))
	d.q.Demand(group("b/web"))
	require.Equal(t, []string{"a/big", "a/big"}, d.pass(2), "a cancelled demand delays nothing")
}

func TestBudget(t *testing.T) {
	d := newQueueTest(t)
	d.proven("m")
	d.tokens = 1
	d.q.Demand(group("a/web"), request(admission.Loss, 2, "m"))
	d.q.Demand(group("b/web"), request(admission.Growth, 1, "m"))
	d.q.Demand(group("b/other"), request(admission.Growth, 1, "m"))
	require.Equal(t, []string{"a/web"}, d.pass(10))
	require.Equal(t, d.now.Add(time.Second), d.next)
	require.Equal(t, []admission.Wait{{Wait: place.Wait{Kind: admission.WaitBudget, Until: d.next}}}, d.q.Waits(group("a/web"), d.now))
	require.Equal(t, admission.LossesFirst, d.q.Waits(group("b/web"), d.now)[0].Before)
	d.q.Demand(group("a/web"))
	require.Equal(t, admission.GroupsFirst, d.q.Waits(group("b/web"), d.now)[0].Before)
	d.q.Demand(group("c/web"), request(admission.Growth, 1, "m"))
	require.Equal(t, admission.TenantsFirst, d.q.Waits(group("b/web"), d.now)[0].Before)
	d.tokens = 100
	require.Len(t, d.passFor(10, true), 0, "losses only until all demand is known")
	require.Len(t, d.pass(10), 3)
}

func TestCapacityFirst(t *testing.T) {
	d := newQueueTest(t)
	d.tokens = 1
	d.q.Refused(spot("sold"), d.now, d.now)
	d.q.Demand(group("a/web"), request(admission.Loss, 5, "sold"))
	d.q.Demand(group("b/web"), request(admission.Growth, 1, "free"))
	require.Equal(t, []string{"b/web"}, d.pass(10), "a sold-out shape takes no token")
	require.Zero(t, d.tokens)
}

func TestGrowthWaitsForFirstAnswer(t *testing.T) {
	d := newQueueTest(t)
	d.q.Demand(group("a/web"), request(admission.Growth, 100, "m"))
	for _, n := range []int{1, 2, 4, 8} {
		require.Len(t, d.pass(100), n)
		for range n - 1 {
			d.q.Ended(spot("m"), d.now)
		}
		d.end(spot("m"), true)
	}
	waits := d.q.Waits(group("a/web"), d.now)
	require.Empty(t, waits)
	require.Len(t, d.pass(100), 16)
	require.Equal(t, place.WaitAnswer, d.q.Waits(group("a/web"), d.now)[0].Kind)
	d.q.Demand(group("b/web"), request(admission.Loss, 7, "m"))
	require.Len(t, d.pass(100), 7, "losses do not wait for the answer")
}

func TestHangingCreatesDelayForLimitedTime(t *testing.T) {
	d := newQueueTest(t)
	d.q.Demand(group("a/web"), request(admission.Growth, 100, "m"))
	total := 0
	for range 7 {
		total += len(d.pass(100))
		require.True(t, d.next.After(d.now) || total == 100)
		d.now = d.next
	}
	require.Equal(t, 64, total, "doubled after each timeout")
}

// TestSoldOutCosts45CallsInTenMinutes: 10,000 missing members and nine shapes.
func TestSoldOutCosts45CallsInTenMinutes(t *testing.T) {
	d := newQueueTest(t)
	var types []string
	for i := range 9 {
		types = append(types, fmt.Sprintf("type%d", i))
	}
	d.q.Demand(group("a/web"), request(admission.Growth, 10_000, types...))
	calls := 0
	for end := d.now.Add(10 * time.Minute); d.now.Before(end); {
		sent := d.now
		if len(d.pass(100)) > 0 {
			d.now = d.now.Add(50 * time.Millisecond)
			for _, s := range d.shapes {
				calls++
				d.q.Ended(s, d.now)
				d.q.Refused(s, sent, d.now)
			}
			d.q.Demand(group("a/web"), request(admission.Growth, 10_000, types...))
			continue
		}
		require.True(t, d.next.After(d.now))
		d.now = d.next
	}
	require.Equal(t, 45, calls)
}

func TestRecovery(t *testing.T) {
	d := newQueueTest(t)
	d.proven("m")
	d.q.Refused(spot("m"), d.now, d.now)
	d.q.Demand(group("a/web"), request(admission.Loss, 50, "m"))
	d.q.Demand(group("b/web"), request(admission.Growth, 50, "m"))
	require.Empty(t, d.pass(100))
	d.now = d.next
	require.Equal(t, []string{"a/web"}, d.pass(100), "the first request in the queue probes")
	for n := 2; n < 6; n++ {
		d.now = d.now.Add(time.Millisecond)
		d.end(spot("m"), true)
		require.Len(t, d.pass(100), 2, "returned capacity may be small: %d in flight", n)
	}
	d.now = d.now.Add(4 * time.Minute)
	require.Greater(t, len(d.pass(100)), 20)
}

func TestFirstRefusalRedirectsOthers(t *testing.T) {
	d := newQueueTest(t)
	d.proven("n")
	d.q.Demand(group("a/web"), request(admission.Growth, 4, "m", "n"))
	require.Len(t, d.pass(100), 1)
	sent := d.now
	d.now = d.now.Add(time.Millisecond)
	d.q.Ended(spot("m"), d.now)
	d.q.Refused(spot("m"), sent, d.now)
	require.Len(t, d.pass(100), 3)
	require.Equal(t, []place.Shape{spot("n"), spot("n"), spot("n")}, d.shapes)
	require.True(t, d.q.SoldOut("", spot("m"), sent, d.now), "grants from before the refusal are not sent")
	require.False(t, d.q.SoldOut("", spot("m"), d.now, d.now))

	d.now = d.now.Add(firstRetry)
	d.q.Demand(group("a/web"), request(admission.Growth, 3, "m", "n"))
	require.Len(t, d.pass(100), 3)
	require.Equal(t, []place.Shape{spot("m"), spot("n"), spot("n")}, d.shapes, "one probe, the others take the next type at once")
	d.q.Refused(spot("n"), d.now, d.now)
	d.q.Refused(spot("m"), d.now, d.now)
	d.q.Demand(group("a/web"), request(admission.Growth, 3, "m", "n"))
	require.Empty(t, d.pass(100))
	require.Equal(t, []admission.Wait{{Wait: place.Wait{Kind: place.WaitCapacity, Shape: spot("m"), Until: d.now.Add(firstRetry)}}}, d.q.Waits(group("a/web"), d.now))
}

// firstRetry is the backoff after the first refusal.
const firstRetry = 30 * time.Second

func TestAnswersOutOfOrder(t *testing.T) {
	d := newQueueTest(t)
	sent := d.now
	d.now = d.now.Add(time.Second)
	d.q.Refused(spot("m"), sent, d.now)
	d.q.Accepted(spot("m"), sent, d.now)
	d.q.Demand(group("a/web"), request(admission.Loss, 1, "m"))
	require.Empty(t, d.pass(1), "the accepted create may have used the last capacity")
	until := d.next
	d.q.Refused(spot("m"), sent, d.now.Add(time.Second))
	d.pass(1)
	require.Equal(t, until, d.next, "refusals of parallel creates count once")
	d.now = until
	d.q.Accepted(spot("m"), until, d.now)
	require.Len(t, d.pass(1), 1)
	d.q.Lost(spot("m"), d.now)
	d.q.Demand(group("a/web"), request(admission.Loss, 1, "m"))
	require.Empty(t, d.pass(1), "accepted and not started counts as refused")
	require.Equal(t, time.Minute, d.next.Sub(d.now), "the shortage continues")
}

func TestPreference(t *testing.T) {
	d := newQueueTest(t)
	choose := func(r admission.Request, full ...string) (string, bool) {
		none := map[string]int{}
		for _, subnet := range full {
			none[subnet] = 0
		}
		d.q.SetAddresses(none, d.now)
		s, _, free := d.q.Choose(r.Request, d.now)
		return s.InstanceType + "/" + s.Subnet + "/" + string(s.Market), free
	}
	r := request(admission.Growth, 1, "m", "n")
	r.Subnets = []string{"s1", "s2"}
	check := func(shape string, free bool, full ...string) {
		t.Helper()
		got, ok := choose(r, full...)
		require.Equal(t, shape, got)
		require.Equal(t, free, ok)
	}
	check("m/s1/spot", true)
	check("m/s2/spot", true, "s1")
	check("m/s1/spot", true, "s1", "s2")
	d.q.Reclaimed(place.Shape{InstanceType: "m", Subnet: "s1", Market: nstance.Spot}, "", d.now)
	check("m/s2/spot", true)
	check("n/s1/spot", true, "s2")
	d.q.RefusedQuota(place.Shape{InstanceType: "m", Subnet: "s1", Market: nstance.Spot}, r.Subnets, d.now, d.now)
	check("n/s1/spot", true)
	d.q.LostQuota(place.Shape{InstanceType: "n", Subnet: "s2", Market: nstance.Spot}, r.Subnets, d.now)
	check("m/s1/spot", false)

	d.now = d.now.Add(firstRetry)
	check("m/s2/spot", false) // due for a retry, and may be refused again
	d.now = d.now.Add(-firstRetry)
	r.Market.Fallback, r.Market.FallbackAfter = nstance.OnDemand, 2*time.Minute
	check("m/s1/spot", false)
	d.q.Demand(group("a/web"), r)
	d.now = d.now.Add(20 * time.Second)
	require.Empty(t, d.pass(1))
	d.now = d.now.Add(100 * time.Second)
	for _, typ := range []string{"m", "n"} {
		for _, subnet := range r.Subnets {
			d.q.Refused(place.Shape{InstanceType: typ, Subnet: subnet, Market: nstance.Spot}, d.now, d.now)
		}
	}
	check("m/s1/on-demand", true)
	d.now = d.now.Add(time.Hour)
	check("m/s1/spot", true, "s2")
}

// TestReclaimMarksZone: a reclaim says something about every subnet of the zone.
func TestReclaimMarksZone(t *testing.T) {
	shape := place.Shape{InstanceType: "m", Subnet: "a1", Market: nstance.Spot}
	r := request(admission.Growth, 1, "m", "n")
	r.Subnets = []string{"a1", "a2", "b1"}
	for name, c := range map[string]struct {
		learn func(queue)
		zone  string // of the machine
		want  string
	}{
		"zones of the provider":           {func(q queue) { q.SetZones(map[string]string{"a1": "a", "a2": "a", "b1": "b"}) }, "a", "m/b1"},
		"the machine's zone is not known": {func(q queue) { q.SetZones(map[string]string{"a1": "a", "a2": "a", "b1": "b"}) }, "", "m/b1"},
		"zones of machines":               {func(q queue) { q.MachineIn("a2", "a") }, "a", "m/b1"},
		"no zones":                        {func(queue) {}, "a", "m/a2"},
		"another zone":                    {func(q queue) { q.MachineIn("a2", "b") }, "a", "m/a2"},
		"a subnet in several zones":       {func(q queue) { q.MachineIn("a2", "a"); q.MachineIn("a2", "b") }, "a", "m/a2"},
		"machines without a zone":         {func(q queue) { q.MachineIn("a2", ""); q.MachineIn("", "a") }, "a", "m/a2"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newQueueTest(t)
			c.learn(d.q)
			d.q.Reclaimed(shape, c.zone, d.now)
			got, _, free := d.q.Choose(r.Request, d.now)
			require.Equal(t, c.want, got.InstanceType+"/"+got.Subnet)
			require.True(t, free)
			d.now = d.now.Add(20*time.Minute - time.Second)
			got, _, _ = d.q.Choose(r.Request, d.now)
			require.Equal(t, c.want, got.InstanceType+"/"+got.Subnet)
			d.now = d.now.Add(time.Second)
			got, _, _ = d.q.Choose(r.Request, d.now)
			require.Equal(t, "a1", got.Subnet, "it is over")
		})
	}
}

func TestRepeatsKeepShape(t *testing.T) {
	d := newQueueTest(t)
	d.q.Refused(spot("m"), d.now, d.now)
	shape := spot("m")
	r := request(admission.Loss, 1, "m", "n")
	r.Repeats, r.Instance = &shape, "i1"
	d.q.Demand(group("a/web"), r)
	require.Len(t, d.pass(1), 1)
	require.Equal(t, shape, d.shapes[0])
}

func TestAddresses(t *testing.T) {
	d := newQueueTest(t)
	d.proven("m")
	r := request(admission.Loss, 6, "m")
	r.Subnets = []string{"s1", "s2", "s3"}
	d.q.Demand(group("a/web"), r)
	require.False(t, d.q.AddressesOld(), "no request names subnets")
	_, _, _ = d.q.Choose(r.Request, d.now)
	require.True(t, d.q.AddressesOld())
	d.q.SetAddresses(map[string]int{"s1": 2, "s2": 4, "s3": 0}, d.now.Add(-30*time.Second))
	d.pass(6)
	require.False(t, d.q.AddressesOld())
	used := map[string]int{}
	for _, s := range d.shapes {
		used[s.Subnet]++
	}
	require.Equal(t, map[string]int{"s1": 2, "s2": 4}, used, "each grant takes an address of the subnet with the most")
	d.q.ReturnAddress("s2")
	r.Count = 1
	d.q.Demand(group("a/web"), r)
	d.pass(1)
	require.Equal(t, "s2", d.shapes[0].Subnet)
	d.q.Demand(group("a/web"), r)
	d.pass(1)
	require.Equal(t, "s1", d.shapes[0].Subnet, "a full subnet is the last choice")

	d.q.SetAddresses(map[string]int{"s1": 0, "s3": 7}, d.now)
	for at, want := range map[time.Duration]string{0: "s3", 10 * time.Minute: "s3", 10*time.Minute + 1: "s1"} {
		shape, why, _ := d.q.Choose(r.Request, d.now.Add(at))
		require.Equal(t, want, shape.Subnet, at)
		require.Equal(t, place.ChoiceListed, why)
	}
	d.q.SetAddresses(map[string]int{"s1": 0}, d.now)
	shape, why, _ := d.q.Choose(r.Request, d.now)
	require.Equal(t, "s2", shape.Subnet, "one of which nothing is known comes before a full one")
	require.Equal(t, place.ChoiceListed, why)
	d.now = d.now.Add(11 * time.Minute)
	d.q.Demand(group("a/web"), r)
	d.pass(1)
	require.Equal(t, "s1", d.shapes[0].Subnet, "an old count is ignored")
	require.True(t, d.q.AddressesOld())
}

// TestReasonOfWait: a request says what it waits for, if that lasts.
func TestReasonOfWait(t *testing.T) {
	budget := func(before admission.Precedent) admission.Wait {
		return admission.Wait{Wait: place.Wait{Kind: admission.WaitBudget}, Before: before}
	}
	for want, w := range map[string]admission.Wait{
		"every permitted shape is sold out": {Wait: place.Wait{Kind: place.WaitCapacity}},
		"":                                  {Wait: place.Wait{Kind: place.WaitAnswer}},
		"the create budget is used up":      budget(""),
		"the create budget is used up: replacements of lost instances go first": budget(admission.LossesFirst),
		"the create budget is used up: tenants take turns":                      budget(admission.TenantsFirst),
		"the create budget is used up: other creates of the tenant go first":    budget(admission.GroupsFirst),
	} {
		require.Equal(t, want, w.Reason())
	}
}
