package reconcile_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage"
)

// TestDeletionsSurviveBriefTerms: deletions end although no leader lasts for a consistency
// window, because what proves that a machine is gone is on record.
func TestDeletionsSurviveBriefTerms(t *testing.T) {
	for name, registered := range map[string]bool{"registered": true, "never registered": false} {
		for _, term := range []time.Duration{2500 * time.Millisecond, 4 * time.Second, 8 * time.Second} {
			t.Run(fmt.Sprintf("%s, terms of %s", name, term), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					w := newWorld(t, simcloud.Options{})
					defer w.close()
					w.keepLives = true
					if !registered {
						w.badImage = func(nstance.MachineSpec) bool { return true }
					}
					w.startLeader(webGroup(13))
					w.advance(2 * time.Minute)
					require.Len(t, w.cloud.Machines(), 13)
					w.cloud.Inject(simcloud.Fault{Op: simcloud.OpDelete, Lost: true, Times: -1})
					w.cloud.Inject(simcloud.Fault{Op: simcloud.OpGet, Times: -1})
					w.setGroups(webGroup(0))
					require.Eventually(t, func() bool { w.advance(time.Second); return len(w.cloud.Machines()) == 0 }, time.Minute, time.Millisecond)
					require.Len(t, w.stored(layout.InstancePrefix("s1")), 13, "deleted, and no leader knows")
					w.cloud.ClearFaults()
					began := time.Now()
					limit := time.Minute
					if !registered { // a call that was sent before the mark may still be under way
						limit = 3 * time.Minute
					}
					for time.Since(began) < limit {
						w.stopLeader()
						w.startLeader(webGroup(0))
						w.advance(term)
					}
					require.Empty(t, w.stored(layout.InstancePrefix("s1")))
					require.Len(t, w.lives(), 13)
				})
			})
		}
	}
}

// TestCreatesSurviveBriefTerms: a create that never arrived is sent again although no leader
// lasts for a consistency window, and makes one machine.
func TestCreatesSurviveBriefTerms(t *testing.T) {
	for _, shows := range []time.Duration{0, 9 * time.Second} {
		for _, term := range []time.Duration{2500 * time.Millisecond, 4 * time.Second, 8 * time.Second} {
			t.Run(fmt.Sprintf("shown after %s, terms of %s", shows, term), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					w := newWorld(t, simcloud.Options{Lag: simcloud.Delay{Min: shows}, ByToken: true})
					defer w.close()
					w.cloud.Inject(simcloud.Fault{Op: simcloud.OpCreate, Code: nstance.Unavailable, Times: 5})
					w.startLeader(webGroup(5))
					for began := time.Now(); time.Since(began) < 2*time.Minute; {
						w.advance(term)
						w.stopLeader()
						w.startLeader(webGroup(5))
					}
					require.Len(t, w.cloud.Machines(), 5)
					require.Len(t, w.stored(layout.InstancePrefix("s1")), 5)
				})
			})
		}
	}
}

// An endingStore answers the next write of a record after the end of the term.
type endingStore struct {
	storage.Store
	armed, over *atomic.Bool
}

func (s endingStore) PutIfMatch(ctx context.Context, key string, data []byte, at storage.Version) (storage.Version, error) {
	v, err := s.Store.PutIfMatch(ctx, key, data, at)
	if err == nil && strings.HasPrefix(key, "instance/") && s.armed.Swap(false) {
		s.over.Store(true)
	}
	return v, err
}

// TestAnswerAfterTheTerm: the next leader may have read a record before a write of it that is
// answered after the end of the term. No caller is told that it is durable.
func TestAnswerAfterTheTerm(t *testing.T) {
	ending := func(t *testing.T, test func(t *testing.T, w *world, id nstance.InstanceID)) {
		withGroup(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
			var armed, over atomic.Bool
			w.wrap = func(o *leaderEnv) {
				o.store = endingStore{o.store, &armed, &over}
				o.check = func() error {
					if over.Load() {
						return nstance.Errorf(nstance.Unavailable, "the term is over")
					}
					return o.ctx.Err()
				}
			}
			w.changeLeader(webGroup(3))
			id := w.ready()[0]
			armed.Store(true)
			test(t, w, id)
			require.True(t, over.Load())
		})
	}
	t.Run("a notice", func(t *testing.T) {
		ending(t, func(t *testing.T, w *world, id nstance.InstanceID) {
			require.NoError(t, w.cloud.Reclaim(id, time.Hour))
			w.advance(time.Minute)
			w.mu.Lock()
			defer w.mu.Unlock()
			require.Empty(t, w.acked)
		})
	})
	for name, call := range map[string]func(context.Context, *world, nstance.InstanceID) error{
		"a drain": func(ctx context.Context, w *world, id nstance.InstanceID) error {
			_, err := w.r.Drain(ctx, id, requester)
			return err
		},
		"a deletion": func(ctx context.Context, w *world, id nstance.InstanceID) error {
			return w.r.Delete(ctx, id, requester, true)
		},
		"a preservation": func(ctx context.Context, w *world, id nstance.InstanceID) error {
			return w.r.Admin().Preserve(ctx, id, time.Now().Add(time.Hour), requester)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ending(t, func(t *testing.T, w *world, id nstance.InstanceID) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				require.Error(t, call(ctx, w, id))
			})
		})
	}
}

// TestWithdrawalsSurviveBriefTerms: a load balancer that refuses to let a machine go holds its
// deletion for its time, not for that time in every term.
func TestWithdrawalsSurviveBriefTerms(t *testing.T) {
	withBalancer(t, 3, simcloud.Options{}, func(t *testing.T, w *world) {
		w.cloud.Inject(simcloud.Fault{Op: simcloud.OpLeave, ID: "lb-1", Times: -1, Code: nstance.Internal})
		w.setGroups(balancedGroup(0, "front"))
		w.advance(10 * time.Second)
		require.Len(t, w.cloud.Machines(), 3)
		for range 40 {
			w.stopLeader()
			w.startLeader(balancedGroup(0, "front"))
			w.advance(5 * time.Second)
		}
		require.Empty(t, w.cloud.Machines())
	})
}
