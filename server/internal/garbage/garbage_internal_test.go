package garbage

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/server/internal/registrar"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// A collectorTest is a collector whose clock and storage a test can make fail.
type collectorTest struct {
	*Collector
	*testing.T
	store *storagetest.Faulty
	right bool  // what ClockRight returns
	over  error // what Check returns
}

// runCollectorTest runs a test in a bubble, with the collector of a leader.
func runCollectorTest(t *testing.T, name string, f func(t *testing.T, b *collectorTest)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := &collectorTest{T: t, store: storagetest.NewFaulty(storage.NewMemory()), right: true}
			b.Collector = New(b.store, Options{
				Check: func() error { return b.over }, ClockRight: func() bool { return b.right }, Now: time.Now,
				Retention: func() time.Duration { return 30 * time.Minute }, Log: slog.New(slog.DiscardHandler),
				Contents: records.New(b.store, "s1", nil).CollectGarbage,
				Kinds:    []Kind{{layout.NonceKey(""), registrar.NonceEnds}, {layout.OperatorPrefix, registrar.OperatorEnds}},
			})
			f(t, b)
		})
	})
}

const day = 24 * time.Hour

// registered is the registration of an operator whose nonce and certificate are
// good for some time yet.
func registered(name string, nonce, certificate time.Duration) registration.OperatorRegistration {
	now := time.Now().UTC()
	return registration.OperatorRegistration{
		Name: name, Role: nstance.RoleOperator, Tenant: "default", JTI: name, RegisteredAt: now, NonceExpiry: now.Add(nonce),
		Succession: registration.Succession{Current: &registration.KeyRecord{Serial: "01", NotAfter: now.Add(certificate)}},
	}
}

// put stores an operator's record and the mark of its nonce.
func (b *collectorTest) put(op registration.OperatorRegistration) (nonce, record string) {
	b.Helper()
	nonce, record = layout.NonceKey(op.JTI), layout.OperatorKey(op.Tenant, op.Name)
	data, err := json.Marshal(registrar.UsedNonce{Header: records.NewHeader(3), Operator: op})
	require.NoError(b, err)
	_, err = b.store.PutIfAbsent(b.Context(), nonce, data)
	require.NoError(b, err)
	_, err = records.NewDoc[registrar.OperatorRecord](b.store, record, nil).Update(b.Context(), func(r *registrar.OperatorRecord) error { r.Operator = &op; return nil })
	require.NoError(b, err)
	return nonce, record
}

func (b *collectorTest) objectExists(key string) bool {
	b.Helper()
	_, err := b.store.Get(b.Context(), key)
	if err != nil {
		require.ErrorIs(b, err, nstance.NotFound)
	}
	return err == nil
}

// advance lets time pass, then does a pass.
func (b *collectorTest) advance(d time.Duration) {
	<-time.After(d)
	b.pass(b.Context())
}

func TestExpiredRegistrationsAreRemoved(t *testing.T) {
	for name, c := range map[string]struct {
		op            registration.OperatorRegistration
		change        func(*registration.OperatorRegistration)
		nonce, record time.Duration // until when each is needed; 0: for good
	}{
		"nonce and certificate":           {registered("a", 3*time.Hour, day), nil, 3 * time.Hour, day},
		"a nonce that is good for longer": {registered("a", 9*day, day), nil, 9 * day, 9 * day},
		"a certificate that was renewed": {registered("a", 3*time.Hour, day), func(op *registration.OperatorRegistration) {
			op.Pending = &registration.KeyRecord{NotAfter: op.RegisteredAt.Add(5 * day)}
		}, 3 * time.Hour, 5 * day},
		"a revocation, as long as what it revokes": {registered("a", 3*time.Hour, 4*day), func(op *registration.OperatorRegistration) {
			op.Revoked, op.RevokedAt = true, op.RegisteredAt
		}, 3 * time.Hour, 4 * day},
		"not what says nothing of when": {registered("a", 0, day), func(op *registration.OperatorRegistration) {
			op.NonceExpiry, op.RegisteredAt = time.Time{}, time.Time{}
		}, 0, 0},
		"not a record without a certificate": {registered("a", time.Hour, day), func(op *registration.OperatorRegistration) {
			op.Current = nil
		}, time.Hour, 0},
	} {
		runCollectorTest(t, name, func(t *testing.T, b *collectorTest) {
			began := time.Now()
			op := c.op
			shift := began.Sub(op.RegisteredAt) // the table was made outside of the bubble
			op.RegisteredAt, op.NonceExpiry = op.RegisteredAt.Add(shift), op.NonceExpiry.Add(shift)
			op.Current = &registration.KeyRecord{Serial: "01", NotAfter: op.Current.NotAfter.Add(shift)}
			if c.change != nil {
				c.change(&op)
			}
			nonce, record := b.put(op)
			const spare = day + 30*time.Minute // expiredFor and retention
			moments := []time.Duration{time.Hour, c.nonce + spare, c.nonce + spare + time.Second, c.record + spare, c.record + spare + time.Second, 400 * day}
			slices.Sort(moments)
			for _, at := range moments {
				b.advance(at - time.Since(began))
				require.Equal(t, c.nonce == 0 || at <= c.nonce+spare, b.objectExists(nonce), "nonce, %s", at)
				require.Equal(t, c.record == 0 || at <= c.record+spare, b.objectExists(record), "record, %s", at)
			}
			require.Empty(t, b.Problems())
		})
	}
}

// storeExpired puts what may go by now, and something that may not.
func (b *collectorTest) storeExpired() (nonce, record string) {
	b.Helper()
	nonce, record = b.put(registered("a", time.Hour, time.Hour))
	<-time.After(2 * day)
	b.put(registered("b", time.Hour, time.Hour))
	return nonce, record
}

func TestExpiredRegistrationsStayInDoubt(t *testing.T) {
	runCollectorTest(t, "while the clock is wrong", func(t *testing.T, b *collectorTest) {
		nonce, record := b.storeExpired()
		unnamed := layout.FetchedKey("s1", strings.Repeat("ab", 32))
		_, err := b.store.PutIfAbsent(t.Context(), unnamed, []byte("x"))
		require.NoError(t, err)
		b.right = false
		for range 10 {
			b.advance(time.Hour)
			require.True(t, b.objectExists(nonce) && b.objectExists(record))
		}
		require.False(t, b.objectExists(unnamed), "which depends on no wall clock")
		b.right = true
		b.advance(time.Hour)
		require.False(t, b.objectExists(nonce) || b.objectExists(record))
	})
	for _, key := range []string{"nonce/", "operator/"} {
		at := func(nonce, record string) (this, other string) {
			if key == "nonce/" {
				return nonce, record
			}
			return record, nonce
		}
		// keptWhen checks that after a disturbance the object of this kind stays and the other
		// one is deleted.
		keptWhen := func(name string, disturb func(b *collectorTest)) {
			runCollectorTest(t, key+": "+name, func(t *testing.T, b *collectorTest) {
				this, other := at(b.storeExpired())
				disturb(b)
				b.advance(time.Minute)
				require.True(t, b.objectExists(this))
				require.False(t, b.objectExists(other))
				require.Len(t, b.Problems(), 1)
				require.Contains(t, b.Problems()[0], "garbage under "+key+" is not collected: ")
			})
		}
		keptWhen("the clock turns out to be wrong", func(b *collectorTest) {
			b.store.Inject(storagetest.Fault{Op: storagetest.List, Prefix: key, Pass: true, Do: func() { b.right = false }})
			others := map[string]string{"nonce/": "operator/", "operator/": "nonce/"}
			b.store.Inject(storagetest.Fault{Op: storagetest.List, Prefix: others[key], Pass: true, Do: func() { b.right = true }})
		})
		keptWhen("it cannot be listed", func(b *collectorTest) {
			b.store.Inject(storagetest.Fault{Op: storagetest.List, Prefix: key})
		})
		keptWhen("its list breaks off", func(b *collectorTest) {
			b.store.Inject(storagetest.Fault{Op: storagetest.List, Prefix: key, Mode: storagetest.LoseAnswer})
		})
		keptWhen("another one cannot be read", func(b *collectorTest) {
			b.store.Inject(storagetest.Fault{Op: storagetest.Get, Prefix: key, Skip: 1})
		})
		for name, text := range map[string]string{
			"damaged": `{"format":"1.0","operator":`, "without a format": `{"operator":{}}`, "of a newer minor format": `{"format":"1.1"}`,
			"of a newer major format": `{"format":"2.0"}`,
		} {
			keptWhen("another one is "+name, func(b *collectorTest) {
				_, err := b.store.PutIfAbsent(b.Context(), key+"default.zzzzzzzzzzzzzzzz", []byte(text))
				require.NoError(b, err)
			})
		}
	}
	runCollectorTest(t, "a record that is none", func(t *testing.T, b *collectorTest) {
		_, record := b.storeExpired()
		_, err := b.store.PutIfAbsent(t.Context(), layout.OperatorKey("default", "c"), []byte(`{"format":"1.0"}`))
		require.NoError(t, err)
		b.advance(time.Minute)
		require.True(t, b.objectExists(record))
	})
	runCollectorTest(t, "what has changed meanwhile", func(t *testing.T, b *collectorTest) {
		_, record := b.storeExpired()
		b.store.Inject(storagetest.Fault{Op: storagetest.Delete, Prefix: record, Pass: true, Do: func() {
			_, err := records.NewDoc[registrar.OperatorRecord](b.store, record, nil).Update(t.Context(), func(r *registrar.OperatorRecord) error {
				r.Operator.Hostname = "other"
				return nil
			})
			require.NoError(t, err)
		}})
		b.advance(time.Minute)
		require.True(t, b.objectExists(record))
		require.Empty(t, b.Problems())
	})
	runCollectorTest(t, "after the term", func(t *testing.T, b *collectorTest) {
		nonce, record := b.storeExpired()
		b.store.Inject(storagetest.Fault{Op: storagetest.List, Prefix: "nonce/", Pass: true, Do: func() { b.over = nstance.Errorf(nstance.Unavailable, "over") }})
		b.store.Inject(storagetest.Fault{Op: storagetest.List, Prefix: "operator/", Pass: true, Do: func() { b.over = nstance.Errorf(nstance.Unavailable, "over") }})
		b.advance(time.Minute)
		require.True(t, b.objectExists(nonce) && b.objectExists(record))
		require.Empty(t, b.Problems())
	})
}

func TestManyExpiredRegistrations(t *testing.T) {
	runCollectorTest(t, "are removed in parts", func(t *testing.T, b *collectorTest) {
		for i := range 1200 {
			b.put(registered(fmt.Sprintf("old-%04d", i), time.Hour, time.Hour))
		}
		left := func(prefix string) (n int) {
			for range b.store.List(t.Context(), prefix, "") {
				n++
			}
			return n
		}
		<-time.After(2 * day)
		for i := range 600 { // before them all
			b.put(registered(fmt.Sprintf("new-%04d", i), time.Hour, time.Hour))
		}
		for _, want := range []int{1800, 1400, 900, 600, 600, 600} {
			b.advance(time.Second)
			require.Equal(t, want, left("nonce/"))
			require.Equal(t, want, left("operator/"))
		}
	})
}

// TestLedgerIsPrunedByARightClock: the days of the ledger are old or not by the wall clock.
func TestLedgerIsPrunedByARightClock(t *testing.T) {
	runCollectorTest(t, "", func(t *testing.T, b *collectorTest) {
		pruned := 0
		b.Ledger = func(context.Context) (int, error) { pruned++; return 0, nil }
		b.right = false
		b.advance(time.Hour)
		require.Zero(t, pruned)
		b.right = true
		b.advance(time.Hour)
		require.Equal(t, 1, pruned)
	})
}

// TestFailedPageIsRepeated: what could not be collected is tried again by the next pass, and
// not after all other pages.
func TestFailedPageIsRepeated(t *testing.T) {
	for name, fault := range map[string]storagetest.Fault{
		"its list":   {Op: storagetest.List, Prefix: "nonce/"},
		"a read":     {Op: storagetest.Get, Prefix: "nonce/"},
		"a deletion": {Op: storagetest.Delete, Prefix: "nonce/"},
	} {
		runCollectorTest(t, name, func(t *testing.T, b *collectorTest) {
			for i := range expiredPage + 2 {
				b.put(registered(fmt.Sprintf("%04d", i), time.Hour, time.Hour))
			}
			first, last := layout.NonceKey("0000"), layout.NonceKey(fmt.Sprintf("%04d", expiredPage+1))
			<-time.After(2 * day)
			b.store.Inject(fault)
			b.pass(t.Context())
			require.True(t, b.objectExists(first))
			b.pass(t.Context())
			require.False(t, b.objectExists(first), "it is tried again at once")
			require.True(t, b.objectExists(last))
			b.pass(t.Context())
			require.False(t, b.objectExists(last), "then comes the next page")
		})
	}
}
