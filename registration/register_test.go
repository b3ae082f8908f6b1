package registration_test

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/registration"
)

func TestRegisterAgent(t *testing.T) {
	w := newWorld(t, nil)
	id, nonce := w.instance()
	key := pki.NewKey()
	who := w.mustRegister(nonce, key)

	t.Run("certifies the claims of the nonce", func(t *testing.T) {
		require.Equal(t, string(id), who.Subject)
		require.Equal(t, nstance.RoleAgent, who.Role)
		require.Equal(t, nstance.DefaultTenant, who.Tenant)
		require.Equal(t, pki.KeyFingerprint(key.Public()), who.Key)
		require.Equal(t, epoch.Add(24*time.Hour), who.NotAfter)
	})
	t.Run("records it in one write", func(t *testing.T) {
		require.Equal(t, 1, w.store.writes)
		reg := w.store.truth[id]
		require.Equal(t, who.Serial, reg.Current.Serial)
		require.Equal(t, who.Key, reg.Current.Fingerprint)
		require.Equal(t, []byte(public(key)), reg.Current.PublicKey)
		require.Equal(t, w.keys.Identity.Issuer(), reg.Current.Issuer)
		require.Equal(t, epoch.Add(-time.Minute), reg.Current.NotBefore)
		require.Nil(t, reg.Pending)
		require.Equal(t, epoch, reg.RegisteredAt)
		require.Equal(t, "web-1.internal", reg.Hostname)
		require.Equal(t, []netip.Addr{netip.MustParseAddr("10.0.0.1")}, reg.Addresses)
	})
}

// TestLifetimeByRole: agents' and operators' certificates have a lifetime each, at the first
// registration and at renewals.
func TestLifetimeByRole(t *testing.T) {
	w := newWorld(t, &registration.Options{AgentLifetime: 2 * time.Hour, OperatorLifetime: 5 * time.Hour})
	_, nonce := w.instance()
	for role, c := range map[nstance.Role]struct {
		nonce string
		lives time.Duration
	}{
		nstance.RoleAgent:    {nonce, 2 * time.Hour},
		nstance.RoleOperator: {w.mint(operatorClaims(nstance.RoleOperator, "0123456789abcdef", epoch)), 5 * time.Hour},
		nstance.RoleAdmin:    {w.mint(operatorClaims(nstance.RoleAdmin, "fedcba9876543210", epoch)), 5 * time.Hour},
	} {
		who := w.mustRegister(c.nonce, pki.NewKey())
		require.Equal(t, epoch.Add(c.lives), who.NotAfter, "%s", role)
		require.Equal(t, epoch.Add(c.lives), w.mustRenew(who, pki.NewKey()).NotAfter, "%s, renewed", role)
	}
}

// TestIssuedCertificatesAreLogged: once for each, whatever is repeated.
func TestIssuedCertificatesAreLogged(t *testing.T) {
	var out bytes.Buffer
	w := newWorld(t, &registration.Options{Log: slog.New(slog.NewTextHandler(&out, nil))})
	_, nonce := w.instance()
	for _, n := range []string{nonce, w.mint(operatorClaims(nstance.RoleOperator, "0123456789abcdef", epoch))} {
		out.Reset()
		key, next := pki.NewKey(), pki.NewKey()
		who := w.mustRegister(n, key)
		w.mustRegister(n, key)
		require.Equal(t, 1, strings.Count(out.String(), "certificate issued"), out.String())
		require.Contains(t, out.String(), "op=register subject="+who.Subject)
		require.Contains(t, out.String(), "serial="+who.Serial)
		out.Reset()
		renewed := w.mustRenew(who, next)
		w.mustRenew(who, next)
		require.Equal(t, 1, strings.Count(out.String(), "certificate issued"), out.String())
		require.Contains(t, out.String(), "op=renew subject="+who.Subject)
		require.Contains(t, out.String(), "serial="+renewed.Serial)
	}
}

// TestAlarmsWithoutReceiver: without a receiver alarms are logged.
func TestAlarmsWithoutReceiver(t *testing.T) {
	var out bytes.Buffer
	w := newWorld(t, nil)
	reg, err := registration.New(registration.KeysOf(w.keys.Identity, w.keys.Nonces), w.store, &registration.Options{
		Cluster: cluster, Shard: shard, Now: w.clock, Log: slog.New(slog.NewTextHandler(&out, nil)),
	})
	require.NoError(t, err)
	w.reg = reg
	id, nonce := w.instance()
	w.mustRegister(nonce, pki.NewKey())
	_, err = w.register(nonce, pki.NewKey())
	require.ErrorIs(t, err, nstance.Denied)
	require.Contains(t, out.String(), "level=ERROR msg=alarm instance_id="+string(id)+" tenant=default")
}

func TestRegisterAgain(t *testing.T) {
	t.Run("same nonce and key: the same certificate, past expiry too, without a write", func(t *testing.T) {
		w := newWorld(t, nil)
		_, nonce := w.instance()
		key := pki.NewKey()
		first, err := w.register(nonce, key)
		require.NoError(t, err)
		w.store.fail["RefreshRegistration"] = nstance.Errorf(nstance.Internal, "not needed")
		for range 3 {
			w.pass(time.Hour)
			again, err := w.register(nonce, key)
			require.NoError(t, err)
			require.Equal(t, first, again)
		}
		require.Equal(t, 1, w.store.writes)
		require.Empty(t, w.alarms)
	})
	t.Run("another key: refused with an alarm", func(t *testing.T) {
		w := newWorld(t, nil)
		id, nonce := w.instance()
		key := pki.NewKey()
		w.mustRegister(nonce, key)
		_, err := w.register(nonce, pki.NewKey())
		require.ErrorIs(t, err, nstance.Denied)
		require.ErrorContains(t, err, "used already")
		require.Len(t, w.alarms, 1)
		require.Equal(t, nstance.EventAlarm, w.alarms[0].Type)
		require.Equal(t, id, w.alarms[0].Instance)
		require.Equal(t, epoch, w.alarms[0].Time)
		w.mustRegister(nonce, key)
	})
	t.Run("with the first key after the renewal was used: refused with an alarm", func(t *testing.T) {
		w := newWorld(t, nil)
		id, nonce := w.instance()
		key := pki.NewKey()
		renewed := w.mustRenew(w.mustRegister(nonce, key), pki.NewKey())
		w.mustRegister(nonce, key) // pending only: both are valid
		reg := w.store.truth[id]
		require.True(t, reg.Promote(renewed.Serial))
		w.store.truth[id] = reg
		_, err := w.register(nonce, key)
		require.ErrorIs(t, err, nstance.Denied)
		require.Len(t, w.alarms, 1)
	})
	t.Run("after a former leader's late write: the same certificate", func(t *testing.T) {
		w := newWorld(t, nil)
		id, nonce := w.instance()
		issued := w.store.truth[id]
		key := pki.NewKey()
		who := w.mustRegister(nonce, key)
		w.store.memory[id] = issued // not in this leader's memory yet
		require.Equal(t, who.Serial, w.mustRegister(nonce, key).Serial)
		w.store.memory[id] = issued
		_, err := w.register(nonce, pki.NewKey())
		require.ErrorIs(t, err, nstance.Denied)
		require.Len(t, w.alarms, 1)
	})
}

func TestRegisterRacingItself(t *testing.T) {
	for name, sameKey := range map[string]bool{"one key gets one certificate": true, "of two keys one wins": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			_, nonce := w.instance()
			key := pki.NewKey()
			var mu sync.Mutex
			serials, refused := map[string]int{}, 0
			var wg sync.WaitGroup
			for range 16 {
				mine := key
				if !sameKey {
					mine = pki.NewKey()
				}
				wg.Go(func() {
					cred, err := w.register(nonce, mine)
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						refused++
						return
					}
					serials[cred.Serial]++
				})
			}
			wg.Wait()
			require.Len(t, serials, 1)
			require.Equal(t, 1, w.store.writes)
			if sameKey {
				require.Zero(t, refused)
				return
			}
			require.Equal(t, 15, refused)
			require.Len(t, w.alarms, 15)
		})
	}
}

func TestLostReplyIsRepeated(t *testing.T) {
	for name, landed := range map[string]bool{"the write landed": true, "the write did not land": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			_, nonce := w.instance()
			key := pki.NewKey()
			w.store.fail["UpdateRegistration"], w.store.landed = nstance.Errorf(nstance.Ambiguous, "no answer"), landed
			_, err := w.register(nonce, key)
			require.ErrorIs(t, err, nstance.Ambiguous)
			clear(w.store.fail)
			w.mustRegister(nonce, key)
			require.Equal(t, 1, w.store.writes)
			require.Empty(t, w.alarms)
		})
	}
}

func TestRegisterAgentRefuses(t *testing.T) {
	w := newWorld(t, nil)
	set := func(change func(*registration.Registration)) string {
		id, nonce := w.instance()
		reg := w.store.truth[id]
		change(&reg)
		w.store.truth[id] = reg
		return nonce
	}
	gone, err := nstance.NewInstanceID("web", epoch)
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		nonce string
		code  nstance.Code
		says  string
	}{
		"an unknown instance":      {w.mint(agentClaims(gone, epoch)), nstance.NotFound, string(gone)},
		"a deleted instance":       {set(func(r *registration.Registration) { r.Deleting = true }), nstance.NotFound, "being deleted"},
		"a record of another kind": {set(func(r *registration.Registration) { r.Kind = "api" }), nstance.Denied, "kind web"},
		"another tenant's record":  {set(func(r *registration.Registration) { r.Tenant = "acme" }), nstance.Denied, "acme/web"},
		"another group's record":   {set(func(r *registration.Registration) { r.Group = "db" }), nstance.Denied, "default/db"},
		"an on-demand record":      {set(func(r *registration.Registration) { r.OnDemand = true }), nstance.Denied, "on demand"},
		"no nonce":                 {"", nstance.Invalid, "nonce"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.register(tc.nonce, pki.NewKey())
			require.ErrorIs(t, err, tc.code)
			require.ErrorContains(t, err, tc.says)
		})
	}
	t.Run("an expired nonce, while nothing is registered", func(t *testing.T) {
		_, nonce := w.instance()
		w.pass(20 * time.Minute)
		_, err := w.register(nonce, pki.NewKey())
		require.ErrorIs(t, err, nstance.Denied)
		require.ErrorContains(t, err, "expired")
	})
	t.Run("an instance that is marked deleting meanwhile", func(t *testing.T) {
		id, nonce := w.instance()
		w.store.meanwhile = func(m map[nstance.InstanceID]registration.Registration) {
			reg := m[id]
			reg.Deleting = true
			m[id] = reg
		}
		_, err := w.register(nonce, pki.NewKey())
		require.ErrorIs(t, err, nstance.NotFound)
		require.Nil(t, w.store.truth[id].Current)
	})
	require.Empty(t, w.alarms)
}

// An unreadable record is not an absent one.
func TestReadErrorsAreNotAbsence(t *testing.T) {
	broken := nstance.Errorf(nstance.Unavailable, "storage is away")
	w := newWorld(t, nil)
	_, nonce := w.instance()
	w.store.fail["Registration"], w.store.fail["Operator"] = broken, broken
	_, err := w.register(nonce, pki.NewKey())
	require.ErrorIs(t, err, nstance.Unavailable)
	_, err = w.register(w.mint(operatorClaims(nstance.RoleAdmin, "0123456789abcdef", epoch)), pki.NewKey())
	require.ErrorIs(t, err, nstance.Unavailable)
	require.Zero(t, w.store.writes)
}

func TestRegisterBoundsTheRequest(t *testing.T) {
	w := newWorld(t, nil)
	_, nonce := w.instance()
	good := nstance.RegistrationRequest{Nonce: nonce, CSR: csrOf(t, pki.NewKey()), Source: source}
	for name, tc := range map[string]struct {
		change func(*nstance.RegistrationRequest)
		field  string
	}{
		"many valid addresses": {func(r *nstance.RegistrationRequest) { r.Addresses = slices.Repeat([]netip.Addr{source}, 33) }, "addresses"},
		"many addresses":       {func(r *nstance.RegistrationRequest) { r.Addresses = make([]netip.Addr, 33) }, "addresses"},
		"an invalid address":   {func(r *nstance.RegistrationRequest) { r.Addresses = make([]netip.Addr, 1) }, "addresses"},
		"a long hostname":      {func(r *nstance.RegistrationRequest) { r.Hostname = strings.Repeat("a", 254) }, "hostname"},
		"a hostname with junk": {func(r *nstance.RegistrationRequest) { r.Hostname = "a\nb" }, "hostname"},
		"a long nonce":         {func(r *nstance.RegistrationRequest) { r.Nonce = strings.Repeat("a", 4097) }, "nonce"},
		"no request":           {func(r *nstance.RegistrationRequest) { r.CSR = nil }, "csr"},
		"a long request":       {func(r *nstance.RegistrationRequest) { r.CSR = make([]byte, 4097) }, "csr"},
	} {
		t.Run(name, func(t *testing.T) {
			req := good
			tc.change(&req)
			_, err := w.reg.Register(t.Context(), req)
			require.ErrorIs(t, err, nstance.Invalid)
			e, ok := errors.AsType[*nstance.Error](err)
			require.True(t, ok)
			require.Equal(t, tc.field, e.Field)
			require.NotEmpty(t, e.Remedy)
		})
	}
	_, err := w.reg.Register(t.Context(), good)
	require.NoError(t, err)
}

func TestRegisterOperator(t *testing.T) {
	for _, kind := range []nstance.Role{nstance.RoleOperator, nstance.RoleAdmin} {
		t.Run(string(kind), func(t *testing.T) {
			w := newWorld(t, nil)
			nonce, key := w.mint(operatorClaims(kind, "0123456789abcdef", epoch)), pki.NewKey()
			first, err := w.register(nonce, key)
			require.NoError(t, err)
			who := w.identity(first)

			t.Run("certifies the claims of the nonce", func(t *testing.T) {
				require.Equal(t, kind, who.Role)
				require.Equal(t, nstance.TenantID("acme"), who.Tenant)
				require.NoError(t, validate.Name("subject", who.Subject))
				require.Contains(t, who.Subject, string(kind)+"-")
			})
			t.Run("the same key gets the same certificate, past expiry too", func(t *testing.T) {
				w.pass(4 * time.Hour)
				again, err := w.register(nonce, key)
				require.NoError(t, err)
				require.Equal(t, first, again)
				require.Equal(t, 1, w.store.writes)
			})
			t.Run("another key is refused with an alarm", func(t *testing.T) {
				_, err := w.register(nonce, pki.NewKey())
				require.ErrorIs(t, err, nstance.Denied)
				require.Len(t, w.alarms, 1)
				require.Contains(t, w.alarms[0].Reason, who.Subject)
				require.Empty(t, w.alarms[0].Instance)
			})
			t.Run("another nonce makes another client", func(t *testing.T) {
				other := w.mustRegister(w.mint(operatorClaims(kind, "fedcba9876543210", w.clock())), key)
				require.NotEqual(t, who.Subject, other.Subject)
			})
			t.Run("once revoked it is refused", func(t *testing.T) {
				op := w.store.operators["acme/"+who.Subject]
				op.Revoked = true
				w.store.operators["acme/"+who.Subject] = op
				_, err := w.register(nonce, key)
				require.ErrorIs(t, err, nstance.Denied)
				_, err = w.reg.Verify(t.Context(), who)
				require.ErrorIs(t, err, nstance.Denied)
				_, err = w.renew(who, pki.NewKey())
				require.ErrorIs(t, err, nstance.Denied)
			})
		})
	}
}

func TestRegisterOperatorRefuses(t *testing.T) {
	const jti = "0123456789abcdef"
	t.Run("an expired nonce", func(t *testing.T) {
		w := newWorld(t, nil)
		nonce := w.mint(operatorClaims(nstance.RoleOperator, jti, epoch))
		w.pass(3 * time.Hour)
		_, err := w.register(nonce, pki.NewKey())
		require.ErrorIs(t, err, nstance.Denied)
		require.ErrorContains(t, err, "nstance-admin cluster nonce")
		require.Zero(t, w.store.writes)
	})
	t.Run("a nonce consumed by another server at the same time", func(t *testing.T) {
		w := newWorld(t, nil)
		nonce, key := w.mint(operatorClaims(nstance.RoleOperator, jti, epoch)), pki.NewKey()
		w.mustRegister(nonce, key)
		clear(w.store.operators) // as seen before the other server's write
		_, err := w.register(nonce, pki.NewKey())
		require.ErrorIs(t, err, nstance.Denied)
		require.Len(t, w.alarms, 1)
		w.mustRegister(nonce, key)
		require.Equal(t, 1, w.store.writes)
	})
	for name, change := range map[string]func(*registration.OperatorRegistration){
		"a nonce with another's record":         func(op *registration.OperatorRegistration) { op.JTI = "another" },
		"a nonce with a record of another role": func(op *registration.OperatorRegistration) { op.Role = nstance.RoleAdmin },
		"a nonce with another tenant's record":  func(op *registration.OperatorRegistration) { op.Tenant = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			nonce, key := w.mint(operatorClaims(nstance.RoleOperator, jti, epoch)), pki.NewKey()
			who := w.mustRegister(nonce, key)
			op := w.store.operators["acme/"+who.Subject]
			change(&op)
			w.store.operators["acme/"+who.Subject] = op
			_, err := w.register(nonce, key)
			require.ErrorIs(t, err, nstance.Denied)
		})
	}
	t.Run("when the nonce cannot be consumed durably", func(t *testing.T) {
		w := newWorld(t, nil)
		w.store.fail["ConsumeNonce"], w.store.landed = nstance.Errorf(nstance.Ambiguous, "no answer"), true
		nonce, key := w.mint(operatorClaims(nstance.RoleOperator, jti, epoch)), pki.NewKey()
		_, err := w.register(nonce, key)
		require.ErrorIs(t, err, nstance.Ambiguous)
		clear(w.store.fail)
		w.mustRegister(nonce, key)
	})
}

func TestLimits(t *testing.T) {
	register := func(w *world, from netip.Addr) error {
		_, err := w.reg.Register(t.Context(), nstance.RegistrationRequest{Source: from})
		return err
	}
	t.Run("of one source, which recovers", func(t *testing.T) {
		w := newWorld(t, &registration.Options{PerSource: registration.Limit{PerSecond: 1, Burst: 2}})
		for range 2 {
			require.ErrorIs(t, register(w, source), nstance.Invalid)
		}
		require.ErrorIs(t, register(w, source), nstance.Throttled)
		w.pass(time.Second)
		require.ErrorIs(t, register(w, source), nstance.Invalid)
	})
	t.Run("of one source, without effect on others", func(t *testing.T) {
		w := newWorld(t, &registration.Options{PerSource: registration.Limit{PerSecond: 1, Burst: 1}})
		spared := 0
		for i := range 100 {
			from := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
			if nstance.CodeOf(register(w, from)) == nstance.Invalid {
				spared++
			}
		}
		require.Greater(t, spared, 80, "two sources share a bucket only by chance")
	})
	t.Run("of one IPv6 host, for all addresses of its /64", func(t *testing.T) {
		w := newWorld(t, &registration.Options{PerSource: registration.Limit{PerSecond: 1, Burst: 1}})
		require.ErrorIs(t, register(w, netip.MustParseAddr("2001:db8::1")), nstance.Invalid)
		require.ErrorIs(t, register(w, netip.MustParseAddr("2001:db8::2")), nstance.Throttled)
	})
	t.Run("of one IPv4 host, in either notation", func(t *testing.T) {
		w := newWorld(t, &registration.Options{PerSource: registration.Limit{PerSecond: 1, Burst: 1}})
		require.ErrorIs(t, register(w, source), nstance.Invalid)
		require.ErrorIs(t, register(w, netip.AddrFrom16(source.As16())), nstance.Throttled)
		require.ErrorIs(t, register(w, netip.AddrFrom16(source.As16()).WithZone("eth0")), nstance.Throttled)
	})
	t.Run("of a source without address", func(t *testing.T) {
		w := newWorld(t, &registration.Options{PerSource: registration.Limit{PerSecond: 1, Burst: 1}})
		require.ErrorIs(t, register(w, netip.Addr{}), nstance.Invalid)
		require.ErrorIs(t, register(w, netip.Addr{}), nstance.Throttled)
	})
	t.Run("of all sources together", func(t *testing.T) {
		w := newWorld(t, &registration.Options{Global: registration.Limit{PerSecond: 1, Burst: 3}})
		for i := range 3 {
			require.ErrorIs(t, register(w, netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})), nstance.Invalid)
		}
		require.ErrorIs(t, register(w, source), nstance.Throttled)
	})
	t.Run("of renewals by one holder", func(t *testing.T) {
		w := newWorld(t, nil)
		_, who := w.agent()
		renewed := func(times int) (n int) {
			for range times {
				_, err := w.renew(who, pki.NewKey())
				if err == nil {
					n++
					continue
				}
				require.ErrorIs(t, err, nstance.Throttled)
			}
			return n
		}
		require.Equal(t, 5, renewed(100), "at once")
		w.pass(30 * time.Second)
		require.Equal(t, 1, renewed(100), "half a minute later")
		writes := w.store.writes
		require.Zero(t, renewed(100))
		require.Equal(t, writes, w.store.writes, "a refusal costs no write")
	})
	t.Run("of renewals, without effect on other holders", func(t *testing.T) {
		all := registration.Limit{PerSecond: 1e6, Burst: 1e6}
		w := newWorld(t, &registration.Options{PerSource: all, Global: all, PerHolder: registration.Limit{PerSecond: 1, Burst: 1}})
		for range 20 {
			_, who := w.agent()
			w.mustRenew(who, pki.NewKey())
		}
	})
}

func TestNewRefuses(t *testing.T) {
	keys, err := keyring.Bootstrap(t.Context(), newVault(), epoch)
	require.NoError(t, err)
	good := func() *registration.Options { return &registration.Options{Cluster: cluster, Shard: shard} }
	_, err = registration.New(registration.KeysOf(keys.Identity, keys.Nonces), newStore(), good())
	require.NoError(t, err)

	for name, tc := range map[string]struct {
		authority *keyring.Authority
		nonces    *keyring.NonceKeys
		records   registration.Records
		change    func(*registration.Options)
	}{
		"no authority":                {nil, keys.Nonces, newStore(), nil},
		"the workload authority":      {keys.Workload, keys.Nonces, newStore(), nil},
		"no nonce keys":               {keys.Identity, nil, newStore(), nil},
		"no records":                  {keys.Identity, keys.Nonces, nil, nil},
		"no cluster":                  {keys.Identity, keys.Nonces, newStore(), func(o *registration.Options) { o.Cluster = "" }},
		"no shard":                    {keys.Identity, keys.Nonces, newStore(), func(o *registration.Options) { o.Shard = "" }},
		"a negative lifetime":         {keys.Identity, keys.Nonces, newStore(), func(o *registration.Options) { o.AgentLifetime = -1 }},
		"a tiny lifetime":             {keys.Identity, keys.Nonces, newStore(), func(o *registration.Options) { o.OperatorLifetime = time.Second }},
		"a negative limit":            {keys.Identity, keys.Nonces, newStore(), func(o *registration.Options) { o.Global.Burst = -1 }},
		"a negative rate of renewals": {keys.Identity, keys.Nonces, newStore(), func(o *registration.Options) { o.PerHolder.PerSecond = -1 }},
		"a rate without a burst":      {keys.Identity, keys.Nonces, newStore(), func(o *registration.Options) { o.PerSource = registration.Limit{PerSecond: 1, Burst: -1} }},
		"a burst without a rate":      {keys.Identity, keys.Nonces, newStore(), func(o *registration.Options) { o.PerSource = registration.Limit{PerSecond: -1, Burst: 1} }},
		"a negative rate":             {keys.Identity, keys.Nonces, newStore(), func(o *registration.Options) { o.PerSource.PerSecond = -1 }},
	} {
		t.Run(name, func(t *testing.T) {
			opts := good()
			if tc.change != nil {
				tc.change(opts)
			}
			_, err := registration.New(registration.KeysOf(tc.authority, tc.nonces), tc.records, opts)
			require.ErrorIs(t, err, nstance.Invalid)
		})
	}
	t.Run("no keys", func(t *testing.T) {
		_, err := registration.New(nil, newStore(), good())
		require.ErrorIs(t, err, nstance.Invalid)
	})
	t.Run("no options", func(t *testing.T) {
		_, err := registration.New(registration.KeysOf(keys.Identity, keys.Nonces), newStore(), nil)
		require.ErrorIs(t, err, nstance.Invalid)
	})
}
