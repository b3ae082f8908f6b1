package admission_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/admission"
	"github.com/nstance-go/nstance/reconcile/internal/avoid"
	"github.com/nstance-go/nstance/reconcile/internal/place"
)

// of is a request of a definition.
func of(definition string, types ...string) admission.Request {
	r := request(admission.Loss, 1, types...)
	r.Definition = definition
	return r
}

// chosen returns what a request would be granted: type and market, "" when there is nothing.
func (d *queueTest) chosen(r admission.Request) (string, place.Choice) {
	shape, why, free := d.q.Choose(r.Request, d.now)
	if !free {
		return "", why
	}
	if shape.Market == nstance.OnDemand {
		return shape.InstanceType + " on demand", why
	}
	return shape.InstanceType, why
}

func TestRefusedShapeIsPassedOver(t *testing.T) {
	d := newQueueTest(t)
	d.q.RefusedFor("x", spot("m"), d.now, "no such size", d.now.Add(time.Second))
	d.now = d.now.Add(time.Second)
	got, why := d.chosen(of("x", "m", "n"))
	require.Equal(t, "n", got)
	require.Equal(t, place.ChoiceRefused, why)
	got, why = d.chosen(of("y", "m", "n"))
	require.Equal(t, "m", got, "another definition")
	require.Equal(t, place.ChoiceListed, why)

	require.True(t, len(d.q.Candidates(of("x", "m", "n").Request, d.now)) > 1)
	require.False(t, len(d.q.Candidates(of("x", "m").Request, d.now)) > 1)
	require.True(t, d.q.Candidates(of("x", "m", "n").Request, d.now).AnotherThan(spot("m")))
	require.False(t, d.q.Candidates(of("x", "m", "n").Request, d.now).AnotherThan(spot("n")), "the other one is refused")
	require.False(t, d.q.Candidates(of("x", "n").Request, d.now).AnotherThan(spot("n")))

	require.True(t, d.q.SoldOut("x", spot("m"), d.now.Add(-time.Second), d.now), "creates that were granted before are not sent")
	require.False(t, d.q.SoldOut("x", spot("m"), d.now, d.now))
	require.False(t, d.q.SoldOut("y", spot("m"), d.now.Add(-time.Second), d.now))
	require.Equal(t, "no such size", d.q.Candidates(of("x", "m", "n").Request, d.now).Answer())
	require.Empty(t, d.q.Candidates(of("y", "m", "n").Request, d.now).Answer())
	require.Empty(t, d.q.Candidates(of("x", "n").Request, d.now).Answer())
}

// TestRefusedShapeIsTriedSeldom: a minute, then twice as long each time, half an hour at most,
// with one create at a time.
func TestRefusedShapeIsTriedSeldom(t *testing.T) {
	d := newQueueTest(t)
	web := group("a/web")
	r := of("x", "m")
	r.Count = 3
	start := d.now
	d.q.RefusedFor("x", spot("m"), d.now, "no", d.now)
	for _, minutes := range []int{1, 2, 4, 8, 16, 30, 30} {
		pause := time.Duration(minutes) * time.Minute
		d.q.Demand(web, r)
		require.Empty(t, d.pass(10))
		require.Equal(t, pause, d.next.Sub(d.now))
		require.Equal(t, []admission.Wait{{Wait: place.Wait{Kind: place.WaitRefused, Shape: spot("m"), Until: d.next, Refused: "m, spot: no"}}}, d.q.Waits(web, d.now))
		d.now = d.next.Add(-1)
		require.Empty(t, d.pass(10))
		d.now = d.next
		require.Len(t, d.pass(10), 1, "one create shows whether it is still refused")
		sent := d.now
		d.now = d.now.Add(time.Second)
		d.q.Ended(spot("m"), d.now)
		d.q.RefusedFor("x", spot("m"), sent, "no", d.now)
		d.q.RefusedFor("x", spot("m"), sent, "later", d.now.Add(time.Second))
		require.Equal(t, "no", d.q.Candidates(r.Request, d.now).Answer(), "answers to creates from before the refusal say nothing more")
	}
	require.Greater(t, d.now.Sub(start), time.Hour)
	d.now = d.now.Add(24 * time.Hour)
	require.Equal(t, "no", d.q.Candidates(r.Request, d.now).Answer())
	d.now = d.now.Add(1)
	require.Empty(t, d.q.Candidates(r.Request, d.now).Answer(), "after a day without an attempt nothing is known")
	d.q.RefusedFor("x", spot("m"), d.now, "again", d.now)
	d.q.Demand(web, r)
	require.Empty(t, d.pass(10))
	require.Equal(t, time.Minute, d.next.Sub(d.now), "a new refusal begins anew")
}

func TestShapeWithoutAnswer(t *testing.T) {
	d := newQueueTest(t)
	r := of("x", "m", "n")
	for range 4 {
		d.q.UnansweredFor("x", spot("m"), d.now, "timeout", d.now)
		got, why := d.chosen(r)
		require.Equal(t, "n", got)
		require.Equal(t, place.ChoiceRefused, why)
		d.now = d.now.Add(time.Minute)
		shape, _, _ := d.q.Choose(r.Request, d.now)
		require.Equal(t, spot("m"), shape, "for a minute, however often")
	}
	d.q.UnansweredFor("x", spot("m"), d.now, "timeout", d.now)
	require.False(t, d.q.Candidates(of("x", "m").Request, d.now).Hopeless(), "no definite answer says so")
	d.q.RefusedFor("x", spot("m"), d.now.Add(1), "no", d.now.Add(1))
	d.now = d.now.Add(1)
	require.True(t, d.q.Candidates(of("x", "m").Request, d.now).Hopeless())
}

// TestRefusalEnds: with a create that was sent later and accepted, or when it is forgiven.
func TestRefusalEnds(t *testing.T) {
	sent := time.Second
	for name, c := range map[string]struct {
		end  func(d *queueTest)
		want string
	}{
		"not by itself":                       {func(*queueTest) {}, "n"},
		"accepted, sent before":               {func(d *queueTest) { d.q.AcceptedFor("x", spot("m"), d.now) }, "n"},
		"accepted, sent later":                {func(d *queueTest) { d.q.AcceptedFor("x", spot("m"), d.now.Add(sent)) }, "m"},
		"accepted, of another definition":     {func(d *queueTest) { d.q.AcceptedFor("y", spot("m"), d.now.Add(sent)) }, "n"},
		"accepted, another shape":             {func(d *queueTest) { d.q.AcceptedFor("x", spot("n"), d.now.Add(sent)) }, "n"},
		"forgiven":                            {func(d *queueTest) { d.q.Forgive("x", spot("m")) }, "m"},
		"all forgiven":                        {func(d *queueTest) { d.q.Forgive("x", place.Shape{}) }, "m"},
		"another shape forgiven":              {func(d *queueTest) { d.q.Forgive("x", spot("n")) }, "n"},
		"another definition forgiven":         {func(d *queueTest) { d.q.Forgive("y", place.Shape{}) }, "n"},
		"accepted, and refused once more":     {func(d *queueTest) { d.acceptAndRefuse(d.now.Add(sent), d.now.Add(2*sent)) }, "n"},
		"refused before what was accepted":    {func(d *queueTest) { d.acceptAndRefuse(d.now.Add(sent), d.now) }, "m"},
		"refused otherwise, sold out for all": {func(d *queueTest) { d.q.Forgive("x", spot("m")); d.q.Refused(spot("m"), d.now, d.now) }, "n"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newQueueTest(t)
			d.q.RefusedFor("x", spot("m"), d.now, "no", d.now)
			c.end(d)
			got, _ := d.chosen(of("x", "m", "n"))
			require.Equal(t, c.want, got)
		})
	}
}

func (d *queueTest) acceptAndRefuse(accepted, refused time.Time) {
	d.q.AcceptedFor("x", spot("m"), accepted)
	d.q.RefusedFor("x", spot("m"), refused, "no", refused)
}

// TestFallbackOfRefusedShape: on-demand is permitted once spot has been refused for as long as the
// market says. What is accepted in between starts that anew, and does not shorten the pause.
func TestFallbackOfRefusedShape(t *testing.T) {
	r := of("x", "m")
	r.Market = nstance.Market{Type: nstance.Spot, Fallback: nstance.OnDemand, FallbackAfter: 10 * time.Minute}
	for name, c := range map[string]struct {
		accepted bool // before the last refusal
		from     time.Duration
	}{"refused all the time": {false, 10 * time.Minute}, "refused anew": {true, 19 * time.Minute}} {
		t.Run(name, func(t *testing.T) {
			d := newQueueTest(t)
			start := d.now
			for _, minutes := range []int{1, 2, 6} {
				d.refused(spot("m"))
				d.now = d.now.Add(time.Duration(minutes) * time.Minute)
			}
			if c.accepted {
				d.q.AcceptedFor("x", spot("m"), d.now)
				d.now = d.now.Add(1)
			}
			d.refused(spot("m"))
			for at := start.Add(9 * time.Minute); at.Before(start.Add(17 * time.Minute)); at = at.Add(time.Second) {
				d.now = at
				got, why := d.chosen(r)
				if at.Before(start.Add(c.from)) {
					require.Empty(t, got, at.Sub(start))
					continue
				}
				require.Equal(t, "m on demand", got, at.Sub(start))
				require.Equal(t, place.ChoiceFallback, why)
			}
		})
	}
}

// TestHopeless: when every shape is refused, one of them definitely, or has no capacity, and
// none is left that is neither.
func TestHopeless(t *testing.T) {
	market := nstance.Market{Type: nstance.Spot, Fallback: nstance.OnDemand}
	onDemand := place.Shape{InstanceType: "m", Market: nstance.OnDemand}
	for name, c := range map[string]struct {
		learn func(d *queueTest)
		want  bool
	}{
		"nothing refused":           {func(*queueTest) {}, false},
		"one refused":               {func(d *queueTest) { d.refused(spot("m")) }, false},
		"all refused":               {func(d *queueTest) { d.refused(spot("m"), onDemand) }, true},
		"one refused, one sold out": {func(d *queueTest) { d.refused(spot("m")); d.q.Refused(onDemand, d.now, d.now) }, true},
		"one refused, one avoided": {func(d *queueTest) {
			d.refused(spot("m"))
			d.q.avoid([]avoid.Entry{{Pool: avoid.Pool{Market: nstance.OnDemand}}})
		}, true},
		"all sold out":                 {func(d *queueTest) { d.q.Refused(spot("m"), d.now, d.now); d.q.Refused(onDemand, d.now, d.now) }, false},
		"all avoided":                  {func(d *queueTest) { d.q.avoid([]avoid.Entry{{Pool: avoid.Pool{InstanceType: "m"}}}) }, false},
		"one refused, one unanswered":  {func(d *queueTest) { d.refused(spot("m")); d.unanswered(onDemand) }, true},
		"one unanswered, one refused":  {func(d *queueTest) { d.unanswered(spot("m")); d.refused(onDemand) }, true},
		"all unanswered":               {func(d *queueTest) { d.unanswered(spot("m")); d.unanswered(onDemand) }, false},
		"refused, and accepted since":  {func(d *queueTest) { d.refused(spot("m"), onDemand); d.q.AcceptedFor("x", onDemand, d.now.Add(1)) }, false},
		"refused, of other definition": {func(d *queueTest) { d.refused(spot("m")); d.q.RefusedFor("y", onDemand, d.now, "no", d.now) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newQueueTest(t)
			c.learn(d)
			r := of("x", "m")
			r.Market = market
			require.Equal(t, c.want, d.q.Candidates(r.Request, d.now).Hopeless())
		})
	}
}

func (d *queueTest) refused(shapes ...place.Shape) {
	for _, s := range shapes {
		d.q.RefusedFor("x", s, d.now, "no", d.now)
	}
}

func (d *queueTest) unanswered(s place.Shape) { d.q.UnansweredFor("x", s, d.now, "timeout", d.now) }

// TestRefusalsAreForgotten: what is older than a day takes no memory, and nothing else goes.
func TestRefusalsAreForgotten(t *testing.T) {
	d := newQueueTest(t)
	d.refused(spot("m"))
	d.now = d.now.Add(12 * time.Hour)
	d.q.RefusedFor("y", spot("m"), d.now, "no", d.now)
	d.now = d.now.Add(12*time.Hour + 1)
	d.q.RefusedFor("z", spot("m"), d.now, "no", d.now)
	for definition, want := range map[string]string{"x": "", "y": "no", "z": "no"} {
		require.Equal(t, want, d.q.Candidates(of(definition, "m").Request, d.now).Answer(), definition)
	}
}

// TestRefusedWait: the first refused shape is quoted with its place, the retry is the earliest
// of all, whatever it waits for.
func TestRefusedWait(t *testing.T) {
	d := newQueueTest(t)
	web := group("a/web")
	r := of("x", "m", "n", "o")
	r.Subnets = []string{"s1"}
	d.q.Refused(spotIn("m", "s1"), d.now, d.now)
	d.q.RefusedFor("x", spotIn("n", "s1"), d.now, "no n", d.now)
	d.q.RefusedFor("x", spotIn("o", "s1"), d.now, "no o", d.now)
	d.q.Demand(web, r)
	require.Empty(t, d.pass(10))
	want := admission.Wait{Wait: place.Wait{Kind: place.WaitRefused, Shape: spotIn("m", "s1"), Until: d.now.Add(firstRetry), Refused: "n in s1, spot: no n"}}
	require.Equal(t, []admission.Wait{want}, d.q.Waits(web, d.now))
	require.Equal(t, want.Until, d.next)
	require.Equal(t, "no n", d.q.Candidates(r.Request, d.now).Answer(), "the first with words")
	d.q.Explain(spotIn("m", "s1"), "no room", d.now)
	require.Equal(t, "no room", d.q.Candidates(r.Request, d.now).Answer())
	d.refused(spotIn("m", "s1"))
	require.Equal(t, d.now.Add(time.Minute), d.q.Waits(web, d.now)[0].Until, "sold out and refused: not before both are over")
	d.q.AcceptedFor("x", spotIn("n", "s1"), d.now.Add(1))
	d.q.AcceptedFor("x", spotIn("o", "s1"), d.now.Add(1))
	d.q.Demand(web, of("x", "m"))
	got, _ := d.chosen(r)
	require.Equal(t, "n", got)
}
