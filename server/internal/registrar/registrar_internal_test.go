package registrar

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/registration/registrationtest"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

const (
	cluster = nstance.ClusterID("c1")
	zone    = nstance.ShardID("s1")
)

// A leader has the records of one term over a store that fails on demand, and a
// registrar over them with the cluster's real keys.
type leader struct {
	*Records
	t      *testing.T
	faulty *storagetest.Faulty
	ring   *keyring.Keyring
	reg    *registration.Registrar
	recs   *records.Records
	mu     sync.Mutex
	facts  []nstance.Fact // guarded by mu while calls are under way
	now    time.Time
	over   error // why the term has ended
}

// A reconciler is what Records need of one.
type reconciler struct{ l *leader }

func (r reconciler) Records() *records.Records { return r.l.recs }
func (r reconciler) Observe(f nstance.Fact) {
	r.l.mu.Lock()
	defer r.l.mu.Unlock()
	r.l.facts = append(r.l.facts, f)
}

func (r reconciler) Instance(nstance.InstanceID) (reconcile.InstanceView, error) {
	return reconcile.InstanceView{}, nstance.NotFound
}

// lead begins a term of a shard over store.
func lead(t *testing.T, store *storagetest.Faulty, shard nstance.ShardID, epoch uint64) *leader {
	t.Helper()
	l := &leader{t: t, faulty: store, now: time.Now()}
	clock := func() time.Time { return l.now }
	var err error
	l.ring, err = keyring.OpenKeyring(t.Context(), vault.New(store, nil), clock)
	require.NoError(t, err)
	check := func() error { return l.over }
	l.recs = records.New(store, shard, &records.Options{Epoch: epoch, Check: check})
	_, _, err = l.recs.Load(t.Context())
	require.NoError(t, err)
	l.Records = &Records{
		Options: Options{Shard: shard, Epoch: epoch, Check: check, Now: clock, Log: slog.New(slog.DiscardHandler)}, store: store, shard: reconciler{l},
	}
	keys := l.ring.Keys()
	l.reg, err = registration.New(registration.KeysOf(keys.Identity, keys.Nonces), l.Records, &registration.Options{Cluster: cluster, Shard: shard, Now: clock})
	require.NoError(t, err)
	return l
}

func newLeader(t *testing.T) *leader {
	return lead(t, storagetest.NewFaulty(storage.NewMemory()), zone, 7)
}

// instance writes an intent and returns its ID and nonce.
func (l *leader) instance() (nstance.InstanceID, string) {
	l.t.Helper()
	id, err := nstance.NewInstanceID("web", l.now)
	require.NoError(l.t, err)
	keys := l.ring.Keys()
	_, err = l.recs.Create(l.t.Context(), records.Instance{
		ID: id, Tenant: "default", Group: "web", CreatedAt: l.now, CreatedEpoch: l.Epoch, LaunchTimeout: 10 * time.Minute, RegistrationTimeout: 10 * time.Minute,
		NonceKeyID: keys.Nonces.KeyID(), Authorities: keys.Identity.Issuers(),
	})
	require.NoError(l.t, err)
	return id, l.mint(keyring.Claims{
		Kind: nstance.RoleAgent, Subject: string(id), Cluster: cluster, Shard: l.Shard, Tenant: "default", Group: "web",
		NotBefore: l.now.Add(-time.Minute), Expiry: l.now.Add(20 * time.Minute),
	})
}

// jti names the nonce of operatorNonce.
const jti = "operator-nonce-1"

// operatorNonce returns a nonce for an operator of tenant acme.
func (l *leader) operatorNonce() string {
	return l.mint(keyring.Claims{
		Kind: nstance.RoleOperator, Subject: string(cluster), Cluster: cluster, Tenant: "acme", JTI: jti,
		NotBefore: l.now.Add(-time.Minute), Expiry: l.now.Add(time.Hour),
	})
}

func (l *leader) mint(c keyring.Claims) string {
	l.t.Helper()
	nonce, err := l.ring.Keys().Nonces.Mint("", c)
	require.NoError(l.t, err)
	return nonce
}

func csr(t *testing.T, key ed25519.PrivateKey) []byte {
	t.Helper()
	der, err := pki.NewCSR(key, "")
	require.NoError(t, err)
	return der
}

func (l *leader) register(nonce string, key ed25519.PrivateKey) (nstance.Credential, error) {
	return l.reg.Register(l.t.Context(), nstance.RegistrationRequest{Nonce: nonce, CSR: csr(l.t, key), Source: netip.MustParseAddr("10.0.0.9")})
}

// registered registers, which must succeed, and returns the identity in the certificate.
func (l *leader) registered(nonce string, key ed25519.PrivateKey) nstance.Identity {
	l.t.Helper()
	cred, err := l.register(nonce, key)
	require.NoError(l.t, err)
	return identityOf(l.t, cred)
}

// renewed renews, which must succeed, and returns the identity in the new certificate.
func (l *leader) renewed(id nstance.Identity) nstance.Identity {
	l.t.Helper()
	cred, err := l.reg.Renew(l.t.Context(), id, csr(l.t, pki.NewKey()))
	require.NoError(l.t, err)
	return identityOf(l.t, cred)
}

func identityOf(t *testing.T, cred nstance.Credential) nstance.Identity {
	t.Helper()
	cert, err := x509.ParseCertificate(cred.Chain[0])
	require.NoError(t, err)
	id, err := pki.IdentityOf(cert)
	require.NoError(t, err)
	return id
}

// verify reports whether a certificate is good, and records its use as a server does.
func (l *leader) verify(id nstance.Identity) error {
	promote, err := l.reg.Verify(l.t.Context(), id)
	if promote {
		l.Successors.Use(id)
	}
	return err
}

// stored returns the record of an instance as it is in storage.
func (l *leader) stored(id nstance.InstanceID) records.Instance {
	l.t.Helper()
	recs, problems, err := records.New(l.faulty, l.Shard, nil).Load(l.t.Context())
	require.NoError(l.t, err)
	require.Empty(l.t, problems)
	for _, rec := range recs {
		if rec.ID == id {
			return rec
		}
	}
	return records.Instance{}
}

func TestRegistrationIsDurableBeforeItIsAnswered(t *testing.T) {
	l := newLeader(t)
	id, nonce := l.instance()
	key := pki.NewKey()
	l.faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Err: nstance.Denied})
	_, err := l.register(nonce, key)
	require.ErrorIs(t, err, nstance.Denied)
	require.Empty(t, l.facts, "the reconciler is not told of it")
	require.Nil(t, l.stored(id).Current)

	l.faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Mode: storagetest.LoseAnswer, Err: nstance.Ambiguous})
	first := l.registered(nonce, key)
	require.Equal(t, []nstance.Fact{nstance.Registered{ID: id}}, l.facts)
	require.Equal(t, first.Serial, l.stored(id).Current.Serial)
	require.Equal(t, first.Serial, l.registered(nonce, key).Serial, "the answer may be lost on its way, too")

	t.Run("the next leader gives the same answer", func(t *testing.T) {
		next := lead(t, l.faulty, zone, 8)
		require.Equal(t, first.Serial, next.registered(nonce, key).Serial)
		_, err := next.register(nonce, pki.NewKey())
		require.ErrorIs(t, err, nstance.Denied)
	})
	t.Run("an ended term registers nothing", func(t *testing.T) {
		id, nonce := l.instance()
		l.over = nstance.Errorf(nstance.Unavailable, "the lease is lost")
		defer func() { l.over = nil }()
		_, err := l.register(nonce, key)
		require.ErrorIs(t, err, nstance.Unavailable)
		require.Nil(t, l.stored(id).Current)
		_, err = l.register(l.operatorNonce(), key)
		require.ErrorIs(t, err, nstance.Unavailable)
		_, err = l.faulty.Get(t.Context(), layout.NonceKey(jti))
		require.ErrorIs(t, err, nstance.NotFound, "its nonce is not used up")
	})
}

// TestRegistrationOfAFormerLeader: a registration that a former leader wrote late is
// found before its holder is refused.
func TestRegistrationOfAFormerLeader(t *testing.T) {
	l := newLeader(t)
	_, nonce := l.instance()
	next := lead(t, l.faulty, zone, 7) // has read the record before it was registered
	key := pki.NewKey()
	who := l.registered(nonce, key)
	require.NoError(t, next.verify(who))
	require.Equal(t, who.Serial, next.registered(nonce, key).Serial)
}

func TestOperatorNonceIsUsedOnce(t *testing.T) {
	for name, fault := range map[string]storagetest.Fault{
		"before its use is stored":         {Op: storagetest.PutIfAbsent, Prefix: layout.NonceKey(""), Err: nstance.Denied},
		"before the record is stored":      {Op: storagetest.PutIfAbsent, Prefix: layout.OperatorPrefix, Err: nstance.Denied},
		"the record is stored, not known":  {Op: storagetest.PutIfAbsent, Prefix: layout.OperatorPrefix, Mode: storagetest.LoseAnswer, Err: nstance.Ambiguous},
		"its use is stored, but not known": {Op: storagetest.PutIfAbsent, Prefix: layout.NonceKey(""), Mode: storagetest.LoseAnswer, Err: nstance.Ambiguous},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeader(t)
			nonce, key, thief := l.operatorNonce(), pki.NewKey(), pki.NewKey()
			l.faulty.Inject(fault)
			_, err := l.register(nonce, key)
			require.Equal(t, fault.Mode == storagetest.LoseAnswer, err == nil, "%v", err)
			used := fault.Mode == storagetest.LoseAnswer || fault.Prefix == layout.OperatorPrefix
			l.faulty.ClearFaults()
			if !used {
				l.registered(nonce, thief) // the first key that is stored has it
				key, thief = thief, key
			}
			_, err = l.register(nonce, thief)
			require.ErrorIs(t, err, nstance.Denied)
			who := l.registered(nonce, key)
			require.NoError(t, l.verify(who))
			op, err := l.Operator(t.Context(), "acme", who.Subject)
			require.NoError(t, err)
			require.Equal(t, who.Serial, op.Current.Serial)
		})
	}
}

// TestUseOfASuccessor: a used successor ends its predecessor at once, in this term
// without a write.
func TestUseOfASuccessor(t *testing.T) {
	l := newLeader(t)
	instance, nonce := l.instance()
	for name, nonce := range map[string]string{"agent": nonce, "operator": l.operatorNonce()} {
		t.Run(name, func(t *testing.T) {
			l.t = t
			first := l.registered(nonce, pki.NewKey())
			second := l.renewed(first)
			require.NoError(t, l.verify(first))
			require.NoError(t, l.verify(second))
			require.ErrorIs(t, l.verify(first), nstance.Denied)
		})
	}
	l.t = t
	require.NotNil(t, l.stored(instance).Pending, "it is not durable yet")
	used, _, err := l.Operators(t.Context())
	require.NoError(t, err)
	require.Len(t, used, 1)
	require.Nil(t, used[0].Pending, "and in force")

	t.Run("a successor that was not stored is not settled", func(t *testing.T) {
		l.faulty.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Times: 2, Err: nstance.Denied})
		l.SettleSuccessors(t.Context())
		require.NotNil(t, l.stored(instance).Pending)
		l.faulty.ClearFaults()
	})
	l.SettleSuccessors(t.Context())
	require.Nil(t, l.stored(instance).Pending)
	list, unreadable, err := newRecordsOf(l).Operators(t.Context())
	require.NoError(t, err)
	require.Empty(t, unreadable)
	require.Len(t, list, 1)
	require.Nil(t, list[0].Pending)

	l.faulty.Reset()
	l.SettleSuccessors(t.Context())
	require.Zero(t, l.faulty.Count(storagetest.PutIfMatch), "settled once")
}

// TestNoRenewalWhileAsleep: the write refuses a renewal that began before its machine was to
// sleep. What was issued before is settled as ever.
func TestNoRenewalWhileAsleep(t *testing.T) {
	l := newLeader(t)
	instance, nonce := l.instance()
	id := l.renewed(l.registered(nonce, pki.NewKey()))
	require.NoError(t, l.verify(id))
	setStandby := func(mode nstance.ParkMode, phase nstance.State) {
		_, err := l.recs.Update(t.Context(), instance, func(rec *records.Instance) error {
			rec.Standby = &records.Standby{Mode: mode, Phase: phase}
			return nil
		})
		require.NoError(t, err)
	}
	setStandby(nstance.ParkStopped, nstance.Parking)
	require.ErrorIs(t, l.CheckAwake(id), nstance.Unavailable)
	_, err := l.reg.Renew(t.Context(), id, csr(t, pki.NewKey()))
	require.ErrorIs(t, err, nstance.Unavailable)
	l.SettleSuccessors(t.Context())
	require.Equal(t, id.Serial, l.stored(instance).Current.Serial)
	require.Nil(t, l.stored(instance).Pending)

	setStandby(nstance.ParkRunning, nstance.Parking)
	require.NoError(t, l.CheckAwake(id))
	id = l.renewed(id)
	setStandby(nstance.ParkStopped, nstance.Waking)
	require.NoError(t, l.CheckAwake(id))
	l.renewed(id)
}

// newRecordsOf returns records that remember no use of a successor.
func newRecordsOf(l *leader) *Records {
	return &Records{Options: l.Options, store: l.faulty, shard: reconciler{l}}
}

func TestUnused(t *testing.T) {
	l := newLeader(t)
	_, nonce := l.instance()
	keys := l.ring.Keys()
	identity := keyring.KeyEntry{ID: keys.Identity.Issuer()}
	nonces := keyring.KeyEntry{ID: keys.Nonces.KeyID()}
	unused := func(set string, k keyring.KeyEntry) error { return l.Unused(set)(t.Context(), k) }

	t.Run("a nonce until it expires", func(t *testing.T) {
		require.ErrorIs(t, unused(keyring.Nonces, nonces), nstance.Conflict)
		l.now = l.now.Add(20 * time.Minute)
		require.NoError(t, unused(keyring.Nonces, nonces))
		l.now = l.now.Add(-20 * time.Minute)
		require.NoError(t, unused(keyring.Nonces, keyring.KeyEntry{ID: "another"}))
	})
	t.Run("instances that are not registered yet", func(t *testing.T) {
		n, _, known := l.CountInstances(keyring.Identity, identity)
		require.Equal(t, 1, n)
		require.False(t, known, "they may register at any time")
	})
	t.Run("a certificate", func(t *testing.T) {
		who := l.registered(nonce, pki.NewKey())
		n, until, known := l.CountInstances(keyring.Identity, identity)
		require.Equal(t, 1, n)
		require.True(t, known)
		require.WithinDuration(t, who.NotAfter, until, time.Second)
		require.NoError(t, unused(keyring.Identity, keyring.KeyEntry{ID: "another"}))
	})
	t.Run("operators", func(t *testing.T) {
		l.registered(l.operatorNonce(), pki.NewKey())
		require.ErrorContains(t, unused(keyring.Identity, identity), "2 still depend")
	})
	t.Run("instances of another shard", func(t *testing.T) {
		other := lead(t, l.faulty, "s2", 1)
		other.instance()
		err := unused(keyring.Identity, identity)
		require.ErrorContains(t, err, "1 in shard s2")
		require.ErrorContains(t, err, "3 still depend")
	})
	t.Run("what cannot be read is not unused", func(t *testing.T) {
		for _, fault := range []storagetest.Fault{
			{Op: storagetest.List, Prefix: layout.InstancePrefix("s2")},
			{Op: storagetest.Get, Prefix: layout.InstancePrefix("s2")},
			{Op: storagetest.List, Prefix: layout.OperatorPrefix},
			{Op: storagetest.Get, Prefix: layout.OperatorPrefix},
		} {
			fault.Times, fault.Err = -1, nstance.Denied
			l.faulty.Inject(fault)
			require.Error(t, unused(keyring.Identity, keyring.KeyEntry{ID: "another"}), "%s %s", fault.Op, fault.Prefix)
			l.faulty.ClearFaults()
		}
	})
	t.Run("a damaged record of another shard", func(t *testing.T) {
		_, err := l.faulty.PutIfAbsent(t.Context(), layout.InstancePrefix("s2")+"default/web/damaged.json", []byte("{"))
		require.NoError(t, err)
		require.ErrorContains(t, unused(keyring.Identity, keyring.KeyEntry{ID: "another"}), "1 in shard s2")
		err = unused(keyring.Nonces, keyring.KeyEntry{ID: "another"})
		require.ErrorContains(t, err, "1 in shard s2")
		require.NotContains(t, err.Error(), "have expired", "when it does is unknown")
	})
}

func TestEnds(t *testing.T) {
	l := newLeader(t)
	who := l.registered(l.operatorNonce(), pki.NewKey())
	used, err := l.faulty.Get(t.Context(), layout.NonceKey(jti))
	require.NoError(t, err)
	at, err := NonceEnds(used.Data)
	require.NoError(t, err)
	require.WithinDuration(t, l.now.Add(time.Hour), at, time.Second, "its own expiry")
	record, err := l.faulty.Get(t.Context(), layout.OperatorKey("acme", who.Subject))
	require.NoError(t, err)
	at, err = OperatorEnds(record.Data)
	require.NoError(t, err)
	require.WithinDuration(t, who.NotAfter, at, time.Second)
	for _, damaged := range []string{"", "{", `{"operator": 3}`} {
		_, err = NonceEnds([]byte(damaged))
		require.Error(t, err, damaged)
		_, err = OperatorEnds([]byte(damaged))
		require.Error(t, err, damaged)
	}
	_, err = OperatorEnds([]byte(`{}`))
	require.ErrorIs(t, err, nstance.Invalid)
	at, err = OperatorEnds([]byte(`{"operator": {"nonce_expiry": "2026-03-04T05:06:07Z"}}`))
	require.NoError(t, err)
	require.Zero(t, at, "of a record without certificate it is unknown")
}

// TestExposedInstances shows when an instance is drained again, and when an alarm is
// raised again.
func TestExposedInstances(t *testing.T) {
	now := time.Now()
	var alarms []nstance.Event
	drains := make(chan nstance.InstanceID)
	answers := make(chan error)
	x := NewExposures(func(_ context.Context, id nstance.InstanceID, _ string) (nstance.Drain, error) {
		drains <- id
		return nstance.Drain{}, <-answers
	}, func(e nstance.Event) { alarms = append(alarms, e) }, func() time.Time { return now }, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { x.Run(ctx); close(ended) }()
	superseded := func(id string) { x.Superseded(nstance.Identity{Role: nstance.RoleAgent, Subject: id}, "test") }

	x.Superseded(nstance.Identity{Role: nstance.RoleOperator, Subject: "bob"}, "test") // has no machine
	superseded("a")
	require.Equal(t, nstance.InstanceID("a"), <-drains)
	answers <- nstance.Errorf(nstance.Conflict, "it is preserved")
	for _, id := range []nstance.InstanceID{"b", "c"} { // when c begins, b has been recorded
		superseded(string(id))
		require.Equal(t, id, <-drains)
		answers <- nil
	}
	superseded("b")
	superseded("a")
	require.Equal(t, nstance.InstanceID("a"), <-drains, "b is draining, a could not be drained")
	answers <- nil
	superseded("d")
	require.Equal(t, nstance.InstanceID("d"), <-drains)
	answers <- nil
	x.Contested("a", "test")
	require.Empty(t, alarms, "it is draining")
	x.Forget("a")
	x.Contested("a", "test")
	require.Equal(t, nstance.InstanceID("a"), <-drains)
	answers <- nil
	require.Len(t, alarms, 1)
	stop()
	<-ended

	alarms = nil
	misuse := func() { x.Misused(nstance.Event{Reason: "instance i1: nonce was used"}) }
	for range 5 {
		misuse()
	}
	require.Len(t, alarms, 1)
	x.Misused(nstance.Event{Reason: "instance i1: certificate was superseded"})
	require.Len(t, alarms, 2, "another object")
	now = now.Add(time.Hour)
	misuse()
	require.Len(t, alarms, 3)
	require.EqualValues(t, 5, alarms[2].Count, "with those that were skipped")
}

func TestRecordsKeepTheirPromises(t *testing.T) {
	registrationtest.Run(t, func(t *testing.T) registrationtest.Subject {
		l := newLeader(t)
		one, _ := l.instance()
		other, _ := l.instance()
		return registrationtest.Subject{Records: l.Records, Instances: [2]nstance.InstanceID{one, other}}
	})
}
