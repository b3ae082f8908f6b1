package registration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/registration"
)

func (w *world) agent() (nstance.InstanceID, nstance.Identity) {
	id, nonce := w.instance()
	return id, w.mustRegister(nonce, pki.NewKey())
}

func TestRenew(t *testing.T) {
	w := newWorld(t, nil)
	id, first := w.agent()
	w.pass(16 * time.Hour)
	key := pki.NewKey()
	second := w.mustRenew(first, key)

	t.Run("issues a successor for the new key", func(t *testing.T) {
		require.Equal(t, first.Subject, second.Subject)
		require.Equal(t, first.Role, second.Role)
		require.Equal(t, first.Tenant, second.Tenant)
		require.NotEqual(t, first.Serial, second.Serial)
		require.Equal(t, pki.KeyFingerprint(key.Public()), second.Key)
		require.Equal(t, epoch.Add(40*time.Hour), second.NotAfter)
	})
	t.Run("both are valid until the new one is used", func(t *testing.T) {
		for range 2 {
			promote, err := w.reg.Verify(t.Context(), first)
			require.NoError(t, err)
			require.False(t, promote)
			promote, err = w.reg.Verify(t.Context(), second)
			require.NoError(t, err)
			require.True(t, promote)
		}
	})
	t.Run("returns the same certificate for the same key, without a write", func(t *testing.T) {
		writes := w.store.writes
		require.Equal(t, second, w.mustRenew(first, key))
		require.Equal(t, writes, w.store.writes)
	})
	t.Run("replaces a pending certificate whose key was lost", func(t *testing.T) {
		third := w.mustRenew(first, pki.NewKey())
		promote, err := w.reg.Verify(t.Context(), third)
		require.NoError(t, err)
		require.True(t, promote)
		_, err = w.reg.Verify(t.Context(), second)
		require.ErrorIs(t, err, nstance.Denied)
		require.Len(t, w.alarms, 1)
		second = third
	})
	t.Run("with the pending certificate promotes it in the same write", func(t *testing.T) {
		writes := w.store.writes
		third := w.mustRenew(second, pki.NewKey())
		require.Equal(t, writes+1, w.store.writes)
		reg := w.store.truth[id]
		require.Equal(t, second.Serial, reg.Current.Serial)
		require.Equal(t, third.Serial, reg.Pending.Serial)
	})
	t.Run("refuses a superseded certificate with an alarm", func(t *testing.T) {
		before := len(w.alarms)
		_, err := w.renew(first, pki.NewKey())
		require.ErrorIs(t, err, nstance.Denied)
		require.ErrorContains(t, err, "superseded")
		_, err = w.reg.Verify(t.Context(), first)
		require.ErrorIs(t, err, nstance.Denied)
		require.Len(t, w.alarms, before+2)
		require.Equal(t, id, w.alarms[before].Instance)
	})
}

func TestPromote(t *testing.T) {
	w := newWorld(t, nil)
	id, first := w.agent()
	second := w.mustRenew(first, pki.NewKey())
	reg := w.store.truth[id]
	require.False(t, reg.Promote(first.Serial))
	require.True(t, reg.Promote(second.Serial))
	require.False(t, reg.Promote(second.Serial), "once is enough")
	require.Equal(t, second.Serial, reg.Current.Serial)
	require.Nil(t, reg.Pending)
}

func TestVerifyRefuses(t *testing.T) {
	w := newWorld(t, nil)
	_, good := w.agent()
	_, err := w.reg.Verify(t.Context(), good)
	require.NoError(t, err)
	gone, err := nstance.NewInstanceID("web", epoch)
	require.NoError(t, err)
	deleted, dead := w.agent()
	reg := w.store.truth[deleted]
	reg.Deleting = true
	w.store.truth[deleted] = reg

	for name, tc := range map[string]struct {
		change func(*nstance.Identity)
		code   nstance.Code
		alarm  bool
	}{
		"an unknown instance": {func(id *nstance.Identity) { id.Subject = string(gone) }, nstance.NotFound, false},
		"a deleted instance":  {func(id *nstance.Identity) { *id = dead }, nstance.NotFound, false},
		"no instance ID":      {func(id *nstance.Identity) { id.Subject = "web-1" }, nstance.Invalid, false},
		"another tenant":      {func(id *nstance.Identity) { id.Tenant = "acme" }, nstance.Denied, false},
		"another serial":      {func(id *nstance.Identity) { id.Serial = "1" }, nstance.Denied, true},
		"another key":         {func(id *nstance.Identity) { id.Key = "1" }, nstance.Denied, true},
		"a server":            {func(id *nstance.Identity) { id.Role = nstance.RoleServer }, nstance.Denied, false},
		"an unknown operator": {func(id *nstance.Identity) { id.Role = nstance.RoleOperator }, nstance.NotFound, false},
		"no role":             {func(id *nstance.Identity) { id.Role = "" }, nstance.Denied, false},
	} {
		t.Run(name, func(t *testing.T) {
			id, before := good, len(w.alarms)
			tc.change(&id)
			_, err := w.reg.Verify(t.Context(), id)
			require.ErrorIs(t, err, tc.code)
			_, err = w.renew(id, pki.NewKey())
			require.ErrorIs(t, err, tc.code)
			require.Equal(t, tc.alarm, len(w.alarms) > before)
		})
	}
}

func TestRenewRefuses(t *testing.T) {
	t.Run("the key of the present certificate", func(t *testing.T) {
		w := newWorld(t, nil)
		_, nonce := w.instance()
		key := pki.NewKey()
		_, err := w.renew(w.mustRegister(nonce, key), key)
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, "new key")
	})
	t.Run("an expired certificate", func(t *testing.T) {
		w := newWorld(t, nil)
		_, who := w.agent()
		w.pass(24 * time.Hour)
		_, err := w.renew(who, pki.NewKey())
		require.ErrorIs(t, err, nstance.Denied)
		require.ErrorContains(t, err, "expired")
		require.Empty(t, w.alarms)
	})
	t.Run("a bad request", func(t *testing.T) {
		w := newWorld(t, nil)
		_, who := w.agent()
		_, err := w.reg.Renew(t.Context(), who, []byte("csr"))
		require.ErrorIs(t, err, nstance.Invalid)
	})
	t.Run("an instance that is marked deleting meanwhile", func(t *testing.T) {
		w := newWorld(t, nil)
		id, who := w.agent()
		w.store.meanwhile = func(m map[nstance.InstanceID]registration.Registration) {
			reg := m[id]
			reg.Deleting = true
			m[id] = reg
		}
		_, err := w.renew(who, pki.NewKey())
		require.ErrorIs(t, err, nstance.NotFound)
		require.Nil(t, w.store.truth[id].Pending)
	})
	t.Run("a certificate superseded meanwhile", func(t *testing.T) {
		w := newWorld(t, nil)
		id, who := w.agent()
		other := w.mustRenew(who, pki.NewKey())
		w.store.meanwhile = func(m map[nstance.InstanceID]registration.Registration) {
			reg := m[id]
			reg.Promote(other.Serial)
			m[id] = reg
		}
		_, err := w.renew(who, pki.NewKey())
		require.ErrorIs(t, err, nstance.Denied)
		require.Len(t, w.alarms, 1)
	})
	t.Run("when the record cannot be written", func(t *testing.T) {
		w := newWorld(t, nil)
		_, who := w.agent()
		w.store.fail["UpdateRegistration"] = nstance.Errorf(nstance.Unavailable, "storage is away")
		_, err := w.renew(who, pki.NewKey())
		require.ErrorIs(t, err, nstance.Unavailable)
	})
}

// A former leader's write may land on a record in the next leader's memory: a refusal
// needs a fresh read.
func TestStorageIsReadBeforeARefusal(t *testing.T) {
	w := newWorld(t, nil)
	id, first := w.agent()
	old := w.store.truth[id]
	key := pki.NewKey()
	second := w.mustRenew(first, key)

	t.Run("at a connection", func(t *testing.T) {
		w.store.memory[id] = old
		promote, err := w.reg.Verify(t.Context(), second)
		require.NoError(t, err)
		require.True(t, promote)
	})
	t.Run("at a renewal", func(t *testing.T) {
		w.store.memory[id] = old
		require.Equal(t, second.Serial, w.mustRenew(first, key).Serial)
	})
	t.Run("a read error is no refusal", func(t *testing.T) {
		w.store.memory[id] = old
		w.store.fail["RefreshRegistration"] = nstance.Errorf(nstance.Unavailable, "storage is away")
		_, err := w.reg.Verify(t.Context(), second)
		require.ErrorIs(t, err, nstance.Unavailable)
	})
	require.Empty(t, w.alarms)
}

func TestOperatorsRenewLikewise(t *testing.T) {
	w := newWorld(t, nil)
	first := w.mustRegister(w.mint(operatorClaims(nstance.RoleOperator, "0123456789abcdef", epoch)), pki.NewKey())
	key := pki.NewKey()
	second := w.mustRenew(first, key)
	require.Equal(t, second, w.mustRenew(first, key))
	promote, err := w.reg.Verify(t.Context(), second)
	require.NoError(t, err)
	require.True(t, promote)

	w.mustRenew(second, pki.NewKey())
	_, err = w.reg.Verify(t.Context(), first)
	require.ErrorIs(t, err, nstance.Denied)
	require.Len(t, w.alarms, 1)

	t.Run("but not once revoked meanwhile", func(t *testing.T) {
		w.store.revoke = true
		_, err := w.renew(second, pki.NewKey())
		require.ErrorIs(t, err, nstance.Denied)
		w.store.revoke = false
	})
	t.Run("but not in another role or tenant", func(t *testing.T) {
		admin := second
		admin.Role = nstance.RoleAdmin
		_, err := w.reg.Verify(t.Context(), admin)
		require.ErrorIs(t, err, nstance.Denied)
		foreign := second
		foreign.Tenant = "default"
		_, err = w.reg.Verify(t.Context(), foreign)
		require.ErrorIs(t, err, nstance.NotFound)
	})
}

// TestStorageThatRefusesThisServer: whatever storage answers when it is asked about a holder is no
// answer about the holder. Only a record that is not there, or says so, ends a certificate.
func TestStorageThatRefusesThisServer(t *testing.T) {
	for _, code := range []nstance.Code{nstance.Denied, nstance.Internal, nstance.Unavailable, nstance.Throttled} {
		w := newWorld(t, nil)
		_, agent := w.agent()
		registered := w.mustRegister(w.mint(operatorClaims(nstance.RoleOperator, "0123456789abcdef", epoch)), pki.NewKey())
		operator := agent
		operator.Role = nstance.RoleOperator
		for _, method := range []string{"Registration", "RefreshRegistration", "Operator"} {
			w.store.fail[method] = nstance.Errorf(code, "the credentials of this server have expired")
		}
		for _, id := range []nstance.Identity{agent, operator} {
			_, err := w.reg.Verify(t.Context(), id)
			require.Error(t, err)
			require.NotContains(t, []nstance.Code{nstance.Denied, nstance.NotFound}, nstance.CodeOf(err), "%s: %v", id.Role, err)
			require.ErrorContains(t, err, "the credentials of this server have expired")
		}
		clear(w.store.fail)
		w.store.fail["UpdateRegistration"] = nstance.Errorf(code, "the credentials of this server have expired")
		w.store.fail["UpdateOperator"] = w.store.fail["UpdateRegistration"]
		for _, id := range []nstance.Identity{agent, registered} {
			_, err := w.reg.Renew(t.Context(), id, csrOf(t, pki.NewKey()))
			require.Error(t, err)
			require.NotContains(t, []nstance.Code{nstance.Denied, nstance.NotFound}, nstance.CodeOf(err), "%v", err)
		}
	}
}
