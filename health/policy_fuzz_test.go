package health_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/health"
)

// model is the simplest state that permits a verdict about a track.
type model struct {
	alive   time.Time // start of a silence at the earliest
	asked   time.Time // the last definite answer
	status  nstance.MachineStatus
	reports int
}

func (m *model) sign(now time.Time) {
	if now.After(m.alive) {
		m.alive = now
	}
}

var statuses = []nstance.MachineStatus{
	nstance.StatusRunning, nstance.StatusUnknown, nstance.StatusPending, nstance.StatusRunning, nstance.StatusStopping, "",
}

// step applies one event to both.
func (m *model) step(track *health.Track, op byte, now time.Time) {
	switch op % 7 {
	case 0:
		track.Reported(now)
		m.sign(now)
		m.reports++
	case 1:
		track.Connected(now)
	case 2:
		track.Disconnected(now, true)
	case 3:
		track.Disconnected(now, false)
	case 4:
		status := statuses[int(op/7)%len(statuses)]
		track.Answered(now, status)
		if status != "" && status != nstance.StatusUnknown && !now.Before(m.asked) {
			m.asked, m.status = now, status
		}
	case 5:
		track.RestartGrace(now)
		m.sign(now)
	case 6:
		track.Registered(now)
	}
}

// FuzzTrack applies events in any order, with times in any order, and checks every
// verdict against its minimum requirements.
func FuzzTrack(f *testing.F) {
	f.Add(int64(time.Minute), int64(0), 3, true, []byte{0, 0, 4, 70, 7, 120})
	f.Add(int64(0), int64(-1), 0, false, []byte{1, 10, 3, 20, 4, 21, 5, 255, 2, 1})
	f.Add(int64(1), int64(math.MaxInt64), 1, true, []byte{6, 200, 4, 200, 32, 9})
	f.Add(int64(math.MaxInt64), int64(math.MinInt64), math.MinInt, true, []byte{})
	f.Fuzz(func(t *testing.T, interval, jitter int64, missed int, registered bool, script []byte) {
		p := health.Policy{Interval: time.Duration(interval), Jitter: time.Duration(jitter), Missed: missed}
		play(t, p, registered, script)
	})
}

// TestRandomHistories runs the fuzz test with random inputs.
func TestRandomHistories(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	script := make([]byte, 40)
	for i := range 3000 {
		for j := range script {
			script[j] = byte(random.Uint32())
		}
		play(t, health.Policy{Missed: i % 4}, i%2 == 0, script)
	}
}

func play(t *testing.T, p health.Policy, registered bool, script []byte) {
	now := noon
	m := &model{alive: now}
	track := p.Begin(now, registered)
	for len(script) >= 2 {
		now = now.Add(time.Duration(int8(script[1])) * 2 * time.Second)
		m.step(&track, script[0], now)
		script = script[2:]
		for _, ahead := range []time.Duration{0, time.Minute, time.Hour, math.MaxInt64 / 2} {
			m.check(t, p, track, now.Add(ahead))
		}
	}
	m.check(t, health.Policy{}, health.Track{}, now)
}

func (m *model) check(t *testing.T, p health.Policy, track health.Track, now time.Time) {
	v, next := p.Evaluate(track, now)
	interval, limit := min(p.Interval, 365*24*time.Hour), p.Missed
	if interval <= 0 {
		interval = health.DefaultInterval
	}
	if limit <= 0 {
		limit = 3
	}
	silence := now.Sub(m.alive)
	switch v {
	case health.Unhealthy:
		if float64(silence) < float64(limit)*float64(interval) {
			t.Fatalf("unhealthy after a silence of %v", silence)
		}
		if m.status != nstance.StatusRunning || m.asked.Before(m.alive) {
			t.Fatalf("unhealthy although the provider's last word was %q", m.status)
		}
	case health.Silent:
		if silence < interval {
			t.Fatalf("silent after %v", silence)
		}
	case health.Gone:
		if !m.status.Dead() {
			t.Fatalf("gone although the provider's last word was %q", m.status)
		}
	case health.Healthy:
		if m.reports == 0 {
			t.Fatal("well without a report")
		}
	}
	checkNext(t, p, track, now, v, next)
}

// checkNext checks that time alone changes nothing before next.
func checkNext(t *testing.T, p health.Policy, track health.Track, now time.Time, v health.Verdict, next time.Time) {
	if next.IsZero() {
		if later, _ := p.Evaluate(track, now.AddDate(100, 0, 0)); later != v {
			t.Fatalf("%v became %v before its next time", v, later)
		}
		return
	}
	if !next.After(now) {
		t.Fatalf("the next change, %v, is not after %v", next, now)
	}
	for _, then := range []time.Time{now.Add(next.Sub(now) / 2), next.Add(-1)} {
		if then.Before(now) {
			continue
		}
		if early, _ := p.Evaluate(track, then); early != v {
			t.Fatalf("%v became %v at %v, before %v", v, early, then, next)
		}
	}
}
