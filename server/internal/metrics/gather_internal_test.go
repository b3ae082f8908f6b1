package metrics

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestScrapesAreNeverRefused: however many clients scrape, each gets an answer that is
// not older than its request, and the server is looked at once at a time.
func TestScrapesAreNeverRefused(t *testing.T) {
	var looking, most, looks atomic.Int32
	m := New(func() State {
		most.Store(max(most.Load(), looking.Add(1)))
		defer looking.Add(-1)
		looks.Add(1)
		return State{Shard: "s1"}
	})
	h := m.Handler()
	var wg sync.WaitGroup
	var refused atomic.Int32
	for range 40 {
		wg.Go(func() {
			for range 20 {
				before := looks.Load()
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
				if w.Code != http.StatusOK || looks.Load() == before {
					refused.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, refused.Load())
	require.EqualValues(t, 1, most.Load())
}

// TestSlowScrapers: a source whose clients do not read their answers delays no other source.
func TestSlowScrapers(t *testing.T) {
	m := New(func() State { return State{Shard: "s1"} })
	h := m.Handler()
	blocked := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(blocked)
	writing := make(chan struct{}, 20)
	for i := range 20 {
		wg.Go(func() {
			r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			r.RemoteAddr = fmt.Sprintf("[2001:db8::%x]:80", i+1) // one /64
			h.ServeHTTP(&unread{httptest.NewRecorder(), writing, blocked}, r)
		})
	}
	<-writing
	<-writing
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil).WithContext(ctx))
	require.NotZero(t, w.Body.Len())
}

// unread is an answer that blocks until it is given up.
type unread struct {
	*httptest.ResponseRecorder
	writing chan<- struct{}
	blocked <-chan struct{}
}

func (u *unread) Write(b []byte) (int, error) {
	u.writing <- struct{}{}
	<-u.blocked
	return 0, http.ErrHandlerTimeout
}
