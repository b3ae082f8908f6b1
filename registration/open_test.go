package registration_test

import (
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/registration"
)

// open removes the keys of a record, as in that of an adopted machine.
func (w *world) open(id nstance.InstanceID) {
	w.t.Helper()
	_, err := w.store.UpdateRegistration(w.t.Context(), id, func(reg *registration.Registration) error {
		reg.Succession = registration.Succession{Open: true}
		return nil
	})
	require.NoError(w.t, err)
}

func TestOpenRecord(t *testing.T) {
	t.Run("accepts the first certificate that is presented, durably", func(t *testing.T) {
		w := newWorld(t, nil)
		id, who := w.agent()
		w.open(id)
		for range 2 {
			promote, err := w.reg.Verify(t.Context(), who)
			require.NoError(t, err)
			require.False(t, promote)
		}
		reg, err := w.store.Registration(t.Context(), id)
		require.NoError(t, err)
		require.False(t, reg.Open)
		require.Equal(t, who.Serial, reg.Current.Serial)
		require.Equal(t, who.Key, reg.Current.Fingerprint)
		require.Empty(t, w.alarms)
	})
	t.Run("accepts no nonce: it may have been used before", func(t *testing.T) {
		w := newWorld(t, nil)
		id, nonce := w.instance()
		key := pki.NewKey()
		who := w.mustRegister(nonce, key)
		w.open(id)
		for _, k := range []ed25519.PrivateKey{key, pki.NewKey()} {
			_, err := w.register(nonce, k)
			require.ErrorIs(t, err, nstance.Denied)
			require.ErrorContains(t, err, "adopted")
		}
		_, err := w.reg.Verify(t.Context(), who)
		require.NoError(t, err, "the certificate is good")
	})
	t.Run("refuses every other certificate afterwards", func(t *testing.T) {
		w := newWorld(t, nil)
		id, first := w.agent()
		second := w.mustRenew(first, pki.NewKey())
		w.open(id)
		_, err := w.reg.Verify(t.Context(), second)
		require.NoError(t, err)
		_, err = w.reg.Verify(t.Context(), first)
		require.ErrorIs(t, err, nstance.Denied)
		require.Len(t, w.alarms, 1)
	})
	t.Run("refuses one that comes a moment after another", func(t *testing.T) {
		w := newWorld(t, nil)
		id, first := w.agent()
		second := w.mustRenew(first, pki.NewKey())
		w.open(id)
		w.store.meanwhile = func(m map[nstance.InstanceID]registration.Registration) {
			reg := m[id]
			reg.Open, reg.Current = false, &registration.KeyRecord{Fingerprint: second.Key, Serial: second.Serial, Issuer: second.Issuer, NotAfter: second.NotAfter}
			m[id] = reg
		}
		_, err := w.reg.Verify(t.Context(), first)
		require.ErrorIs(t, err, nstance.Denied)
		require.Len(t, w.alarms, 1)
		_, err = w.reg.Verify(t.Context(), second)
		require.NoError(t, err)
	})
	t.Run("accepts one that a repeated write has accepted", func(t *testing.T) {
		w := newWorld(t, nil)
		id, who := w.agent()
		w.open(id)
		kept := registration.KeyRecord{Fingerprint: who.Key, Serial: who.Serial, Issuer: who.Issuer, NotAfter: who.NotAfter, Certificate: []byte("kept")}
		w.store.meanwhile = func(m map[nstance.InstanceID]registration.Registration) {
			reg := m[id]
			reg.Open, reg.Current = false, &kept
			m[id] = reg
		}
		_, err := w.reg.Verify(t.Context(), who)
		require.NoError(t, err)
		require.Equal(t, &kept, w.store.truth[id].Current)
	})
	t.Run("is known from a fresh read only", func(t *testing.T) {
		w := newWorld(t, nil)
		id, first := w.agent()
		second := w.mustRenew(first, pki.NewKey())
		w.open(id)
		stale := w.store.truth[id]
		_, err := w.reg.Verify(t.Context(), second)
		require.NoError(t, err)
		w.store.memory[id] = stale
		_, err = w.reg.Verify(t.Context(), first)
		require.ErrorIs(t, err, nstance.Denied)
		require.Len(t, w.alarms, 1)
	})
	t.Run("renews the accepted certificate", func(t *testing.T) {
		w := newWorld(t, nil)
		id, who := w.agent()
		w.open(id)
		w.pass(time.Hour)
		next := w.mustRenew(who, pki.NewKey())
		promote, err := w.reg.Verify(t.Context(), next)
		require.NoError(t, err)
		require.True(t, promote)
	})
	t.Run("stays in its tenant", func(t *testing.T) {
		w := newWorld(t, nil)
		id, who := w.agent()
		w.open(id)
		who.Tenant = "other"
		_, err := w.reg.Verify(t.Context(), who)
		require.ErrorIs(t, err, nstance.Denied)
	})
	t.Run("is refused once it is marked deleting", func(t *testing.T) {
		w := newWorld(t, nil)
		id, who := w.agent()
		w.open(id)
		_, err := w.store.UpdateRegistration(t.Context(), id, func(reg *registration.Registration) error { reg.Deleting = true; return nil })
		require.NoError(t, err)
		_, err = w.reg.Verify(t.Context(), who)
		require.ErrorIs(t, err, nstance.NotFound)
	})
}
