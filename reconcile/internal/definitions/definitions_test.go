package definitions_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/reconcile/internal/definitions"
)

// A source has one definition, once it can be read.
type source struct {
	mu     sync.Mutex
	err    error
	cached map[string]bool
	reads  []string // the digests of each read
}

func (s *source) CachedDefinition(digest string) (nstance.Definition, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return nstance.Definition{Image: "one"}, s.cached[digest]
}

func (s *source) Definitions(_ context.Context, digests []string) (map[string]nstance.Definition, map[string]error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads = append(s.reads, strings.Join(digests, " "))
	if s.err != nil {
		return nil, map[string]error{digests[0]: s.err}
	}
	s.cached = map[string]bool{}
	for _, d := range digests {
		s.cached[d] = true
	}
	return nil, nil
}

func (s *source) read() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.reads)
}

func (s *source) mend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = nil
}

// TestReader: groups that want a definition are planned again when it has been read, and once
// when it first cannot be, which they say meanwhile. It is tried again each second.
func TestReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{err: errors.New("storage is away")}
		d := definitions.New(s)
		planned := map[nstance.GroupKey]int{}
		var mu sync.Mutex
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		web, api := nstance.GroupKey{Tenant: "t", Group: "web"}, nstance.GroupKey{Tenant: "t", Group: "api"}
		_, why := d.Get(web, "0123456789abcdef")
		require.Equal(t, "0123456789ab is being read", why)
		d.Get(web, "0123456789abcdef")
		d.Get(api, "0123456789abcdef")
		go func() {
			defer close(done)
			d.Run(ctx, func(key nstance.GroupKey) {
				mu.Lock()
				defer mu.Unlock()
				planned[key]++
			}, slog.New(slog.DiscardHandler))
		}()
		<-time.After(2500 * time.Millisecond)
		synctest.Wait()
		times := func() map[nstance.GroupKey]int {
			mu.Lock()
			defer mu.Unlock()
			return maps.Clone(planned)
		}
		require.Equal(t, map[nstance.GroupKey]int{web: 1, api: 1}, times())
		require.Len(t, s.read(), 3)
		_, why = d.Get(web, "0123456789abcdef")
		require.Contains(t, why, "0123456789ab cannot be read: storage is away; ")
		s.mend()
		<-time.After(time.Second)
		synctest.Wait()
		require.Equal(t, map[nstance.GroupKey]int{web: 2, api: 2}, times())
		def, why := d.Get(web, "0123456789abcdef")
		require.Empty(t, why)
		require.Equal(t, "one", def.Image)
		<-time.After(time.Minute)
		require.Len(t, s.read(), 4, "what was read is not read again")
		d.Get(web, "other")
		<-time.After(time.Second)
		synctest.Wait()
		require.Equal(t, "other", s.read()[4], "alone")
		stop()
		<-done
	})
}
