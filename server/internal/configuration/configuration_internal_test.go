package configuration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server/internal/ports"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// A server is a Reloader with what it is given, and one term of it.
type server struct {
	*Term
	t       *testing.T
	store   *storagetest.Faulty
	termErr error
	impact  reconcile.Impact // of each change
	events  []nstance.Event
	inForce []string // digests, in the order in which groups were told

	mu      sync.Mutex
	text    string // at the source
	readErr error  // of the source
	reads   int
}

func (s *server) LookUpTypes(context.Context, *config.Config)     {}
func (s *server) Impact(*config.Config) (reconcile.Impact, error) { return s.impact, nil }
func (s *server) ApplySoon()                                      {}
func (s *server) RefreshLookups()                                 {}
func (s *server) Apply(context.Context) error {
	s.inForce = append(s.inForce, s.InForce().Digest())
	return nil
}

func (s *server) read(context.Context) (string, []byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	return "shard.jsonc", []byte(s.text), s.readErr
}

// set changes what the source has.
func (s *server) set(text string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text, s.readErr, s.reads = text, err, 0
}

func (s *server) journalled(typ nstance.EventType) (reasons []string) {
	for _, e := range s.events {
		if e.Type == typ {
			reasons = append(reasons, e.Reason+e.Error)
		}
	}
	return reasons
}

// textOf is a configuration with one group of a size, which permits 2 changes at once.
func textOf(size int) string {
	return fmt.Sprintf(`{
		"cluster": {"id": "c1"}, "shard": {"id": "s1", "provider": {"kind": "sim"}, "max_change": 2},
		"templates": {"vm": {"kind": "web", "arch": "amd64", "instance_type": "small"}},
		"groups": {"default": {"web": {"template": "vm", "size": %d}}}
	}`, size)
}

// start opens a server over store, with text at its source, and begins a term.
func start(t *testing.T, store *storagetest.Faulty, text string) (*server, error) {
	t.Helper()
	s := &server{t: t, store: store, text: text}
	r, err := Open(t.Context(), Options{
		Source: s.read, Store: store, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		CheckAbilities: func(*config.Config) error { return nil },
	})
	require.NoError(t, err)
	s.Term, err = r.Begin(t.Context(), TermOptions{
		Epoch: 1, Check: func() error { return s.termErr }, Reread: time.Minute, Changed: func() {}, Groups: s,
		Journal: func(e nstance.Event) { s.events = append(s.events, e) },
	})
	return s, err
}

// started is start, which must succeed.
func started(t *testing.T, store *storagetest.Faulty, text string) *server {
	t.Helper()
	s, err := start(t, store, text)
	require.NoError(t, err)
	return s
}

func newStore() *storagetest.Faulty { return storagetest.NewFaulty(storage.NewMemory()) }

// refresh puts text at the source and refreshes.
func (s *server) refresh(text string) (changed bool, err error) {
	s.set(text, nil)
	return s.Refresh(s.t.Context(), "test")
}

func (s *server) size() int { return s.Term.InForce().Groups()[0].Size }

// kinds of what needs attention.
func (s *server) kinds() (kinds []string) {
	for _, a := range s.Attention() {
		kinds = append(kinds, string(a.Kind))
	}
	return kinds
}

func TestBegin(t *testing.T) {
	t.Run("a new shard accepts what the server was started with", func(t *testing.T) {
		store := newStore()
		s := started(t, store, textOf(4))
		require.Len(t, s.journalled(eventtype.ConfigAccepted), 1)
		require.Equal(t, 4, started(t, store, textOf(5)).size(), "the next leader continues with it")
	})
	t.Run("no term begins without the first one stored", func(t *testing.T) {
		store := newStore()
		store.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Err: nstance.Denied})
		s, err := start(t, store, textOf(4))
		require.ErrorIs(t, err, nstance.Denied)
		require.Empty(t, s.events)
	})
	t.Run("no term begins where the accepted one is unknown", func(t *testing.T) {
		store := newStore()
		started(t, store, textOf(4))
		store.Inject(storagetest.Fault{Op: storagetest.Get, Times: -1})
		_, err := start(t, store, textOf(5))
		require.ErrorIs(t, err, nstance.Unavailable)
	})
	t.Run("a shard of another cluster", func(t *testing.T) {
		store := newStore()
		started(t, store, textOf(4))
		_, err := start(t, store, strings.Replace(textOf(4), `"c1"`, `"c2"`, 1))
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, "the shard runs with c1, this server was started for c2")
		require.ErrorContains(t, err, "accepted/s1.json")
	})
}

func TestUnreadableAccepted(t *testing.T) {
	store := newStore()
	started(t, store, textOf(4))
	obj, err := store.Get(t.Context(), layout.AcceptedKey("s1"))
	require.NoError(t, err)
	damaged := strings.Replace(string(obj.Data), `"digest":"`, `"digest":"0`, 1)
	_, err = store.PutIfMatch(t.Context(), obj.Key, []byte(damaged), obj.Version)
	require.NoError(t, err)

	s := started(t, store, textOf(2))
	require.Equal(t, 2, s.size(), "the file of this server is in force")
	require.Equal(t, []string{AttentionNotDurable}, s.kinds())
	require.Contains(t, s.Attention()[0].Why, "accepted/s1.json cannot be used")
	for _, size := range []int{2, 2, 3, 3} {
		changed, err := s.refresh(textOf(size))
		require.NoError(t, err)
		require.True(t, changed, "it is considered each time")
		require.Equal(t, size, s.size())
	}
	require.Len(t, s.journalled(eventtype.ConfigAccepted), 2, "each once")
	s.impact.Removed = 3
	_, err = s.refresh(textOf(0))
	require.Error(t, err)
	require.Equal(t, 3, s.size())
	now, err := store.Get(t.Context(), obj.Key)
	require.NoError(t, err)
	require.Equal(t, damaged, string(now.Data), "it is not overwritten")
}

func TestAcceptedIsDurableBeforeItIsInForce(t *testing.T) {
	for name, c := range map[string]struct {
		fault    storagetest.Fault
		accepted bool
	}{
		"refused":            {storagetest.Fault{Op: storagetest.PutIfMatch, Err: nstance.Denied}, false},
		"the answer is lost": {storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.LoseAnswer, Err: nstance.Ambiguous}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := started(t, newStore(), textOf(4))
			s.store.Inject(c.fault)
			changed, err := s.refresh(textOf(3))
			require.Equal(t, c.accepted, err == nil, "%v", err)
			if c.accepted {
				require.True(t, changed)
				require.Equal(t, []string{s.Status().Digest}, s.inForce)
				require.Len(t, s.journalled(eventtype.ConfigAccepted), 2)
			} else {
				require.Equal(t, 4, s.size())
				require.Empty(t, s.inForce)
				require.Len(t, s.journalled(eventtype.ConfigAccepted), 1)
			}
			s.store.ClearFaults()
			_, err = s.refresh(textOf(3))
			require.NoError(t, err)
			require.Equal(t, 3, started(t, s.store, textOf(9)).size(), "the next leader has it")
		})
	}
}

func TestHold(t *testing.T) {
	s := started(t, newStore(), textOf(4))
	held := func(size int) string {
		t.Helper()
		s.impact = reconcile.Impact{Members: 5, Removed: 2, Rotated: 1}
		changed, err := s.refresh(textOf(size))
		require.False(t, changed)
		require.ErrorIs(t, err, nstance.Conflict)
		require.ErrorContains(t, err, "would remove 2 and replace 1 of 5 members, and shard.max_change permits 2")
		require.Equal(t, 4, s.size())
		require.ErrorContains(t, err, "config confirm "+s.Status().HeldDigest)
		return s.Status().HeldDigest
	}
	t.Run("one that cannot be stored is not held", func(t *testing.T) {
		s.store.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Err: nstance.Denied})
		s.impact.Removed = 3
		_, err := s.refresh(textOf(1))
		require.ErrorIs(t, err, nstance.Denied)
		require.Empty(t, s.Status().HeldDigest)
		require.Empty(t, s.journalled(eventtype.ConfigHeld))
		s.store.ClearFaults()
	})
	first := held(1)
	require.Equal(t, first, held(1))
	require.Len(t, s.journalled(eventtype.ConfigHeld), 1, "once")
	require.Len(t, s.journalled(nstance.EventAlarm), 1)
	require.Equal(t, []string{AttentionHeld}, s.kinds())
	second := held(0)
	require.Len(t, s.journalled(eventtype.ConfigWithdrawn), 1, "another one replaces it")
	require.Contains(t, s.journalled(eventtype.ConfigWithdrawn)[0], first)

	t.Run("only the held one can be confirmed", func(t *testing.T) {
		for _, digest := range []string{"", first, s.Status().Digest} {
			require.ErrorIs(t, s.Confirm(t.Context(), digest, "test", false), nstance.Conflict)
		}
		require.NoError(t, s.Confirm(t.Context(), second, "test", true))
		require.Equal(t, 4, s.size(), "it was a dry run")
	})
	t.Run("the next leader still holds it", func(t *testing.T) {
		require.Equal(t, second, started(t, s.store, textOf(9)).Status().HeldDigest)
	})
	t.Run("the one in force at the source again", func(t *testing.T) {
		_, err := s.refresh(textOf(4))
		require.NoError(t, err)
		require.Empty(t, s.Status().HeldDigest)
		require.Len(t, s.journalled(eventtype.ConfigWithdrawn), 2)
		require.ErrorIs(t, s.Confirm(t.Context(), second, "test", false), nstance.Conflict)
		require.Empty(t, started(t, s.store, textOf(9)).Status().HeldDigest)
	})
	t.Run("a small change replaces it", func(t *testing.T) {
		held(1)
		s.impact = reconcile.Impact{Members: 5, Removed: 1, Rotated: 1}
		_, err := s.refresh(textOf(3))
		require.NoError(t, err)
		require.Empty(t, s.Status().HeldDigest)
		require.Len(t, s.journalled(eventtype.ConfigWithdrawn), 3)
		_, err = s.refresh(textOf(4))
		require.NoError(t, err)
	})
	t.Run("confirmed", func(t *testing.T) {
		digest := held(1)
		s.store.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Err: nstance.Denied})
		require.ErrorIs(t, s.Confirm(t.Context(), digest, "test", false), nstance.Denied)
		require.Equal(t, 4, s.size())
		require.Equal(t, digest, s.Status().HeldDigest)
		s.store.ClearFaults()
		require.NoError(t, s.Confirm(t.Context(), digest, "test", false))
		require.Equal(t, 1, s.size())
		require.Empty(t, s.kinds())
		require.Len(t, s.journalled(eventtype.ConfigWithdrawn), 3, "it was not withdrawn")
	})
}

func TestRefusal(t *testing.T) {
	s := started(t, newStore(), textOf(4))
	for range 2 {
		_, err := s.refresh("{")
		require.ErrorIs(t, err, nstance.Invalid)
	}
	require.Len(t, s.journalled(eventtype.ConfigRefused), 1, "once")
	require.Equal(t, []string{AttentionRefused}, s.kinds())
	s.set("", nstance.Unavailable)
	_, err := s.Refresh(t.Context(), "test")
	require.ErrorIs(t, err, nstance.Unavailable)
	_, err = s.refresh("{")
	require.Error(t, err)
	require.Len(t, s.journalled(eventtype.ConfigRefused), 1, "an unreachable source is no decision")

	_, err = s.refresh(strings.Replace(textOf(4), `"c1"`, `"c2"`, 1))
	require.ErrorContains(t, err, "cluster.id", "needs a restart")
	require.Len(t, s.journalled(eventtype.ConfigRefused), 2)
	require.Error(t, s.CheckSource(t.Context()))
	_, err = s.refresh(textOf(4))
	require.NoError(t, err)
	require.Empty(t, s.kinds())
	require.Equal(t, 4, s.size())
}

// TestTermEnds: a server that leads no longer puts nothing in force, and the next leader
// decides about the configuration.
func TestTermEnds(t *testing.T) {
	s := started(t, newStore(), textOf(4))
	s.termErr = errors.New("the lease is lost")
	_, err := s.refresh(textOf(3))
	require.ErrorIs(t, err, ports.ErrTermEnded)
	require.Equal(t, 4, s.size())
	require.Empty(t, s.inForce)
	require.Empty(t, s.kinds(), "it is not refused")
	require.Equal(t, 4, started(t, s.store, textOf(9)).size())
}

func TestConfigurationsAreSerialized(t *testing.T) {
	s := started(t, newStore(), textOf(4))
	require.NoError(t, s.acquire(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Refresh(ctx, "test")
	require.ErrorIs(t, err, nstance.Unavailable)
	require.ErrorIs(t, s.Confirm(ctx, "", "test", false), nstance.Unavailable)
	require.ErrorIs(t, s.CheckSource(ctx), nstance.Unavailable)
	s.release()
	_, err = s.Refresh(t.Context(), "test")
	require.NoError(t, err)
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := started(t, newStore(), textOf(4))
		s.set(textOf(3), nstance.Unavailable)
		go s.Run(t.Context())
		pass := func(d time.Duration) (reads int) {
			sleep.For(t.Context(), d)
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.reads
		}
		require.Equal(t, 4, pass(16*time.Second), "every 5 s while the source is unavailable")
		s.set(textOf(3), nil)
		pass(5 * time.Second)
		require.Equal(t, 3, s.size())
		s.set(textOf(2), nil)
		require.Equal(t, 1, pass(67*time.Second), "after 54 to 66 s")
		require.Equal(t, 2, s.size())
	})
}

// TestUnansweredDecision: a configuration whose write was not answered is in force, or held,
// if it is durable, and not otherwise, also later. So is what a former leader was writing.
func TestUnansweredDecision(t *testing.T) {
	decide := map[string]func(s *server) error{
		"accepted": func(s *server) error { _, err := s.refresh(textOf(3)); return err },
		"held": func(s *server) error {
			s.impact = reconcile.Impact{Members: 5, Removed: 3}
			_, err := s.refresh(textOf(1))
			return err
		},
		"confirmed": func(s *server) error {
			return s.Confirm(s.t.Context(), s.Status().HeldDigest, "test", false)
		},
		"no longer held": func(s *server) error { _, err := s.refresh(textOf(4)); return err },
	}
	for name, decision := range decide {
		for _, landed := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				s := started(t, newStore(), textOf(4))
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				go s.Run(ctx)
				sleep.For(t.Context(), time.Second)
				if name == "confirmed" || name == "no longer held" {
					require.ErrorIs(t, decide["held"](s), nstance.Conflict)
				}
				before := s.Status()
				s.store.Inject(
					storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.Late, Err: nstance.Ambiguous},
					storagetest.Fault{Op: storagetest.Get, Err: nstance.Unavailable, Do: func() {
						if landed {
							s.store.ApplyLate()
						}
					}})
				require.ErrorIs(t, decision(s), nstance.Ambiguous, name)
				s.set("{", nstance.Unavailable) // the source has nothing to say
				s.impact = reconcile.Impact{}
				sleep.For(t.Context(), 3*time.Second)
				s.store.ApplyLate()
				sleep.For(t.Context(), 3*time.Second)
				stop()
				synctest.Wait()
				is := s.Status()
				if !landed {
					require.Equal(t, []string{before.Digest, before.HeldDigest}, []string{is.Digest, is.HeldDigest}, name)
				} else {
					require.NotEqual(t, []string{before.Digest, before.HeldDigest}, []string{is.Digest, is.HeldDigest}, name)
				}
				next := started(t, s.store, textOf(9)).Status()
				require.Equal(t, []string{next.Digest, next.HeldDigest}, []string{is.Digest, is.HeldDigest}, "%s: the next leader has the same", name)
			})
		}
	}
}
