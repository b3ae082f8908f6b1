package definitions_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

func (s *source) mend() { s.fail(nil) }

func (s *source) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// TestReader: groups that want a definition are planned again when it has been read, and when
// it cannot be, which they say meanwhile. It is tried again with backoff.
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
				d.Get(key, "0123456789abcdef")
			}, slog.New(slog.DiscardHandler))
		}()
		<-time.After(2500 * time.Millisecond)
		synctest.Wait()
		times := func() map[nstance.GroupKey]int {
			mu.Lock()
			defer mu.Unlock()
			return maps.Clone(planned)
		}
		require.Equal(t, map[nstance.GroupKey]int{web: 2, api: 2}, times())
		require.Len(t, s.read(), 2, "after 0 and 1 s; 3 s is next")
		_, why = d.Get(web, "0123456789abcdef")
		require.Contains(t, why, "0123456789ab cannot be read: storage is away; ")
		s.mend()
		<-time.After(time.Second)
		synctest.Wait()
		require.Equal(t, map[nstance.GroupKey]int{web: 3, api: 3}, times())
		def, why := d.Get(web, "0123456789abcdef")
		require.Empty(t, why)
		require.Equal(t, "one", def.Image)
		<-time.After(time.Minute)
		require.Len(t, s.read(), 3, "what was read is not read again")
		d.Get(web, "other")
		<-time.After(time.Second)
		synctest.Wait()
		require.Equal(t, "other", s.read()[3], "alone")
		stop()
		<-done
	})
}

// withReader runs a reader of s until test ends. A group that is planned again asks again, if
// it still wants the definition.
func withReader(t *testing.T, s *source, test func(t *testing.T, wanted *atomic.Bool, log *bytes.Buffer)) {
	synctest.Test(t, func(t *testing.T) {
		d := definitions.New(s)
		ctx, stop := context.WithCancel(t.Context())
		var wanted atomic.Bool
		var log bytes.Buffer
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		ask := func(key nstance.GroupKey) {
			if wanted.Load() {
				d.Get(key, "0123456789abcdef")
			}
		}
		wanted.Store(true)
		ask(nstance.GroupKey{Tenant: "t", Group: "web"})
		running.Go(func() { d.Run(ctx, ask, slog.New(slog.NewTextHandler(&log, nil))) })
		test(t, &wanted, &log)
	})
}

// TestLostDefinition: what cannot be read for long is asked for once a minute, and logged when
// the reason changes.
func TestLostDefinition(t *testing.T) {
	s := &source{err: errors.New("storage is away")}
	withReader(t, s, func(t *testing.T, _ *atomic.Bool, log *bytes.Buffer) {
		<-time.After(time.Hour)
		synctest.Wait()
		require.Less(t, len(s.read()), 70)
		require.Greater(t, len(s.read()), 50)
		require.Equal(t, 1, strings.Count(log.String(), "\n"))
		s.fail(errors.New("no such object"))
		<-time.After(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, 2, strings.Count(log.String(), "\n"))
		require.Contains(t, log.String(), "no such object")
	})
}

// TestDefinitionThatNoGroupWants: no attempt follows once no group asks for it any more.
func TestDefinitionThatNoGroupWants(t *testing.T) {
	s := &source{err: errors.New("storage is away")}
	withReader(t, s, func(t *testing.T, wanted *atomic.Bool, _ *bytes.Buffer) {
		<-time.After(10 * time.Minute)
		synctest.Wait()
		wanted.Store(false)
		<-time.After(2 * time.Minute)
		synctest.Wait()
		reads := len(s.read())
		<-time.After(time.Hour)
		synctest.Wait()
		require.Len(t, s.read(), reads)
	})
}
