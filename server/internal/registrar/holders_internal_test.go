package registrar

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/generation"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/registration"
)

// TestDependsOn: an instance depends on a key while something that is signed with it may
// still be presented, or while it trusts nothing else.
func TestDependsOn(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	const k = "k1"
	signed := func(issuer string, end time.Duration) *records.KeyRecord {
		return &records.KeyRecord{Issuer: issuer, NotAfter: now.Add(end)}
	}
	boot := records.Instance{NonceKeyID: k, CreatedAt: now, LaunchTimeout: time.Minute, RegistrationTimeout: time.Minute}
	for name, c := range map[string]struct {
		set   string
		rec   records.Instance
		at    time.Duration // after now
		yes   bool
		until time.Duration // after now; 0: unknown
	}{
		"a nonce that is good":           {keyring.Nonces, boot, 2*time.Minute - 1, true, 2 * time.Minute},
		"a nonce that has expired":       {keyring.Nonces, boot, 2 * time.Minute, false, 2 * time.Minute},
		"a nonce of another key":         {keyring.Nonces, records.Instance{NonceKeyID: "k2", CreatedAt: now, LaunchTimeout: time.Hour}, 0, false, time.Hour},
		"an instance that is deleted":    {keyring.Nonces, records.Instance{NonceKeyID: k, CreatedAt: now, LaunchTimeout: time.Hour, Deleting: &records.Deletion{}}, 0, false, 0},
		"a certificate":                  {keyring.Identity, records.Instance{Current: signed(k, time.Hour)}, 0, true, time.Hour},
		"a certificate of another key":   {keyring.Identity, records.Instance{Current: signed("k2", time.Hour)}, 0, false, 0},
		"a renewed one":                  {keyring.Identity, records.Instance{Current: signed("k2", time.Hour), Pending: signed(k, 2*time.Hour)}, 0, true, 2 * time.Hour},
		"one that was renewed":           {keyring.Identity, records.Instance{Current: signed(k, time.Hour), Pending: signed("k2", 2*time.Hour)}, 0, true, time.Hour},
		"both":                           {keyring.Identity, records.Instance{Current: signed(k, time.Hour), Pending: signed(k, 2*time.Hour)}, 0, true, 2 * time.Hour},
		"a certificate of a deleted one": {keyring.Identity, records.Instance{Current: signed(k, time.Hour), Deleting: &records.Deletion{}}, 0, false, 0},
		"it trusts this one alone":       {keyring.Identity, records.Instance{Authorities: []string{k}}, 0, true, 0},
		"it trusts another one too":      {keyring.Identity, records.Instance{Authorities: []string{k, "k2"}}, 0, false, 0},
		"an older record says nothing":   {keyring.Identity, records.Instance{}, 0, true, 0},
		"an adopted machine":             {keyring.Identity, records.Instance{Authorities: []string{k, "k2"}, RegisteredAt: now}, 0, true, 0},
		"another set":                    {keyring.Workload, records.Instance{NonceKeyID: k, Current: signed(k, time.Hour)}, 0, false, 0},
	} {
		yes, until := dependsOn(c.set, keyring.KeyEntry{ID: k}, c.rec, now.Add(c.at))
		require.Equal(t, c.yes, yes, name)
		if c.until == 0 {
			require.Zero(t, until, name)
		} else {
			require.Equal(t, now.Add(c.until), until, name)
		}
	}
}

// TestHolders: what is said of them fits one line, and names the time to wait for.
func TestHolders(t *testing.T) {
	h, end := &holders{}, time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	require.NoError(t, h.err(keyring.Nonces, keyring.KeyEntry{ID: "k1"}))
	h.add("shard s2", "a", end)
	h.add("shard s2", "b", end.Add(-time.Hour))
	h.add("shard s1", "c", end.Add(time.Hour))
	h.add("operators", "d", end)
	require.Equal(t, []any{4, end.Add(time.Hour), false}, []any{h.count, h.lastUntil, h.endless})
	err := h.err(keyring.Nonces, keyring.KeyEntry{ID: "k1"})
	require.ErrorIs(t, err, nstance.Conflict)
	require.ErrorContains(t, err, "4 still depend on nonce key k1 (1 in operators, 1 in shard s1, 2 in shard s2), such as a, b, c")
	require.NotContains(t, err.Error(), ", d")
	require.ErrorContains(t, err, "wait until they have expired, at 2026-03-04T06:06:07Z, or finish with force")
	require.ErrorContains(t, h.err(keyring.Identity, keyring.KeyEntry{}), "wait until they have renewed")
	h.add("shard s1", "e", time.Time{})
	require.Equal(t, []any{end.Add(time.Hour), true}, []any{h.lastUntil, h.endless})
}

// TestUnusedOperators: an operator depends on a key while one of its certificates is good,
// unless it is revoked.
func TestUnusedOperators(t *testing.T) {
	l := newLeader(t)
	who := l.registered(l.operatorNonce(), pki.NewKey())
	k := keyring.KeyEntry{ID: l.ring.Keys().Identity.Issuer()}
	unused := func() error { return l.Unused(keyring.Identity)(t.Context(), k) }
	change := func(f func(op *registration.OperatorRegistration)) {
		_, err := l.UpdateOperator(t.Context(), "acme", who.Subject, func(op *registration.OperatorRegistration) error { f(op); return nil })
		require.NoError(t, err)
	}
	require.ErrorContains(t, unused(), "1 in operators), such as acme/"+who.Subject)
	require.NoError(t, l.Unused(keyring.Workload)(t.Context(), k), "the catalogue says that of workload keys")

	began := l.now
	l.now = who.NotAfter
	require.NoError(t, unused(), "it has expired")
	l.now = began
	change(func(op *registration.OperatorRegistration) {
		op.Pending = &registration.KeyRecord{Issuer: k.ID, NotAfter: l.now.Add(time.Hour), Serial: "0a"}
		op.Current.Issuer = "another"
	})
	require.ErrorContains(t, unused(), "1 in operators")
	change(func(op *registration.OperatorRegistration) { op.Revoked = true })
	require.NoError(t, unused())

	_, err := l.faulty.PutIfAbsent(t.Context(), layout.OperatorKey("acme", "damaged"), []byte("{"))
	require.NoError(t, err)
	require.ErrorContains(t, unused(), "the unreadable operator/")
	require.NoError(t, l.Unused(keyring.Nonces)(t.Context(), k), "no nonce of an operator is kept")
}

// TestUnusedInstances: a used successor counts before it is durable, and an unreadable record
// of this shard counts.
func TestUnusedInstances(t *testing.T) {
	l := newLeader(t)
	id, nonce := l.instance()
	k := keyring.KeyEntry{ID: l.ring.Keys().Identity.Issuer()}
	who := l.renewed(l.registered(nonce, pki.NewKey()))
	_, err := l.recs.Update(t.Context(), id, func(rec *records.Instance) error {
		pending := *rec.Pending
		pending.Issuer, rec.Pending = "another", &pending
		return nil
	})
	require.NoError(t, err)
	require.ErrorIs(t, l.Unused(keyring.Identity)(t.Context(), k), nstance.Conflict, "both are good")
	require.NoError(t, l.verify(who))
	require.NoError(t, l.Unused(keyring.Identity)(t.Context(), k))
	l.Successors.Forget(id)
	require.ErrorIs(t, l.Unused(keyring.Identity)(t.Context(), k), nstance.Conflict)
	require.NoError(t, l.verify(who))

	broken, err := nstance.NewInstanceID("web", l.now)
	require.NoError(t, err)
	_, err = l.faulty.PutIfAbsent(t.Context(), layout.InstanceKey(zone, "default", "web", broken), []byte("{"))
	require.NoError(t, err)
	_, _, err = l.recs.Load(t.Context())
	require.NoError(t, err)
	require.ErrorContains(t, l.Unused(keyring.Identity)(t.Context(), k), "1 in shard s1), such as the unreadable "+layout.InstanceKey(zone, "default", "web", broken))
}

// shown is a reconciler that has been shown the machine of an instance.
type shown struct {
	reconciler
	machine nstance.Machine
}

func (s shown) Instance(nstance.InstanceID) (reconcile.InstanceView, error) {
	return reconcile.InstanceView{Machine: s.machine}, nil
}

// TestConfirmed: a record of before storage was restored is not trusted before the provider
// has shown its machine, however it is asked for.
func TestConfirmed(t *testing.T) {
	l := newLeader(t)
	id, _ := l.instance()
	asks := map[string]func() error{
		"Registration":        func() error { _, err := l.Registration(t.Context(), id); return err },
		"RefreshRegistration": func() error { _, err := l.RefreshRegistration(t.Context(), id); return err },
	}
	requireAll := func(confirmed bool, why string) {
		for name, ask := range asks {
			if confirmed {
				require.NoError(t, ask(), "%s, %s", name, why)
			} else {
				require.ErrorIs(t, ask(), nstance.Unavailable, "%s, %s", name, why)
			}
		}
	}
	requireAll(true, "of this storage")
	l.Epoch = generation.Next(l.Epoch)
	requireAll(false, "restored")
	l.shard = shown{reconciler{l}, nstance.Machine{}}
	requireAll(false, "it has a state, but no machine")
	l.shard = shown{reconciler{l}, nstance.Machine{ProviderID: "i-1"}}
	requireAll(true, "its machine is known")
}

// TestMachineIsRecorded: the write of a registration records which machine it is, as far as
// that is known.
func TestMachineIsRecorded(t *testing.T) {
	l := newLeader(t)
	id, nonce := l.instance()
	l.shard = shown{reconciler{l}, nstance.Machine{ProviderID: "i-1", Zone: "a"}}
	l.registered(nonce, pki.NewKey())
	require.Equal(t, []string{"i-1", "a"}, []string{l.stored(id).ProviderID, l.stored(id).Zone})
	l.shard = shown{reconciler{l}, nstance.Machine{Zone: "b"}}
	unchanged := func(*registration.Registration) error { return nil }
	_, err := l.UpdateRegistration(t.Context(), id, unchanged)
	require.NoError(t, err)
	require.Equal(t, []string{"i-1", "a"}, []string{l.stored(id).ProviderID, l.stored(id).Zone}, "a machine without an ID is none")
}

// TestAlarmsAreBounded: many misused identities fill no memory: those beyond the bound share
// one alarm, until the others are an hour old.
func TestAlarmsAreBounded(t *testing.T) {
	now := time.Now()
	var alarms []nstance.Event
	x := NewExposures(nil, func(e nstance.Event) { alarms = append(alarms, e) }, func() time.Time { return now }, slog.New(slog.DiscardHandler))
	misuse := func(n int) { x.Misused(nstance.Event{Reason: fmt.Sprintf("instance i%d: nonce was used", n)}) }
	for n := range maxAlarmSubjects + 100 {
		misuse(n)
	}
	require.Len(t, alarms, maxAlarmSubjects+1, "those beyond share one")
	require.LessOrEqual(t, len(x.alarms.recent), maxAlarmSubjects+1)
	misuse(0)
	require.Len(t, alarms, maxAlarmSubjects+1, "a known one is still known")
	now = now.Add(alarmInterval - 1)
	misuse(maxAlarmSubjects)
	require.Len(t, alarms, maxAlarmSubjects+1)
	now = now.Add(1)
	misuse(maxAlarmSubjects)
	misuse(maxAlarmSubjects + 1)
	require.Len(t, alarms, maxAlarmSubjects+3, "each has its own again")
	require.Len(t, x.alarms.recent, 2)
}
