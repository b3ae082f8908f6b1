package reconcile_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
)

// timed is a cloud that records when creates are called and can be slow.
type timed struct {
	nstance.Provider
	mu          sync.Mutex
	called      map[nstance.InstanceID]time.Time // the first create of each
	slowCreates bool
	slowDeletes bool
}

// longCall is the duration of slow calls.
const longCall = 20 * time.Second

// timing puts such a cloud behind a world's leaders.
func (w *world) timing() *timed {
	p := &timed{Provider: w.cloud, called: map[nstance.InstanceID]time.Time{}}
	w.wrap = func(o *leaderEnv) { o.provider = p }
	return p
}

func (p *timed) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	p.mu.Lock()
	if p.called[spec.ID].IsZero() {
		p.called[spec.ID] = time.Now()
	}
	slow := p.slowCreates
	p.mu.Unlock()
	if slow {
		pause(ctx, longCall)
	}
	return p.Provider.Create(ctx, spec)
}

func (p *timed) Delete(ctx context.Context, m nstance.Machine) error {
	p.mu.Lock()
	slow := p.slowDeletes
	p.mu.Unlock()
	if slow {
		pause(ctx, longCall)
	}
	return p.Provider.Delete(ctx, m)
}

// slow makes creates or deletes slow from now on.
func (p *timed) slow(creates, deletes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slowCreates, p.slowDeletes = creates, deletes
}

// since returns the number of creates called since then and the time of the last one.
func (p *timed) since(then time.Time) (n int, last time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, at := range p.called {
		if at.Before(then) {
			continue
		}
		n++
		if at.After(last) {
			last = at
		}
	}
	return n, last
}

// of returns when the create of an instance was called.
func (p *timed) of(id nstance.InstanceID) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.called[id]
}

// TestVoluntaryStepsDelayNoReplacement: voluntary calls have their own lanes, so that
// neither their number nor a slow cloud delays replacements.
func TestVoluntaryStepsDelayNoReplacement(t *testing.T) {
	const width = 2 // less than the creates that may be in flight before the first answer
	for name, c := range map[string]struct {
		from, to         int
		creates, deletes bool
	}{
		"a scale-up":   {3, 60, true, false},
		"a scale-down": {40, 3, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{})
				defer w.close()
				p := &timed{Provider: w.cloud, called: map[nstance.InstanceID]time.Time{}}
				w.wrap = func(o *leaderEnv) {
					o.provider = p
					o.options = func(opts *reconcile.Options) { opts.Width = width }
				}
				w.startLeader(webGroup(c.from))
				w.advance(5 * time.Minute)
				require.Len(t, w.ready(), c.from)
				p.slow(c.creates, c.deletes)
				scaled := time.Now()
				w.setGroups(webGroup(c.to))
				w.advance(10 * time.Second)
				if n, _ := p.since(scaled); c.creates {
					require.Equal(t, width, n, "as many as the width")
				} else {
					require.GreaterOrEqual(t, w.count(nstance.EventDeleteRequested, ""), width)
					require.Zero(t, w.count(nstance.EventDeleted, ""))
				}

				doomed := w.ready()[0]
				require.NoError(t, w.cloud.Reclaim(doomed, 2*time.Minute))
				w.advance(2 * time.Second)
				received := w.first(nstance.EventNoticeReceived, func(e nstance.Event) bool { return e.Instance == doomed }).Time
				replacement := w.first(nstance.EventReplacementRequested, func(e nstance.Event) bool { return e.Replaces == doomed }).Instance
				require.WithinRange(t, p.of(replacement), received, received.Add(100*time.Millisecond))
				p.slow(false, false)
				w.advance(10 * time.Minute)
				w.requireMembers(c.to)
			})
		})
	}
}
