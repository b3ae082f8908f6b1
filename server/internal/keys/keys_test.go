package keys_test

import (
	"context"
	"crypto/x509"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/server/internal/keys"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// A server has the keys of one process open. Times are virtual.
type server struct {
	*keys.Keys
	changed, tended atomic.Int32
}

func open(t *testing.T, store storage.Store) *server {
	t.Helper()
	return openAt(t, store, time.Now)
}

func openAt(t *testing.T, store storage.Store, now func() time.Time) *server {
	t.Helper()
	s := &server{}
	var err error
	s.Keys, err = keys.Open(t.Context(), vault.New(store, nil), keys.Options{
		Shard: "s1", Cluster: "c1", Interval: time.Minute, Now: now, Log: slog.New(slog.DiscardHandler),
		Changed: func() { s.changed.Add(1) }, Tend: func(context.Context) { s.tended.Add(1) },
	})
	require.NoError(t, err)
	return s
}

// rotate does one step with the identity keys, as another process does it.
func rotate(t *testing.T, store storage.Store, step keyring.Step) {
	t.Helper()
	ring, err := keyring.OpenKeyring(t.Context(), vault.New(store, nil), time.Now)
	require.NoError(t, err)
	_, err = ring.Rotate(t.Context(), keyring.Rotation{Set: keyring.Identity, Step: step})
	require.NoError(t, err)
}

func (s *server) certificate(t *testing.T) *x509.Certificate {
	t.Helper()
	cert, err := s.Certificate()
	require.NoError(t, err)
	return cert.Leaf
}

// inBubble runs a test in virtual time, over a store that fails on demand.
func inBubble(t *testing.T, f func(t *testing.T, store *storagetest.Faulty)) {
	synctest.Test(t, func(t *testing.T) { f(t, storagetest.NewFaulty(storage.NewMemory())) })
}

func TestKeysAreDurableBeforeTheyAreUsed(t *testing.T) {
	inBubble(t, func(t *testing.T, store *storagetest.Faulty) {
		store.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Err: nstance.Denied})
		_, err := keys.Open(t.Context(), vault.New(store, nil), keys.Options{Now: time.Now})
		require.ErrorIs(t, err, nstance.Denied)

		for range 3 { // the answer to each of the first writes is lost
			store.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.LoseAnswer, Err: nstance.Ambiguous})
		}
		first := open(t, store)
		store.ClearFaults()
		require.Equal(t, first.Identity.Issuers(), open(t, store).Identity.Issuers(), "another server has the same keys")
	})
}

func TestServerCertificate(t *testing.T) {
	inBubble(t, func(t *testing.T, store *storagetest.Faulty) {
		s := open(t, store)
		first := s.certificate(t)
		_, err := first.Verify(x509.VerifyOptions{Roots: s.Identity.Pool(), CurrentTime: time.Now()})
		require.NoError(t, err)
		id, err := pki.IdentityOf(first)
		require.NoError(t, err)
		require.Equal(t, nstance.RoleServer, id.Role)

		sleep.For(t.Context(), 15*time.Hour)
		require.Same(t, first, s.certificate(t))
		sleep.For(t.Context(), time.Hour)
		second := s.certificate(t)
		require.NotEqual(t, first.SerialNumber, second.SerialNumber, "at two thirds of its life")
		require.True(t, first.NotAfter.After(time.Now().Add(7*time.Hour)), "connections with the first one go on")

		rotate(t, store, keyring.StepBegin)
		sleep.For(t.Context(), keyring.Settle)
		rotate(t, store, keyring.StepActivate)
		require.NoError(t, s.Refresh(t.Context()))
		require.Same(t, second, s.certificate(t), "clients may know the retired key only")
		sleep.For(t.Context(), keyring.Settle)
		rotate(t, store, keyring.StepFinish)
		require.NoError(t, s.Refresh(t.Context()))
		third := s.certificate(t)
		require.NotEqual(t, second.SerialNumber, third.SerialNumber)
		_, err = third.Verify(x509.VerifyOptions{Roots: s.Identity.Pool(), CurrentTime: time.Now()})
		require.NoError(t, err)
	})
}

// TestServerCertificateOfAWrongClock: clients with the right one can connect while it is behind, and once
// it is not ahead any more.
func TestServerCertificateOfAWrongClock(t *testing.T) {
	inBubble(t, func(t *testing.T, store *storagetest.Faulty) {
		var ahead time.Duration
		s := openAt(t, store, func() time.Time { return time.Now().Add(ahead) })
		sleep.For(t.Context(), 8*24*time.Hour)
		rightly := s.certificate(t)
		ahead = 16 * time.Hour
		require.NotSame(t, rightly, s.certificate(t))
		for _, ahead = range []time.Duration{0, -25 * time.Hour, 0} {
			now := s.certificate(t)
			for _, clock := range []time.Time{time.Now(), time.Now().Add(ahead)} {
				_, err := now.Verify(x509.VerifyOptions{Roots: s.Identity.Pool(), CurrentTime: clock})
				require.NoError(t, err)
			}
			require.Same(t, now, s.certificate(t))
		}
		ahead = 16 * time.Hour
		s.certificate(t)
		ahead = -7 * 24 * time.Hour
		require.WithinRange(t, s.certificate(t).NotAfter, time.Now().Add(ahead), time.Now().Add(ahead+73*time.Hour), "not for ever")
	})
}

func TestChangesAreHandledOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, store *storagetest.Faulty) {
		s := open(t, store)
		_, retired := s.Retired(keyring.Identity)
		require.False(t, retired)
		require.NoError(t, s.Refresh(t.Context()))
		require.Zero(t, s.changed.Load())
		rotate(t, store, keyring.StepBegin)
		for range 2 {
			require.NoError(t, s.Refresh(t.Context()))
			s.HandleChanges()
		}
		require.EqualValues(t, 1, s.changed.Load())
		require.Len(t, s.Identity.Issuers(), 2)

		sleep.For(t.Context(), keyring.Settle)
		old := s.Identity.Issuer()
		_, err := s.Ring.Rotate(t.Context(), keyring.Rotation{Set: keyring.Identity, Step: keyring.StepActivate})
		require.NoError(t, err)
		s.HandleChanges()
		require.EqualValues(t, 2, s.changed.Load(), "a step of this process is a change too")
		k, retired := s.Retired(keyring.Identity)
		require.True(t, retired)
		require.Equal(t, old, k.ID)
	})
}

func TestUnreadableKeys(t *testing.T) {
	inBubble(t, func(t *testing.T, store *storagetest.Faulty) {
		s := open(t, store)
		rotate(t, store, keyring.StepBegin)
		store.Inject(storagetest.Fault{Op: storagetest.Get, Times: -1, Err: nstance.Denied})
		before := s.Identity.Issuers()
		require.ErrorIs(t, s.Refresh(t.Context()), nstance.Denied)
		require.Equal(t, before, s.Identity.Issuers(), "the known keys stay in use")
		require.NoError(t, s.EnsureFresh(t.Context()), "they are fresh enough to lead")
		require.Empty(t, s.Problems())

		sleep.For(t.Context(), keyring.Settle/2+time.Second)
		require.ErrorIs(t, s.EnsureFresh(t.Context()), nstance.Denied)
		require.Len(t, s.Problems(), 1)
		require.Contains(t, s.Problems()[0], "this server would miss a rotation")

		store.ClearFaults()
		require.NoError(t, s.EnsureFresh(t.Context()))
		require.Empty(t, s.Problems())
		require.EqualValues(t, 1, s.changed.Load())
		store.Reset()
		require.NoError(t, s.EnsureFresh(t.Context()))
		require.Zero(t, store.Count(storagetest.Get), "fresh keys are not read again")
	})
}

func TestRunFollowsRotations(t *testing.T) {
	inBubble(t, func(t *testing.T, store *storagetest.Faulty) {
		s := open(t, store)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { s.Run(ctx); close(ended) }()
		sleep.For(t.Context(), time.Minute+time.Second)
		require.EqualValues(t, 1, s.tended.Load())
		store.Inject(storagetest.Fault{Op: storagetest.Get, Times: -1, Err: nstance.Denied})
		sleep.For(t.Context(), time.Minute)
		require.EqualValues(t, 2, s.tended.Load(), "also after a failed read")
		store.ClearFaults()
		rotate(t, store, keyring.StepBegin)
		sleep.For(t.Context(), time.Minute)
		require.EqualValues(t, 1, s.changed.Load())
		stop()
		<-ended
	})
}
