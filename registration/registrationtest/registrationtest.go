// Package registrationtest checks that a registration.Records keeps its promises, one
// subtest for each.
//
// The first subtest, smoke, changes the registration of one instance and reads it. If it
// fails, no other one is run. A call that does not return within 10 seconds is a failure
// with its name. After 20 seconds of such waits, or of a run in which a subtest has
// failed, the rest is skipped.
//
// Subtests run one after the other; some call their records concurrently.
package registrationtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
	"github.com/nstance-go/nstance/registration"
)

// A Subject is one implementation under test, without operators.
type Subject struct {
	Records registration.Records

	// Instances are two instances that are issued, and not registered yet.
	Instances [2]nstance.InstanceID
}

// A Factory makes a subject for one subtest. Clean up with t.Cleanup.
type Factory func(t *testing.T) Subject

const callLimit = 10 * time.Second

// Run checks every promise of registration.Records.
func Run(t *testing.T, open Factory) { runWithin(t, open, callLimit) }

func runWithin(t *testing.T, open Factory, limit time.Duration) {
	r := conformance.NewRun(limit)
	with := func(check func(*testing.T, fixture)) func(*testing.T, *conformance.Calls) {
		return func(t *testing.T, c *conformance.Calls) {
			s := open(t)
			check(t, fixture{s.Records, c, s.Instances[0], s.Instances[1]})
		}
	}
	if !r.Smoke(t, with(smoke)) {
		return
	}
	for _, p := range promises {
		r.Test(t, p.name, with(p.check))
	}
}

var promises = []struct {
	name  string
	check func(*testing.T, fixture)
}{
	{"a change is there for every reader", changes},
	{"what was read is a copy", copies},
	{"an error of the change is returned, and nothing is written", refuses},
	{"an instance that does not exist is NotFound", missing},
	{"no change of many at the same time is lost", counts},
	{"a nonce is consumed once, for ever", nonces},
	{"of many that consume a nonce at the same time one wins", race},
	{"an operator belongs to its tenant", tenants},
	{"a change of an operator is there for every reader", operators},
	{"an operator that does not exist is NotFound", noOperator},
	{"a call whose context has ended is no absence", cancelled},
}

type fixture struct {
	records registration.Records
	calls   *conformance.Calls
	id      nstance.InstanceID
	other   nstance.InstanceID
}

func (f fixture) read(ctx context.Context, id nstance.InstanceID) (registration.Registration, error) {
	return conformance.Call(ctx, f.calls, fmt.Sprintf("Registration(%s)", id), func(ctx context.Context) (registration.Registration, error) {
		return f.records.Registration(ctx, id)
	})
}

func (f fixture) refresh(ctx context.Context, id nstance.InstanceID) (registration.Registration, error) {
	return conformance.Call(ctx, f.calls, fmt.Sprintf("RefreshRegistration(%s)", id), func(ctx context.Context) (registration.Registration, error) {
		return f.records.RefreshRegistration(ctx, id)
	})
}

func (f fixture) update(ctx context.Context, id nstance.InstanceID, fn func(*registration.Registration) error) (registration.Registration, error) {
	return conformance.Call(ctx, f.calls, fmt.Sprintf("UpdateRegistration(%s)", id), func(ctx context.Context) (registration.Registration, error) {
		return f.records.UpdateRegistration(ctx, id, fn)
	})
}

func (f fixture) consume(ctx context.Context, jti string, r registration.OperatorRegistration) (registration.OperatorRegistration, error) {
	return conformance.Call(ctx, f.calls, fmt.Sprintf("ConsumeNonce(%q, %s of %s)", jti, r.Name, r.Tenant), func(ctx context.Context) (registration.OperatorRegistration, error) {
		return f.records.ConsumeNonce(ctx, jti, r)
	})
}

func (f fixture) operator(ctx context.Context, tenant nstance.TenantID, name string) (registration.OperatorRegistration, error) {
	return conformance.Call(ctx, f.calls, fmt.Sprintf("Operator(%s, %s)", tenant, name), func(ctx context.Context) (registration.OperatorRegistration, error) {
		return f.records.Operator(ctx, tenant, name)
	})
}

var begin = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func keyOf(serial string) *registration.KeyRecord {
	return &registration.KeyRecord{
		Fingerprint: "key-" + serial, PublicKey: []byte("public " + serial), Serial: serial, Issuer: "0a", NotBefore: begin, NotAfter: begin.Add(time.Hour),
		Certificate: []byte("certificate " + serial),
	}
}

// register is a change such as the Registrar makes.
func register(r *registration.Registration) error {
	r.RegisteredAt, r.Hostname, r.Addresses = begin, "host", []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	r.Current, r.Pending = keyOf("01"), keyOf("02")
	return nil
}

func smoke(t *testing.T, f fixture) {
	r, err := f.update(t.Context(), f.id, register)
	if err != nil || r.ID != f.id || r.Hostname != "host" {
		t.Fatalf("%s: the changed registration was due", f.calls.Last())
	}
	if r, err = f.read(t.Context(), f.id); err != nil || r.ID != f.id || r.Hostname != "host" {
		t.Fatalf("%s: the changed registration was due", f.calls.Last())
	}
}

func changes(t *testing.T, f fixture) {
	before, err := f.read(t.Context(), f.id)
	require.NoError(t, err)
	require.True(t, before.RegisteredAt.IsZero(), "it is not registered yet")
	want := before
	require.NoError(t, register(&want))
	returned, err := f.update(t.Context(), f.id, register)
	require.NoError(t, err)
	require.Equal(t, want, returned)
	for name, read := range map[string]func(context.Context, nstance.InstanceID) (registration.Registration, error){"Registration": f.read, "RefreshRegistration": f.refresh} {
		got, err := read(t.Context(), f.id)
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
	}
	other, err := f.refresh(t.Context(), f.other)
	require.NoError(t, err)
	require.True(t, other.RegisteredAt.IsZero(), "another instance is left alone")
}

func copies(t *testing.T, f fixture) {
	_, err := f.update(t.Context(), f.id, register)
	require.NoError(t, err)
	r, err := f.read(t.Context(), f.id)
	require.NoError(t, err)
	r.Hostname, r.Current, r.Pending = "changed by a reader", nil, nil
	again, err := f.read(t.Context(), f.id)
	require.NoError(t, err)
	require.Equal(t, "host", again.Hostname)
	require.NotNil(t, again.Current)
}

func refuses(t *testing.T, f fixture) {
	_, err := f.update(t.Context(), f.id, register)
	require.NoError(t, err)
	refusal := errors.New("refused by the change")
	_, err = f.update(t.Context(), f.id, func(r *registration.Registration) error {
		r.Hostname, r.Current = "not written", nil
		return refusal
	})
	require.ErrorIs(t, err, refusal)
	r, err := f.refresh(t.Context(), f.id)
	require.NoError(t, err)
	require.Equal(t, "host", r.Hostname)
	require.NotNil(t, r.Current)
}

func missing(t *testing.T, f fixture) {
	const none = nstance.InstanceID("web06h1hqt7bdsmdb7jn6pmk73v5r")
	_, err := f.read(t.Context(), none)
	require.ErrorIs(t, err, nstance.NotFound)
	_, err = f.refresh(t.Context(), none)
	require.ErrorIs(t, err, nstance.NotFound)
	_, err = f.update(t.Context(), none, func(*registration.Registration) error {
		t.Error("the change of an instance that does not exist was called")
		return nil
	})
	require.ErrorIs(t, err, nstance.NotFound)
}

func counts(t *testing.T, f fixture) {
	_, err := f.update(t.Context(), f.id, func(r *registration.Registration) error { r.Hostname = "0"; return nil })
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5 {
				if _, err := f.update(t.Context(), f.id, func(r *registration.Registration) error {
					n, err := strconv.Atoi(r.Hostname)
					r.Hostname = strconv.Itoa(n + 1)
					return err
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	r, err := f.refresh(t.Context(), f.id)
	require.NoError(t, err)
	require.Equal(t, "20", r.Hostname)
}

func operatorOf(name string) registration.OperatorRegistration {
	return registration.OperatorRegistration{
		Name: name, Role: nstance.RoleOperator, Tenant: "acme", JTI: "nonce-1", NonceExpiry: begin.Add(time.Hour), RegisteredAt: begin,
		Succession: registration.Succession{Current: keyOf("0a")},
	}
}

func nonces(t *testing.T, f fixture) {
	first, second := operatorOf("first"), operatorOf("second")
	got, err := f.consume(t.Context(), "nonce-1", first)
	require.NoError(t, err)
	require.Equal(t, first, got)
	for _, again := range []registration.OperatorRegistration{second, first} {
		got, err = f.consume(t.Context(), "nonce-1", again)
		require.NoError(t, err)
		require.Equal(t, first, got, "a nonce belongs to the first that has used it")
	}
	_, err = f.operator(t.Context(), "acme", "second")
	require.ErrorIs(t, err, nstance.NotFound)
	got, err = f.consume(t.Context(), "nonce-2", second)
	require.NoError(t, err)
	require.Equal(t, second, got)
	for _, want := range []registration.OperatorRegistration{first, second} {
		stored, err := f.operator(t.Context(), "acme", want.Name)
		require.NoError(t, err)
		require.Equal(t, want, stored)
	}
}

func race(t *testing.T, f fixture) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	winners := map[string]bool{}
	for i := range 8 {
		wg.Go(func() {
			got, err := f.consume(t.Context(), "nonce-1", operatorOf("operator-"+strconv.Itoa(i)))
			mu.Lock()
			defer mu.Unlock()
			if winners[got.Name] = true; err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Len(t, winners, 1, "operators that a nonce was used for")
}

func tenants(t *testing.T, f fixture) {
	_, err := f.consume(t.Context(), "nonce-1", operatorOf("eve"))
	require.NoError(t, err)
	_, err = f.operator(t.Context(), "other", "eve")
	require.ErrorIs(t, err, nstance.NotFound)
}

func operators(t *testing.T, f fixture) {
	_, err := f.consume(t.Context(), "nonce-1", operatorOf("eve"))
	require.NoError(t, err)
	revoke := func(o *registration.OperatorRegistration) error {
		o.Revoked, o.RevokedAt, o.RevokedReason, o.Pending = true, begin, "lost", keyOf("0b")
		return nil
	}
	want := operatorOf("eve")
	require.NoError(t, revoke(&want))
	got, err := f.records.UpdateOperator(t.Context(), "acme", "eve", revoke)
	require.NoError(t, err)
	require.Equal(t, want, got)
	refusal := errors.New("refused by the change")
	_, err = f.records.UpdateOperator(t.Context(), "acme", "eve", func(o *registration.OperatorRegistration) error {
		o.Revoked = false
		return refusal
	})
	require.ErrorIs(t, err, refusal)
	got, err = f.operator(t.Context(), "acme", "eve")
	require.NoError(t, err)
	require.Equal(t, want, got)
	got, err = f.consume(t.Context(), "nonce-1", operatorOf("eve"))
	require.NoError(t, err)
	require.Equal(t, "eve", got.Name)
	got, err = f.operator(t.Context(), "acme", "eve")
	require.NoError(t, err)
	require.True(t, got.Revoked, "its nonce, used again, does not undo a revocation")
}

func noOperator(t *testing.T, f fixture) {
	_, err := f.operator(t.Context(), "acme", "nobody")
	require.ErrorIs(t, err, nstance.NotFound)
	_, err = f.records.UpdateOperator(t.Context(), "acme", "nobody", func(*registration.OperatorRegistration) error { return nil })
	require.ErrorIs(t, err, nstance.NotFound)
}

func cancelled(t *testing.T, f fixture) {
	ended, end := context.WithCancel(t.Context())
	end()
	_, err := f.consume(t.Context(), "nonce-1", operatorOf("eve"))
	require.NoError(t, err)
	for name, call := range map[string]func() error{
		"Registration":        func() error { _, err := f.records.Registration(ended, f.id); return err },
		"RefreshRegistration": func() error { _, err := f.records.RefreshRegistration(ended, f.id); return err },
		"UpdateRegistration":  func() error { _, err := f.records.UpdateRegistration(ended, f.id, register); return err },
		"Operator":            func() error { _, err := f.records.Operator(ended, "acme", "eve"); return err },
	} {
		require.NotErrorIs(t, call(), nstance.NotFound, "%s, after its context has ended: an error is never absence", name)
	}
}
