package lease_test

import (
	"context"
	"iter"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// machine is a simulated computer with one process: it has a clock of its own, can be
// paused, and reaches storage over a faulty network. Its clocks continue while it is
// paused, its process does not.
type machine struct {
	mem    storage.Store
	start  time.Time
	rate   float64       // of its monotonic clock
	offset time.Duration // of its monotonic clock: its uptime

	mu         sync.Mutex
	rng        *rand.Rand
	thaw       chan struct{} // closed at the end of the pause; nil: it runs
	wall       time.Duration // error of its wall clock
	faultShare float64       // share of requests that meet a fault
	cut        bool          // no request gets through
	writeFault int           // 1: the next write is the last to land, and is not answered; 2: no write gets through
	late       time.Duration // longest delay of a request in the network
}

func newMachine(mem storage.Store, seed uint64) *machine {
	rng := rand.New(rand.NewPCG(seed, 99))
	return &machine{
		mem: mem, start: time.Now(), rng: rng, late: 6 * time.Second,
		rate: 1 + (rng.Float64()*2-1)*maxSkew, offset: rand.N(time.Hour),
	}
}

// maxSkew is the largest error of a clock's rate.
const maxSkew = 0.01

// at returns the clock's time at a global instant.
func (m *machine) at(global time.Duration) time.Duration {
	return m.offset + time.Duration(float64(global)*m.rate)
}

// gate is passed before each step of the process.
func (m *machine) gate() {
	for {
		m.mu.Lock()
		ch := m.thaw
		m.mu.Unlock()
		if ch == nil {
			return
		}
		<-ch
	}
}

func (m *machine) freeze() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.thaw == nil {
		m.thaw = make(chan struct{})
	}
}

func (m *machine) wake() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.thaw != nil {
		close(m.thaw)
		m.thaw = nil
	}
}

func (m *machine) frozen() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.thaw != nil
}

func (m *machine) setRude(share float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faultShare = share
}

func (m *machine) setCut(cut bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut = cut
}

// clearFaults ends all faults.
func (m *machine) clearFaults() {
	m.wake()
	m.setRude(0)
	m.setCut(false)
	m.silenceWrites(false)
}

// silenceWrites lets reads pass, and of writes one more, without its answer.
func (m *machine) silenceWrites(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writeFault = 0
	if on {
		m.writeFault = 1
	}
}

func (m *machine) step(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wall = d
}

// Now implements lease.Clock.
func (m *machine) Now() time.Duration {
	m.gate()
	return m.at(time.Since(m.start))
}

// Wall is a clock that the lease must not read.
func (m *machine) Wall() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Now().Add(m.wall)
}

// AfterFunc implements lease.Clock.
func (m *machine) AfterFunc(d time.Duration, f func()) func() bool {
	return time.AfterFunc(time.Duration(float64(d)/m.rate)+1, func() { m.gate(); f() }).Stop
}

func after(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// requestOutcome is the outcome of one request.
type requestOutcome struct {
	there, back time.Duration // latency
	refused     bool          // answered with an error, without effect
	dropped     bool          // never arrives
	lost        bool          // the answer never arrives
	twice       bool          // repeated by the client library: the second one is answered
	code        nstance.Code
}

func (m *machine) nextOutcome(write bool) requestOutcome {
	m.mu.Lock()
	defer m.mu.Unlock()
	short := func(most time.Duration) time.Duration { return time.Duration(m.rng.Int64N(int64(most))) }
	f := requestOutcome{there: short(20 * time.Millisecond), back: short(20 * time.Millisecond)}
	switch {
	case m.cut, write && m.writeFault == 2:
		f.dropped = true
		return f
	case write && m.writeFault == 1:
		m.writeFault, f.lost, f.code = 2, true, nstance.Unavailable
		return f
	}
	if m.rng.Float64() >= m.faultShare {
		return f
	}
	most := m.late
	if m.rng.IntN(2) == 0 {
		most = time.Second // slow, but within the time limit
	}
	f.code = []nstance.Code{nstance.Unavailable, nstance.Ambiguous, nstance.Conflict, nstance.Throttled}[m.rng.IntN(4)]
	switch m.rng.IntN(7) {
	case 0:
		f.refused = true
	case 1:
		f.dropped = true
	case 2:
		f.lost = true
	case 3:
		f.twice = true
	case 4:
		f.there = short(most)
	case 5:
		f.back = short(most)
	case 6: // the error returns at once although the request continues
		f.there, f.refused, f.lost = short(most), true, true
	}
	return f
}

// send executes one request. Nothing stops a request in flight.
func (m *machine) send(ctx context.Context, write bool, do func() error) error {
	m.gate()
	defer m.gate()
	f := m.nextOutcome(write)
	code := f.code
	if code == nstance.Conflict && !write {
		code = nstance.Unavailable
	}
	if f.refused && !f.lost {
		after(ctx, f.there+f.back)
		return nstance.Errorf(code, "no")
	}
	if f.code == "" && !f.dropped {
		after(context.Background(), f.there)
		defer after(context.Background(), f.back)
		return do()
	}
	answer := make(chan error, 1)
	if !f.dropped {
		go func() {
			after(context.Background(), f.there)
			err := do()
			if f.twice && write {
				err = do()
			}
			after(context.Background(), f.back)
			if !f.lost {
				answer <- err
			}
		}()
	}
	if f.refused {
		return nstance.Errorf(code, "perhaps")
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return nstance.Errorf(nstance.Ambiguous, "no answer: %w", ctx.Err())
	}
}

func (m *machine) Get(ctx context.Context, key string) (storage.Object, error) {
	got := make(chan storage.Object, 1)
	err := m.send(ctx, false, func() error {
		obj, err := m.mem.Get(context.Background(), key)
		got <- obj
		return err
	})
	if err != nil {
		return storage.Object{}, err
	}
	return <-got, nil
}

func (m *machine) put(ctx context.Context, do func(context.Context) (storage.Version, error)) (storage.Version, error) {
	got := make(chan storage.Version, 2)
	err := m.send(ctx, true, func() error {
		v, err := do(context.Background())
		if err == nil {
			got <- v
		}
		return err
	})
	if err != nil {
		return "", err
	}
	return <-got, nil
}

func (m *machine) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	return m.put(ctx, func(ctx context.Context) (storage.Version, error) { return m.mem.PutIfAbsent(ctx, key, data) })
}

func (m *machine) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	return m.put(ctx, func(ctx context.Context) (storage.Version, error) { return m.mem.PutIfMatch(ctx, key, data, v) })
}

func (m *machine) DeleteIfMatch(ctx context.Context, key string, v storage.Version) error {
	return m.send(ctx, true, func() error { return m.mem.DeleteIfMatch(context.Background(), key, v) })
}

// List implements storage.Store. It is not used while faults last.
func (m *machine) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	m.gate()
	return m.mem.List(ctx, prefix, after)
}
