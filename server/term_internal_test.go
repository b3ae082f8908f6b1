package server

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/server/internal/agents"
	"github.com/nstance-go/nstance/server/internal/registrar"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// TestResignedTerm: no call outlasts a term that was resigned; what it has learned may still be
// written.
func TestResignedTerm(t *testing.T) {
	l, err := lease.New(storage.NewMemory(), "s1", &lease.Options{TakeAtOnce: true, TTL: 10 * time.Second})
	require.NoError(t, err)
	granted, err := l.Campaign(t.Context())
	require.NoError(t, err)
	conf := openConfiguration(t, `{"cluster": {"id": "c1"}, "shard": {"id": "s1", "provider": {"kind": "sim"}}}`)
	tm := &term{granted: granted, server: &Server{config: conf}}
	require.NoError(t, tm.resigned())
	call, cancel := tm.bound(t.Context())
	defer cancel()
	require.NoError(t, l.Resign(t.Context()))
	require.ErrorIs(t, granted.Err(), lease.ErrResigned)
	require.NoError(t, tm.resigned())
	<-call.Done()
	require.ErrorIs(t, call.Err(), context.Canceled)
}

// TestCallerThatHasLeft: nothing is begun for it.
func TestCallerThatHasLeft(t *testing.T) {
	caller, leave := context.WithCancel(t.Context())
	leave()
	conf := openConfiguration(t, `{"cluster": {"id": "c1"}, "shard": {"id": "s1", "provider": {"kind": "sim"}}}`)
	l, err := lease.New(storage.NewMemory(), "s1", &lease.Options{TakeAtOnce: true, TTL: 10 * time.Second})
	require.NoError(t, err)
	granted, err := l.Campaign(t.Context())
	require.NoError(t, err)
	_, _, err = (&term{granted: granted, server: &Server{config: conf}}).work(caller)
	require.ErrorIs(t, err, nstance.Unavailable)
	require.ErrorContains(t, err, "the caller has left")
}

// TestForgottenInstance: of a deleted instance nothing is left that would concern another one.
func TestForgottenInstance(t *testing.T) {
	drained := make(chan nstance.InstanceID)
	drain := func(_ context.Context, id nstance.InstanceID, _ string) (nstance.Drain, error) {
		drained <- id
		return nstance.Drain{}, nil
	}
	log := slog.New(slog.DiscardHandler)
	tm := &term{records: &registrar.Records{}, agents: &agents.Agents{}, exposures: registrar.NewExposures(drain, func(nstance.Event) {}, time.Now, log)}
	web := nstance.Identity{Role: nstance.RoleAgent, Subject: "web1", Serial: "01"}
	tm.records.Successors.Use(web)
	tm.exposures.Superseded(web, "stolen")
	tm.forget("web1")
	require.False(t, tm.records.Successors.Used("web1", "01"))
	tm.exposures.Superseded(nstance.Identity{Role: nstance.RoleAgent, Subject: "web2"}, "stolen")

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { tm.exposures.Run(ctx) })
	require.Equal(t, nstance.InstanceID("web2"), <-drained)
	cancel()
	select {
	case id := <-drained:
		require.FailNow(t, "drained", id)
	case <-waited(&wg):
	}
}

// waited returns what is closed when wg is done.
func waited(wg *sync.WaitGroup) <-chan struct{} {
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	return done
}

// TestShorterHealthInterval: until agents have learned it, they are expected as seldom as before.
func TestShorterHealthInterval(t *testing.T) {
	conf := openConfiguration(t, `{"cluster": {"id": "c1"}, "shard": {"id": "s1", "provider": {"kind": "sim"}, "health_interval": "20s"}}`)
	u := &tuner{
		t: &term{server: &Server{config: conf}}, wake: make(chan struct{}, 1), interval: time.Minute,
		applied: tuning(conf.InForce().Shard, time.Minute),
	}
	u.tune()
	require.Equal(t, time.Minute, u.interval)
	require.Len(t, u.wake, 1, "they are to learn it")
}

// TestNewerHealthInterval: the interval that agents were to learn does not count where the
// configuration has another one meanwhile, and that one is learned next.
func TestNewerHealthInterval(t *testing.T) {
	conf := openConfiguration(t, `{"cluster": {"id": "c1"}, "shard": {"id": "s1", "provider": {"kind": "sim"}, "health_interval": "20s"}}`)
	u := &tuner{t: &term{server: &Server{config: conf}}, wake: make(chan struct{}, 1), interval: time.Minute}
	u.learned(10 * time.Second)
	require.Equal(t, time.Minute, u.interval)
	u.signal()
	require.False(t, u.pause(t.Context(), time.Hour))
	require.Len(t, u.wake, 1)
}
