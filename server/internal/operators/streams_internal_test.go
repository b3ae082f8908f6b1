package operators

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/server/internal/ports"
)

// TestRevokedBeforeItsStream: a revocation between a call's check and the registration of its
// stream ends that too.
func TestRevokedBeforeItsStream(t *testing.T) {
	s := NewService(Options{})
	tm := s.NewTerm()
	tm.Verify = func(context.Context, nstance.Identity) (bool, error) {
		require.Len(t, tm.streams.open, 1, "from now on a revocation ends it")
		return false, nstance.Denied
	}
	ctx := s.WithCaller(t.Context(), nstance.Identity{Role: nstance.RoleAdmin}, tm)
	require.ErrorIs(t, s.ServeStream(ctx, func(context.Context) error { return nil }), nstance.Denied)
	require.Empty(t, tm.streams.open)
	require.Zero(t, s.AdminWatches())
}

// TestRecheckedStreams: those of an operator that was revoked elsewhere end, with its connections.
// A record that cannot be read says nothing.
func TestRecheckedStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := map[string]error{"revoked": nstance.Denied, "deleted": nstance.NotFound, "unread": nstance.Unavailable, "good": nil}
		ended, causes, closed := map[string]error{}, map[string]error{}, make(chan string, len(answers))
		var mu sync.Mutex // of what ended
		tm := &Term{TermOptions: TermOptions{
			Verify: func(_ context.Context, id nstance.Identity) (bool, error) { return false, answers[id.Subject] },
			End: func(id nstance.Identity, why error) {
				mu.Lock()
				defer mu.Unlock()
				ended[id.Subject] = why
			},
		}}
		var all []nstance.Identity
		for name := range answers {
			id := nstance.Identity{Subject: name, Role: nstance.RoleOperator}
			all = append(all, id)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			defer tm.streams.begin(&openStream{id: id, cancel: func(why error) { cancel(why); causes[name] = context.Cause(ctx) }, closeConnection: func() { closed <- name }})()
		}
		tm.Connected = func() []nstance.Identity { return all }
		tm.RecheckStreams(t.Context())
		want := map[string]error{"revoked": nstance.Denied, "deleted": nstance.NotFound}
		require.Equal(t, want, ended)
		require.Equal(t, want, causes)
		require.Empty(t, closed, "they are told why first")
		<-time.After(ports.CloseGrace)
		synctest.Wait()
		require.Len(t, closed, 2)
		require.ElementsMatch(t, []string{"revoked", "deleted"}, []string{<-closed, <-closed})
	})
}

// TestRechecksApart: an operator whose record is not read in time keeps no other that was revoked from
// losing its connections.
func TestRechecksApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended []string
		tm := &Term{TermOptions: TermOptions{
			Connected: func() []nstance.Identity { return []nstance.Identity{{Subject: "hangs"}, {Subject: "revoked"}} },
			Verify: func(ctx context.Context, id nstance.Identity) (bool, error) {
				if id.Subject == "hangs" {
					<-ctx.Done()
				}
				if err := ctx.Err(); err != nil {
					return false, err
				}
				return false, nstance.Denied
			},
			End: func(id nstance.Identity, _ error) { ended = append(ended, id.Subject) },
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		tm.RecheckStreams(ctx)
		require.Equal(t, []string{"revoked"}, ended)
	})
}
