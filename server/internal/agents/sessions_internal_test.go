package agents

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
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
