package registration_test

import (
	"bytes"
	"crypto/ed25519"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/registration"
)

// expiredAgent is an agent whose certificate has expired.
type expiredAgent struct {
	*world
	id    nstance.InstanceID
	key   ed25519.PrivateKey
	first nstance.Identity
	cert  []byte
}

func newExpiredAgent(t *testing.T, opts *registration.Options) *expiredAgent {
	t.Helper()
	w := newWorld(t, opts)
	id, nonce := w.instance()
	s := &expiredAgent{world: w, id: id, key: pki.NewKey()}
	s.first = w.mustRegister(nonce, s.key)
	s.cert = w.store.truth[id].Current.Certificate
	w.pass(30 * time.Hour)
	return s
}

// connection returns a channel binding.
func connection(n byte) []byte { return bytes.Repeat([]byte{n}, 32) }

// request is a valid recovery request for the key next.
func (s *expiredAgent) request(next ed25519.PrivateKey) nstance.RegistrationRequest {
	csr := csrOf(s.t, next)
	return nstance.RegistrationRequest{
		CSR: csr, Source: source, Hostname: "web-2.internal", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.2")},
		Recovery: &nstance.Recovery{
			Certificate: s.cert, Binding: connection(1), Proof: pki.ProveRecovery(s.key, connection(1), csr),
		},
	}
}

func (s *expiredAgent) recover(next ed25519.PrivateKey) (nstance.Credential, error) {
	return s.reg.Register(s.t.Context(), s.request(next))
}

func (s *expiredAgent) mustRecover(next ed25519.PrivateKey) nstance.Identity {
	cred, err := s.recover(next)
	require.NoError(s.t, err)
	return s.identity(cred)
}

// change changes the record behind the registrar.
func (s *expiredAgent) change(fn func(*registration.Registration)) {
	reg := s.store.truth[s.id]
	fn(&reg)
	s.store.truth[s.id] = reg
}

func TestRecover(t *testing.T) {
	t.Run("an expired certificate gets a successor, in one write", func(t *testing.T) {
		s := newExpiredAgent(t, nil)
		writes := s.store.writes
		next := pki.NewKey()
		second := s.mustRecover(next)
		require.Equal(t, writes+1, s.store.writes)
		require.Equal(t, s.first.Subject, second.Subject)
		require.Equal(t, s.first.Tenant, second.Tenant)
		require.Equal(t, nstance.RoleAgent, second.Role)
		require.Equal(t, pki.KeyFingerprint(next.Public()), second.Key)
		require.Equal(t, epoch.Add(54*time.Hour), second.NotAfter)
		reg := s.store.truth[s.id]
		require.Equal(t, s.first.Serial, reg.Current.Serial)
		require.Equal(t, second.Serial, reg.Pending.Serial)
		require.Equal(t, "web-2.internal", reg.Hostname)
		require.Equal(t, []netip.Addr{netip.MustParseAddr("10.0.0.2")}, reg.Addresses)
		require.Equal(t, epoch, reg.RegisteredAt)
		promote, err := s.reg.Verify(t.Context(), second)
		require.NoError(t, err)
		require.True(t, promote)
		require.Empty(t, s.alarms)
	})
	t.Run("the same new key gets the same certificate, without a write", func(t *testing.T) {
		s := newExpiredAgent(t, nil)
		next := pki.NewKey()
		second := s.mustRecover(next)
		writes := s.store.writes
		require.Equal(t, second, s.mustRecover(next))
		require.Equal(t, writes, s.store.writes)
	})
	t.Run("but not one that has expired meanwhile", func(t *testing.T) {
		s := newExpiredAgent(t, nil)
		next := pki.NewKey()
		second := s.mustRecover(next)
		s.pass(24 * time.Hour)
		third := s.mustRecover(next)
		require.NotEqual(t, second.Serial, third.Serial)
		require.Equal(t, third, s.mustRecover(next))
	})
	t.Run("a renewal whose reply was lost is completed", func(t *testing.T) {
		s := newExpiredAgent(t, nil)
		next := pki.NewKey()
		s.pass(-14 * time.Hour) // sixteen hours old
		s.mustRenew(s.first, next)
		s.pass(48 * time.Hour)
		require.True(t, s.clock().Before(s.mustRecover(next).NotAfter))
	})
	t.Run("the pending key recovers too, and becomes the current one", func(t *testing.T) {
		s := newExpiredAgent(t, nil)
		next := pki.NewKey()
		second := s.mustRecover(next)
		s.key, s.cert = next, s.store.truth[s.id].Pending.Certificate
		s.pass(30 * time.Hour)
		third := s.mustRecover(pki.NewKey())
		reg := s.store.truth[s.id]
		require.Equal(t, second.Serial, reg.Current.Serial)
		require.Equal(t, third.Serial, reg.Pending.Serial)
	})
	t.Run("after months", func(t *testing.T) {
		s := newExpiredAgent(t, nil)
		s.pass(200 * 24 * time.Hour)
		s.mustRecover(pki.NewKey())
	})
	t.Run("before expiry: clocks differ", func(t *testing.T) {
		s := newExpiredAgent(t, nil)
		s.pass(-29 * time.Hour)
		s.mustRecover(pki.NewKey())
	})
	t.Run("storage is read before a refusal", func(t *testing.T) {
		s := newExpiredAgent(t, nil)
		s.store.memory[s.id] = registration.Registration{ID: s.id, Kind: "web", Tenant: "default", Group: "web"}
		s.mustRecover(pki.NewKey())
		require.Empty(t, s.alarms)
	})
	t.Run("a read error is no verdict", func(t *testing.T) {
		s := newExpiredAgent(t, nil)
		s.store.fail["Registration"] = nstance.Errorf(nstance.Unavailable, "storage is away")
		_, err := s.recover(pki.NewKey())
		require.ErrorIs(t, err, nstance.Unavailable)
	})
}

func TestRecoverRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		arrange func(*expiredAgent)
		change  func(*expiredAgent, *nstance.RegistrationRequest)
		code    nstance.Code
		alarm   bool
	}{
		"a proof by another key": {nil, func(_ *expiredAgent, r *nstance.RegistrationRequest) {
			r.Recovery.Proof = pki.ProveRecovery(pki.NewKey(), r.Recovery.Binding, r.CSR)
		}, nstance.Denied, true},
		"a proof by the new key": {nil, func(s *expiredAgent, r *nstance.RegistrationRequest) {
			next := pki.NewKey()
			r.CSR = csrOf(s.t, next)
			r.Recovery.Proof = pki.ProveRecovery(next, r.Recovery.Binding, r.CSR)
		}, nstance.Denied, true},
		"a proof for another connection": {nil, func(_ *expiredAgent, r *nstance.RegistrationRequest) {
			r.Recovery.Binding = connection(2)
		}, nstance.Denied, true},
		"a proof for another request": {nil, func(s *expiredAgent, r *nstance.RegistrationRequest) {
			r.CSR = csrOf(s.t, pki.NewKey())
		}, nstance.Denied, true},
		"no proof": {nil, func(_ *expiredAgent, r *nstance.RegistrationRequest) {
			r.Recovery.Proof = nil
		}, nstance.Denied, true},
		"no connection": {nil, func(s *expiredAgent, r *nstance.RegistrationRequest) {
			r.Recovery.Binding, r.Recovery.Proof = nil, pki.ProveRecovery(s.key, nil, r.CSR)
		}, nstance.Denied, true},
		"an instance being deleted": {func(s *expiredAgent) {
			s.change(func(reg *registration.Registration) { reg.Deleting = true })
		}, nil, nstance.NotFound, false},
		"an instance being deleted meanwhile": {func(s *expiredAgent) {
			s.store.meanwhile = func(map[nstance.InstanceID]registration.Registration) {
				s.change(func(reg *registration.Registration) { reg.Deleting = true })
			}
		}, nil, nstance.NotFound, false},
		"an instance that is gone": {func(s *expiredAgent) {
			delete(s.store.truth, s.id)
		}, nil, nstance.NotFound, false},
		"an instance that is not registered": {func(s *expiredAgent) {
			s.change(func(reg *registration.Registration) {
				reg.RegisteredAt, reg.Succession = time.Time{}, registration.Succession{}
			})
		}, nil, nstance.Denied, true},
		"a superseded certificate": {func(s *expiredAgent) {
			second := s.mustRecover(pki.NewKey())
			s.change(func(reg *registration.Registration) { reg.Promote(second.Serial) })
		}, nil, nstance.Denied, true},
		"the key of the expired certificate": {nil, func(s *expiredAgent, r *nstance.RegistrationRequest) {
			*r = s.request(s.key)
		}, nstance.Invalid, false},
		"a nonce besides": {nil, func(_ *expiredAgent, r *nstance.RegistrationRequest) {
			r.Nonce = "x"
		}, nstance.Invalid, false},
		"a certificate that is none": {nil, func(_ *expiredAgent, r *nstance.RegistrationRequest) {
			r.Recovery.Certificate = []byte("certificate")
		}, nstance.Invalid, false},
		"no certificate": {nil, func(_ *expiredAgent, r *nstance.RegistrationRequest) {
			r.Recovery.Certificate = nil
		}, nstance.Invalid, false},
		"a certificate of that length": {nil, func(_ *expiredAgent, r *nstance.RegistrationRequest) {
			r.Recovery.Certificate = make([]byte, 1<<20)
		}, nstance.Invalid, false},
		"a hostname that is none": {nil, func(_ *expiredAgent, r *nstance.RegistrationRequest) {
			r.Hostname = "a b"
		}, nstance.Invalid, false},
		"a stranger's certificate": {func(s *expiredAgent) {
			s.cert = certify(s, s.template(), nil)
		}, nil, nstance.Denied, false},
		"an operator's certificate": {func(s *expiredAgent) {
			tmpl := s.template()
			tmpl.Role = nstance.RoleOperator
			s.cert = certify(s, tmpl, s.keys.Identity)
		}, nil, nstance.Denied, false},
		"a server's certificate": {func(s *expiredAgent) {
			tmpl := s.template()
			tmpl.Role, tmpl.Shard, tmpl.Cluster = nstance.RoleServer, shard, cluster
			s.cert = certify(s, tmpl, s.keys.Identity)
		}, nil, nstance.Denied, false},
		"a workload's certificate": {func(s *expiredAgent) {
			tmpl := s.template()
			tmpl.Role = ""
			s.cert = certify(s, tmpl, s.keys.Workload)
		}, nil, nstance.Denied, false},
		"a certificate that no record knows": {func(s *expiredAgent) {
			s.cert = certify(s, s.template(), s.keys.Identity)
		}, nil, nstance.Denied, true},
		"a certificate for another tenant": {func(s *expiredAgent) {
			tmpl := s.template()
			tmpl.Tenant = "acme"
			s.cert = certify(s, tmpl, s.keys.Identity)
		}, nil, nstance.Denied, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newExpiredAgent(t, nil)
			if tc.arrange != nil {
				tc.arrange(s)
			}
			req, writes := s.request(pki.NewKey()), s.store.writes
			if tc.change != nil {
				tc.change(s, &req)
			}
			_, err := s.reg.Register(t.Context(), req)
			require.ErrorIs(t, err, tc.code)
			require.Equal(t, writes, s.store.writes)
			if !tc.alarm {
				require.Empty(t, s.alarms)
				return
			}
			require.Len(t, s.alarms, 1)
			require.Equal(t, s.id, s.alarms[0].Instance)
		})
	}
	t.Run("more than the limits permit", func(t *testing.T) {
		s := newExpiredAgent(t, &registration.Options{PerSource: registration.Limit{PerSecond: 1, Burst: 1}})
		s.mustRecover(pki.NewKey())
		_, err := s.recover(pki.NewKey())
		require.ErrorIs(t, err, nstance.Throttled)
	})
}

func (s *expiredAgent) template() keyring.Template {
	return keyring.Template{
		Subject: string(s.id), Tenant: "default", Key: public(s.key), Role: nstance.RoleAgent, Lifetime: 24 * time.Hour, Now: epoch,
	}
}

// certify returns a certificate by an authority; nil means an unknown one.
func certify(s *expiredAgent, tmpl keyring.Template, by *keyring.Authority) []byte {
	if by == nil {
		var err error
		by, err = keyring.NewAuthority(keyring.Identity, epoch)
		require.NoError(s.t, err)
	}
	issued, err := by.Issue(tmpl)
	require.NoError(s.t, err)
	return issued.Certificate
}

// TestRecoveryHasTheRenewalsPace: a certificate is recovered no more often than it is
// renewed, also while it has not expired.
func TestRecoveryHasTheRenewalsPace(t *testing.T) {
	s := newExpiredAgent(t, &registration.Options{PerHolder: registration.Limit{PerSecond: 1.0 / 60, Burst: 2}})
	var err error
	issued := 0
	for range 20 {
		if _, err = s.recover(pki.NewKey()); err == nil {
			issued++
		}
	}
	require.Equal(t, 2, issued)
	require.ErrorIs(t, err, nstance.Throttled)
	s.pass(time.Minute)
	_, err = s.recover(pki.NewKey())
	require.NoError(t, err)
	_, err = s.reg.Renew(t.Context(), s.first, csrOf(t, pki.NewKey()))
	require.ErrorIs(t, err, nstance.Throttled, "renewals and recoveries count together")
}
