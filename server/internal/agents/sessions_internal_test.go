package agents

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/buckets"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/test/slowpeer"
)

func TestSessionsOfAGroup(t *testing.T) {
	l := newSessions(func(nstance.Fact) {})
	open := func(id nstance.InstanceID, group nstance.GroupID) *session {
		s := &session{id: id, group: nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: group}}
		s.ctx, s.cancel = context.WithCancelCause(t.Context())
		return s
	}
	of := func(group nstance.GroupID) []*session { // in any order
		return l.of(nstance.GroupKey{Tenant: nstance.DefaultTenant, Group: group})
	}
	a, b, c := open("a", "web"), open("b", "web"), open("c", "db")
	for _, s := range []*session{a, b, c} {
		require.NoError(t, l.begin(s))
	}
	require.ElementsMatch(t, []*session{a, b}, of("web"))
	require.Equal(t, []*session{c}, of("db"))

	again := open("a", "db") // it comes back, as another group's
	require.NoError(t, l.begin(again))
	require.Equal(t, []*session{b}, of("web"))
	require.ElementsMatch(t, []*session{c, again}, of("db"))
	l.end(a, true)
	require.ElementsMatch(t, []*session{c, again}, of("db"))
	l.end(b, true)
	require.Empty(t, of("web"))
	require.Len(t, l.byGroup, 1)

	for _, s := range l.all() {
		s.cancel(nil) // there is no stream to send to
	}
	l.close(errReplaced)
	require.Empty(t, of("db"))
	require.Empty(t, l.byGroup)
}

// TestSessionsShareOneLimit: an agent that connects again sends no more messages than in
// one session.
func TestSessionsShareOneLimit(t *testing.T) {
	a := &Agents{Options: Options{Config: func() *config.Config { return &config.Config{} }}, messages: buckets.New(messagesPerSecond, messageBurst)}
	open := func(id nstance.InstanceID) *session {
		return newSession(a, nstance.Identity{}, id, nstance.GroupKey{}, slowpeer.New[apiv1.ConnectRequest, apiv1.ConnectResponse](t.Context()))
	}
	first := open("a")
	for range messageBurst {
		require.True(t, first.limiter.Allow())
	}
	require.False(t, open("a").limiter.AllowN(time.Now(), messageBurst/2))
	require.True(t, open("b").limiter.AllowN(time.Now(), messageBurst/2))
}
