package admin_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/pki"
)

// ageing gives the world an identity of that age, of the 24 hours it lives.
func (w *world) ageing(age time.Duration) admin.Identity {
	id := w.identity(time.Now().Add(-age))
	require.NoError(w.t, admin.SaveIdentity(w.dir, id))
	return id
}

func (w *world) saved() admin.Identity {
	id, err := admin.LoadIdentity(w.dir)
	require.NoError(w.t, err)
	return id
}

func TestRenewal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t.Run("not before two thirds of its life", func(t *testing.T) {
		old := w.ageing(15 * time.Hour)
		require.Zero(t, w.run("status").code)
		require.Equal(t, old, w.saved())
		require.Empty(t, w.done())
	})
	t.Run("after two thirds, unseen", func(t *testing.T) {
		old := w.ageing(17 * time.Hour)
		r := w.run("status")
		require.Zero(t, r.code, r.errors)
		require.Empty(t, r.errors)
		now := w.saved()
		require.NotEqual(t, old.Key, now.Key, "each renewal has a key of its own")
		require.NotEqual(t, old.Chain, now.Chain)
		require.Equal(t, old.Servers, now.Servers)
		require.Equal(t, []string{"renew " + pki.KeyFingerprint(now.Key.Public())}, w.done())
		require.NoFileExists(t, filepath.Join(w.dir, "key.next.pem"))

		certs, err := pki.ParseCertificates(pki.MarshalCertificates(now.Chain...))
		require.NoError(t, err)
		w.set(func() {
			require.Equal(t, pki.SerialOf(certs[0]), w.callers[len(w.callers)-1], "the new certificate is used at once")
		})
		require.Zero(t, w.run("status").code)
		require.Empty(t, w.done(), "once")
	})
	t.Run("the addresses stay, whatever --server says", func(t *testing.T) {
		old := w.ageing(17 * time.Hour)
		require.Zero(t, w.run("status", "--server", w.operator).code)
		require.Equal(t, old.Servers, w.saved().Servers)
		w.done()
	})
	t.Run("a failure is a warning while the old one lasts", func(t *testing.T) {
		old := w.ageing(17 * time.Hour)
		w.set(func() { w.fail["RenewCertificate"] = nstance.Errorf(nstance.Unavailable, "later") })
		r := w.run("status")
		require.Zero(t, r.code, r.errors)
		require.Contains(t, r.errors, "warning: certificate not renewed")
		require.Equal(t, old, w.saved())
		next, err := pki.LoadKey(filepath.Join(w.dir, "key.next.pem"))
		require.NoError(t, err)

		w.set(func() { delete(w.fail, "RenewCertificate") })
		require.Zero(t, w.run("status").code)
		require.Equal(t, next, w.saved().Key, "the next attempt has the same key, so that the server knows it again")
		w.done()
	})
	for name, change := range w.unusable() {
		t.Run("a certificate "+name+" does not replace the old one", func(t *testing.T) {
			old := w.ageing(17 * time.Hour)
			w.set(func() { w.change = change })
			defer w.set(func() { w.change = nil })
			r := w.run("status")
			require.Zero(t, r.code, r.errors)
			require.Contains(t, r.errors, "warning: certificate not renewed")
			require.Equal(t, old, w.saved())
			w.done()
		})
	}
	t.Run("a crash before the last step does not stop the next one", func(t *testing.T) {
		old := w.ageing(17 * time.Hour)
		require.NoError(t, pki.SaveKey(filepath.Join(w.dir, "key.next.pem"), old.Key))
		require.NoError(t, os.Remove(filepath.Join(w.dir, "key.pem")))
		r := w.run("status")
		require.Zero(t, r.code, r.errors)
		require.Empty(t, r.errors)
		require.NotEqual(t, old.Key, w.saved().Key)
		w.done()
	})
}

func TestRenewalThatAnotherProcessHasJustDone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ageing(17 * time.Hour)
	next := w.identity(time.Now())
	w.onStatus = func() { // comes between reading the identity and renewing it, where there are several addresses
		require.NoError(t, admin.SaveIdentity(w.dir, next))
	}
	r := w.run("config", "status", "--server", closedPort(t)+","+w.operator)
	require.Zero(t, r.code, r.errors)
	require.Empty(t, r.errors)
	require.Equal(t, next, w.saved())
	require.Empty(t, w.done(), "the successor of the other process stands")
	require.NoFileExists(t, filepath.Join(w.dir, "key.next.pem"))
}

// TestRenewalAfterAnotherProcess: what another process has put there is renewed, if it is due too.
func TestRenewalAfterAnotherProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ageing(17 * time.Hour)
	next := w.identity(time.Now().Add(-17 * time.Hour))
	w.onStatus = func() { require.NoError(t, admin.SaveIdentity(w.dir, next)) }
	require.Zero(t, w.run("config", "status", "--server", closedPort(t)+","+w.operator).code)
	require.NotEqual(t, next, w.saved())
	require.Len(t, w.done(), 1)
}

func TestRenewalsAtOnceEndWithOneIdentity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ageing(17 * time.Hour)
	var wg sync.WaitGroup
	results := make([]result, 6)
	for i := range results {
		wg.Go(func() { results[i] = w.run("status") })
	}
	wg.Wait()
	for _, r := range results {
		require.Zero(t, r.code, r.errors)
		require.Empty(t, r.errors)
	}
	w.saved()
	require.Len(t, w.done(), 1, "one of them does it for all")
	require.Zero(t, run(t, strings.NewReader(""), nil, "status", "--identity", w.dir).code)
}
