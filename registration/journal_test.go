package registration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/registration"
)

// TestJournal: each registration of an operator and each renewal once, for any number of
// requests; of an agent's renewals only exceptional ones.
func TestJournal(t *testing.T) {
	var got []nstance.Event
	opts := func() *registration.Options {
		got = nil
		return &registration.Options{Journal: func(e nstance.Event) { got = append(got, e) }}
	}
	t.Run("agents", func(t *testing.T) {
		w := newWorld(t, opts())
		_, first := w.agent()
		require.Empty(t, got, "journalled by the reconciler")
		w.pass(16 * time.Hour)
		w.mustRenew(first, pki.NewKey())
		require.Empty(t, got, "every agent does that daily")
	})
	t.Run("agents, by another authority", func(t *testing.T) {
		w := newWorld(t, opts())
		id, first := w.agent()
		w.pass(16 * time.Hour)
		first.Issuer = "another"
		key := pki.NewKey()
		second := w.mustRenew(first, key)
		w.mustRenew(first, key)
		require.Equal(t, []nstance.Event{{
			Time: w.clock(), Type: eventtype.CertificateRenewed, Tenant: "default", Instance: id,
			Reason: "agent " + string(id) + ": certificate " + second.Serial + " until 2026-03-03T04:00:00Z replaces " + first.Serial,
		}}, got)
	})
	t.Run("by recovery", func(t *testing.T) {
		s := newExpiredAgent(t, opts())
		s.mustRecover(pki.NewKey())
		require.Len(t, got, 1)
		require.Contains(t, got[0].Reason, "replaces, by recovery, the expired "+s.first.Serial)
	})
	t.Run("operators", func(t *testing.T) {
		w := newWorld(t, opts())
		nonce, key := w.mint(operatorClaims(nstance.RoleAdmin, "0123456789abcdef", w.clock())), pki.NewKey()
		first := w.mustRegister(nonce, key)
		w.mustRegister(nonce, key)
		require.Len(t, got, 1)
		require.Equal(t, eventtype.OperatorRegistered, got[0].Type)
		require.Equal(t, nstance.TenantID("acme"), got[0].Tenant)
		require.Contains(t, got[0].Reason, "admin "+first.Subject+": certificate "+first.Serial)

		w.store.fail["Operator"] = nstance.Errorf(nstance.NotFound, "not registered yet")
		require.Equal(t, first.Serial, w.mustRegister(nonce, key).Serial, "of two requests at once one registers")
		require.Len(t, got, 1)
		delete(w.store.fail, "Operator")
		w.mustRenew(first, pki.NewKey())
		require.Len(t, got, 2)
		require.Equal(t, eventtype.CertificateRenewed, got[1].Type)
		require.Empty(t, got[1].Instance)
	})
	t.Run("not before it is durable", func(t *testing.T) {
		w := newWorld(t, opts())
		_, first := w.agent()
		w.store.fail["UpdateRegistration"] = nstance.Errorf(nstance.Unavailable, "storage is away")
		_, err := w.renew(first, pki.NewKey())
		require.Error(t, err)
		require.Empty(t, got)
	})
}
