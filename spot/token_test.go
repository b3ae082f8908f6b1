package spot_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
)

// tokens is a metadata service whose tokens last for ten minutes, and whose token
// requests can hang.
type tokens struct {
	*imds.Server
	hang  atomic.Bool
	asked atomic.Int64
}

func (s *tokens) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		s.Server.ServeHTTP(w, r)
		return
	}
	if s.asked.Add(1); s.hang.Load() {
		hung(w, r)
		return
	}
	const ttl = "X-aws-ec2-metadata-token-ttl-seconds"
	r.Header.Set(ttl, "600")
	w.Header().Set(ttl, "600")
	s.Server.ServeHTTP(w, r)
}

func TestHangingTokenRequest(t *testing.T) {
	keys := []string{imds.AWSAction, imds.AWSRebalance, imds.AWSMaintenance, imds.AWSTargetState}
	bubble(t, "delays no read that has a good token", func(t *testing.T) {
		s := &tokens{Server: aws()}
		r := follow(t, newAWS(t, s))
		wait(t, 9*time.Minute-time.Second)
		s.hang.Store(true)
		wait(t, time.Second) // the token is due for a refresh, and good for a minute
		before := map[string]int{}
		for _, key := range keys {
			before[key] = s.Requests(key)
		}
		published := time.Now()
		s.Reclaim("terminate", published.Add(2*time.Minute))
		notices, errs := r.after(t, 30*time.Second)
		require.Empty(t, errs)
		require.Len(t, notices, 1)
		require.LessOrEqual(t, r.at[0].Sub(published), 5*time.Second, "one poll, and one request of its own for a token")
		total := 0
		for _, key := range keys {
			total += s.Requests(key) - before[key]
		}
		require.GreaterOrEqual(t, total, 4*15-12, "of 15 polls of each key")
		require.LessOrEqual(t, s.asked.Load(), int64(1+6))
	})
	bubble(t, "is shared by all concurrent callers", func(t *testing.T) {
		s := &tokens{Server: aws()}
		s.hang.Store(true)
		r := follow(t, newAWS(t, s))
		_, errs := r.after(t, 2*time.Second+time.Millisecond)
		require.Len(t, errs, len(keys), fmt.Sprint(errs))
		for _, err := range errs {
			require.ErrorIs(t, err, nstance.Unavailable)
		}
		require.EqualValues(t, 1, s.asked.Load())
		s.hang.Store(false)
		s.Reclaim("terminate", time.Now().Add(2*time.Minute))
		notices, _ := r.after(t, 5*time.Second)
		require.Len(t, notices, 1)
	})
}
