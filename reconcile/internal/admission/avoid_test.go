package admission_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/admission"
	"github.com/nstance-go/nstance/reconcile/internal/avoid"
	"github.com/nstance-go/nstance/reconcile/internal/place"
)

// avoidTest is a queue with subnets in zones: a1 and a2 in za, b1 in zb, and one whose
// zone is not known.
func avoidTest(t *testing.T) *queueTest {
	d := newQueueTest(t)
	d.q.SetZones(map[string]string{"a1": "za", "a2": "za", "b1": "zb"})
	return d
}

// anywhere is a request of both types, in all subnets.
func anywhere(m nstance.Market) admission.Request {
	return admission.Request{Class: admission.Loss, Count: 1, Request: place.Request{InstanceTypes: []string{"m", "n"}, Subnets: []string{"a1", "a2", "b1", "unknown"}, Market: m}}
}

var (
	spotOnly = nstance.Market{Type: nstance.Spot}
	fallback = nstance.Market{Type: nstance.Spot, Fallback: nstance.OnDemand, FallbackAfter: 10 * time.Minute}
)

func TestAvoidedShapes(t *testing.T) {
	for name, c := range map[string]struct {
		avoid  []avoid.Entry
		market nstance.Market
		want   place.Shape
		choice place.Choice
	}{
		"a zone": {
			[]avoid.Entry{{Pool: avoid.Pool{Zone: "za"}}}, spotOnly,
			spotIn("m", "b1"), place.ChoiceAvoided,
		},
		"a type": {
			[]avoid.Entry{{Pool: avoid.Pool{InstanceType: "m"}}}, spotOnly,
			spotIn("n", "a1"), place.ChoiceAvoided,
		},
		"a type in a zone": {
			[]avoid.Entry{{Pool: avoid.Pool{InstanceType: "m", Zone: "za"}}}, spotOnly,
			spotIn("m", "b1"), place.ChoiceAvoided,
		},
		"several together": {
			[]avoid.Entry{{Pool: avoid.Pool{InstanceType: "m"}}, {Pool: avoid.Pool{Zone: "za"}}}, spotOnly,
			spotIn("n", "b1"), place.ChoiceAvoided,
		},
		"a later shape": {
			[]avoid.Entry{{Pool: avoid.Pool{InstanceType: "n"}}}, spotOnly,
			spotIn("m", "a1"), place.ChoiceListed,
		},
		"another market": {
			[]avoid.Entry{{Pool: avoid.Pool{Market: nstance.OnDemand}}}, fallback,
			spotIn("m", "a1"), place.ChoiceListed,
		},
		"spot, with a fallback: on-demand at once": {
			[]avoid.Entry{{Pool: avoid.Pool{Market: nstance.Spot}}}, fallback,
			place.Shape{InstanceType: "m", Subnet: "a1", Market: nstance.OnDemand}, place.ChoiceAvoided,
		},
		"a zone that no subnet is known to be in": {
			[]avoid.Entry{{Pool: avoid.Pool{Zone: "zc"}}}, spotOnly,
			spotIn("m", "a1"), place.ChoiceListed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := avoidTest(t)
			for i := range c.avoid {
				c.avoid[i].Until = d.now.Add(time.Hour)
			}
			d.q.avoid(c.avoid)
			got, choice, free := d.q.Choose(anywhere(c.market).Request, d.now)
			require.True(t, free)
			require.Equal(t, c.want, got)
			require.Equal(t, c.choice, choice)
			d.now = d.now.Add(time.Hour)
			got, choice, _ = d.q.Choose(anywhere(c.market).Request, d.now)
			require.Equal(t, spotIn("m", "a1"), got, "it ends by time")
			require.Equal(t, place.ChoiceListed, choice)
		})
	}
}

func TestEverythingAvoided(t *testing.T) {
	web := group("a/web")
	t.Run("a loss waits too, until the first shape is free", func(t *testing.T) {
		d := avoidTest(t)
		first, last := d.now.Add(time.Hour), d.now.Add(2*time.Hour)
		all := []avoid.Entry{{Pool: avoid.Pool{Market: nstance.Spot}, Until: first}, {Pool: avoid.Pool{InstanceType: "m"}, Until: last}}
		d.q.avoid(all)
		d.q.Demand(web, anywhere(spotOnly))
		require.Empty(t, d.pass(10))
		require.Equal(t, first, d.next)
		want := admission.Wait{Wait: place.Wait{Kind: place.WaitAvoided, Shape: spotIn("m", "a1"), Until: first, Avoided: all[0].Name() + "; " + all[1].Name()}}
		require.Equal(t, []admission.Wait{want}, d.q.Waits(web, d.now))
		_, _, free := d.q.Choose(anywhere(spotOnly).Request, d.now)
		require.False(t, free)
		d.now = first
		require.Equal(t, []string{"a/web"}, d.pass(10))
		require.Equal(t, []place.Shape{spotIn("n", "a1")}, d.shapes)
	})
	t.Run("without an end", func(t *testing.T) {
		d := avoidTest(t)
		d.q.avoid([]avoid.Entry{{Pool: avoid.Pool{Market: nstance.Spot}}})
		d.q.Demand(web, anywhere(spotOnly))
		require.Empty(t, d.pass(10))
		require.Zero(t, d.next)
		d.q.avoid(nil)
		require.Len(t, d.pass(10), 1)
	})
	t.Run("a create that was throttled is not repeated there", func(t *testing.T) {
		d := avoidTest(t)
		r, shape := anywhere(spotOnly), spotIn("m", "a1")
		r.Repeats = &shape
		until := d.now.Add(time.Hour)
		noZone := avoid.Entry{Pool: avoid.Pool{Zone: "za"}, Until: until}
		d.q.avoid([]avoid.Entry{noZone})
		d.q.Demand(web, r)
		require.Empty(t, d.pass(10))
		require.Equal(t, until, d.next)
		require.Equal(t, []admission.Wait{{Wait: place.Wait{Kind: place.WaitAvoided, Shape: shape, Until: until, Avoided: noZone.Name()}}}, d.q.Waits(web, d.now))
		d.now = until
		require.Len(t, d.pass(10), 1)
	})
	t.Run("the rest is sold out", func(t *testing.T) {
		d := avoidTest(t)
		r := request(admission.Loss, 1, "m", "n")
		d.q.Refused(spot("n"), d.now, d.now)
		noType := avoid.Entry{Pool: avoid.Pool{InstanceType: "m"}, Until: d.now.Add(time.Hour)}
		d.q.avoid([]avoid.Entry{noType})
		d.q.Demand(web, r)
		d.now = d.now.Add(time.Second)
		require.Empty(t, d.pass(10))
		w := d.q.Waits(web, d.now)
		require.Len(t, w, 1)
		require.Equal(t, place.WaitCapacity, w[0].Kind)
		require.Equal(t, noType.Name(), w[0].Avoided)
	})
	t.Run("the rest of spot is sold out: the fallback comes when it would for that alone", func(t *testing.T) {
		d := avoidTest(t)
		r := request(admission.Loss, 1, "m", "n")
		r.Market = fallback
		d.q.avoid([]avoid.Entry{{Pool: avoid.Pool{InstanceType: "m", Market: nstance.Spot}}})
		d.q.Refused(spot("n"), d.now, d.now)
		_, _, free := d.q.Choose(r.Request, d.now.Add(time.Second))
		require.False(t, free)
		for range 30 {
			d.now = d.now.Add(20 * time.Second)
			d.q.Refused(spot("n"), d.now, d.now)
		}
		got, choice, _ := d.q.Choose(r.Request, d.now.Add(time.Second))
		require.Equal(t, place.Shape{InstanceType: "m", Market: nstance.OnDemand}, got)
		require.Equal(t, place.ChoiceFallback, choice)
	})
}

// TestPoolOfCandidates: which shapes another avoidance would forbid.
func TestPoolOfCandidates(t *testing.T) {
	d := avoidTest(t)
	d.q.avoid([]avoid.Entry{{Pool: avoid.Pool{Zone: "zb"}}})
	var lost, left []place.Shape
	for _, c := range d.q.Candidates(anywhere(spotOnly).Request, d.now) {
		switch {
		case len(c.Avoided) > 0:
		case c.In(avoid.Pool{InstanceType: "m", Zone: "za"}):
			lost = append(lost, c.Shape)
		default:
			left = append(left, c.Shape)
		}
	}
	require.Equal(t, []place.Shape{spotIn("m", "a1"), spotIn("m", "a2")}, lost)
	require.Equal(t, []place.Shape{spotIn("m", "unknown"), spotIn("n", "a1"), spotIn("n", "a2"), spotIn("n", "unknown")}, left)
	require.Equal(t, "za", d.q.ZoneOf("a1"))
	require.Empty(t, d.q.ZoneOf("unknown"))
}

// FuzzAvoided: whatever the groups, refusals, reclaims and avoidances, no grant has a shape
// that is avoided then, and a request that waits for avoided pools alone is granted when
// the first of them ends.
func FuzzAvoided(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		dice := rand.New(rand.NewPCG(seed, 2))
		pick := func(words ...string) string { return words[dice.IntN(len(words))] }
		d := avoidTest(t)
		zones := map[string]string{"a1": "za", "a2": "za", "b1": "zb"}
		var avoided []avoid.Entry
		matches := func(s place.Shape) bool {
			for _, a := range avoided {
				if d.now.Before(a.Until) && (a.Zone == "" || a.Zone == zones[s.Subnet]) && (a.InstanceType == "" || a.InstanceType == s.InstanceType) && (a.Market == "" || a.Market == s.Market) {
					return true
				}
			}
			return false
		}
		for step := range 60 {
			d.now = d.now.Add(time.Duration(dice.IntN(60)) * time.Second)
			shape := place.Shape{InstanceType: pick("m", "n"), Subnet: pick("a1", "a2", "b1", "unknown"), Market: nstance.MarketType(pick("spot", "on-demand"))}
			switch dice.IntN(5) {
			case 0:
				a := avoid.Entry{Pool: avoid.Pool{Zone: pick("", "za", "zb"), InstanceType: pick("", "m", "n"), Market: nstance.MarketType(pick("", "spot", "on-demand"))}, Until: d.now.Add(time.Duration(1+dice.IntN(600)) * time.Second)}
				avoided = append(avoided, a)
				d.q.avoid(avoided)
			case 1:
				avoided = nil
				d.q.avoid(nil)
			case 2:
				d.q.Refused(shape, d.now, d.now)
			case 3:
				d.q.Reclaimed(shape, "", d.now)
			}
			market := []nstance.Market{spotOnly, fallback, {Type: nstance.OnDemand}}[dice.IntN(3)]
			r := anywhere(market)
			r.Class, r.Count = admission.Class(dice.IntN(3)), 1+dice.IntN(3)
			if dice.IntN(4) == 0 {
				r.Repeats = &shape
			}
			key := group(fmt.Sprintf("a/%d", dice.IntN(4)))
			d.q.Demand(key, r)
			d.pass(100)
			for _, s := range d.shapes {
				require.False(t, matches(s), "seed %d, step %d: %v is avoided by %v", seed, step, s, avoided)
				d.end(s, true)
			}
			for _, w := range d.q.Waits(key, d.now) {
				if w.Kind == place.WaitAvoided {
					require.True(t, w.Until.After(d.now), "seed %d, step %d", seed, step)
					require.False(t, d.next.IsZero() || d.next.After(w.Until), "seed %d, step %d: the next pass comes too late", seed, step)
				}
			}
		}
	})
}
