package operator

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nstance-go/nstance"
)

// An accessRig is an API server that accepts a token for its life, and the Secret with the
// latest token.
type accessRig struct {
	*nodeAccess
	stop func()

	mu       sync.Mutex
	life     time.Duration
	down     error // of every request; nil: none
	unusable error // of the stored kubeconfig; nil: it is used
	stored   time.Time
	used     time.Time
	asked    int // probes
	reads    int
	outcomes []bool
}

func newAccessRig(t *testing.T, life time.Duration) *accessRig {
	r := &accessRig{nodeAccess: newNodeAccess(), life: life}
	r.stored = time.Now()
	r.used = r.stored
	r.read = func(context.Context) ([]byte, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.reads++
		return strconv.AppendInt(nil, r.stored.UnixNano(), 10), nil
	}
	r.use = func(data []byte) (bool, error) {
		at, err := strconv.ParseInt(string(data), 10, 64)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.unusable != nil {
			return false, r.unusable
		}
		former := r.used
		r.used = time.Unix(0, at)
		return !former.Equal(r.used), err
	}
	r.probe = func(context.Context) error { return r.request() }
	r.changed = func(reached bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if n := len(r.outcomes); n == 0 || r.outcomes[n-1] != reached {
			r.outcomes = append(r.outcomes, reached)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.run(ctx) })
	r.stop = func() {
		cancel()
		running.Wait()
	}
	return r
}

// request is what the API server answers at this moment.
func (r *accessRig) request() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if r.down == nil && time.Since(r.used) >= r.life {
		return apierrors.NewUnauthorized("the token has expired")
	}
	return r.down
}

// rotate stores a new token.
func (r *accessRig) rotate() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stored = time.Now()
}

func (r *accessRig) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = err
}

// told returns and forgets what was reported.
func (r *accessRig) told() []bool {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.outcomes
	r.outcomes = nil
	return out
}

func (r *accessRig) readings() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reads
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

// TestShortTokens: tokens of 15 minutes, which are renewed five minutes before their end or
// only a moment before, serve for days without the nodes being lost.
func TestShortTokens(t *testing.T) {
	for _, every := range []time.Duration{10 * time.Minute, 15*time.Minute - time.Second} {
		t.Run(every.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newAccessRig(t, 15*time.Minute)
				defer r.stop()
				for end := time.Now().Add(72 * time.Hour); time.Now().Before(end); {
					pass(every)
					r.rotate()
				}
				require.Equal(t, []bool{true}, r.told())
				require.True(t, r.reached())
			})
		})
	}
}

// TestTokenRefused: the first request that is refused, whatever it is of, has the kubeconfig
// read at once. One that is not renewed has the nodes lost, and is not read in a storm.
func TestTokenRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newAccessRig(t, 15*time.Minute)
		defer r.stop()
		pass(15*time.Minute - 2*time.Second)
		r.rotate()
		pass(2 * time.Second)
		require.Equal(t, []bool{true}, r.told())
		if apierrors.IsUnauthorized(r.request()) { // of a drain
			r.refuse()
		}
		synctest.Wait()
		require.NoError(t, r.request(), "the new token is in use without a delay")

		pass(16 * time.Minute) // nothing renews it
		require.Equal(t, []bool{false}, r.told())
		c := r.condition()
		require.Equal(t, metav1.ConditionFalse, c.Status)
		require.Contains(t, c.Message, "expired")
		before := r.readings()
		for range 6000 {
			r.refuse()
			pass(10 * time.Millisecond)
		}
		require.LessOrEqual(t, r.readings()-before, 61, "once a second at most")
		r.rotate()
		r.refuse()
		pass(rereadPause)
		require.Equal(t, []bool{true}, r.told())
	})
}

// TestNodesLost: one probe that fails means nothing, two do, and one that succeeds too.
func TestNodesLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newAccessRig(t, time.Hour)
		defer r.stop()
		require.Equal(t, []bool{true}, r.told())
		pass(time.Second)
		r.fail(errors.New("connection refused"))
		pass(probeInterval)
		require.Empty(t, r.told())
		r.fail(nil)
		pass(probeInterval)
		r.fail(errors.New("connection refused"))
		pass(2 * probeInterval)
		require.Equal(t, []bool{false}, r.told())
		require.Contains(t, r.condition().Message, "connection refused")
		r.fail(nil)
		pass(probeInterval)
		require.Equal(t, []bool{true}, r.told())
	})
}

// TestUnusableKubeconfig: one that cannot be used leaves the former in use, and the condition
// says what is wrong.
func TestUnusableKubeconfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newAccessRig(t, time.Hour)
		defer r.stop()
		synctest.Wait()
		r.mu.Lock()
		r.unusable = nstance.FieldError("kubeconfig.users.user.exec", "give a token", "no program is run")
		r.mu.Unlock()
		r.refuse()
		pass(2 * rereadPause)
		require.Equal(t, []bool{true}, r.told())
		require.Contains(t, r.condition().Message, "no program is run (give a token)")
		require.Equal(t, metav1.ConditionTrue, r.condition().Status)
	})
}
