package lease_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func campaign(t *testing.T, e lease.Elector) *lease.Term {
	t.Helper()
	term, err := e.Campaign(t.Context())
	require.NoError(t, err)
	require.NoError(t, term.Err())
	return term
}

func content(t *testing.T, s storage.Store) string {
	t.Helper()
	obj, err := s.Get(t.Context(), "lease/z1.json")
	require.NoError(t, err)
	return string(obj.Data)
}

func TestSingle(t *testing.T) {
	t.Run("each grant has the next epoch, across processes", func(t *testing.T) {
		dir := t.TempDir()
		for want := range uint64(3) {
			s, err := storage.OpenDir(dir, nil)
			require.NoError(t, err)
			require.Equal(t, want+1, campaign(t, lease.NewSingle(s, "z1", nil)).Epoch())
		}
	})
	t.Run("the object has the documented shape", func(t *testing.T) {
		s := storage.NewMemory()
		e := lease.NewSingle(s, "z1", &lease.Options{Address: "10.0.0.1:8993", Peer: "10.0.0.1:8991", TTL: 9 * time.Second})
		campaign(t, e)
		const shape = `^\{"format":"1\.0","epoch":1,"write_id":"[A-Z2-7]{26}","holder":"[A-Z2-7]{26}","address":"10\.0\.0\.1:8993","peer":"10\.0\.0\.1:8991","ttl_ms":9000,"released":%t\}\n$`
		require.Regexp(t, fmt.Sprintf(shape, false), content(t, s))
		require.NoError(t, e.Resign(t.Context()))
		require.Regexp(t, fmt.Sprintf(shape, true), content(t, s))
	})
	t.Run("a term outlives its campaign and ends with Resign", func(t *testing.T) {
		e := lease.NewSingle(storage.NewMemory(), "z1", nil)
		ctx, cancel := context.WithCancel(t.Context())
		term, err := e.Campaign(ctx)
		require.NoError(t, err)
		cancel()
		require.NoError(t, term.Err())
		require.NoError(t, e.Resign(t.Context()))
		<-term.Context().Done()
		require.ErrorIs(t, term.Err(), nstance.Unavailable)
		require.ErrorIs(t, term.Err(), lease.ErrResigned)
		require.NoError(t, e.Resign(t.Context()), "nothing to give back")
	})
	t.Run("a second campaign ends the first term", func(t *testing.T) {
		e := lease.NewSingle(storage.NewMemory(), "z1", nil)
		first := campaign(t, e)
		second := campaign(t, e)
		require.ErrorIs(t, first.Err(), nstance.Unavailable)
		require.Equal(t, first.Epoch()+1, second.Epoch())
	})
	t.Run("resigning does not release a later holder's lease", func(t *testing.T) {
		s := storage.NewMemory()
		one, two := lease.NewSingle(s, "z1", nil), lease.NewSingle(s, "z1", nil)
		campaign(t, one)
		campaign(t, two)
		require.NoError(t, one.Resign(t.Context()))
		require.Contains(t, content(t, s), `"released":false`)
	})
	t.Run("the term ends even if storage does not answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := storagetest.NewFaulty(storage.NewMemory())
			e := lease.NewSingle(f, "z1", nil)
			term := campaign(t, e)
			f.Inject(storagetest.Fault{Times: -1})
			require.Error(t, e.Resign(t.Context()))
			require.ErrorIs(t, term.Err(), nstance.Unavailable)
		})
	})
	t.Run("a lost answer is settled", func(t *testing.T) {
		f := storagetest.NewFaulty(storage.NewMemory())
		f.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.Lose})
		require.EqualValues(t, 1, campaign(t, lease.NewSingle(f, "z1", nil)).Epoch())
	})
	t.Run("without an answer there is no term, and the next epoch is higher", func(t *testing.T) {
		f := storagetest.NewFaulty(storage.NewMemory())
		f.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.Lose},
			storagetest.Fault{Op: storagetest.Get, Prefix: leaseKey, Skip: 1})
		e := lease.NewSingle(f, "z1", nil)
		_, err := e.Campaign(t.Context())
		require.ErrorIs(t, err, nstance.Ambiguous)
		require.EqualValues(t, 2, campaign(t, e).Epoch())
	})
	t.Run("a lease that cannot be read is not taken", func(t *testing.T) {
		s := storage.NewMemory()
		_, err := s.PutIfAbsent(t.Context(), "lease/z1.json", []byte(`{"format":"2.0"}`))
		require.NoError(t, err)
		_, err = lease.NewSingle(s, "z1", nil).Campaign(t.Context())
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, "lease/z1.json")
	})
	t.Run("fields of a newer version stay", func(t *testing.T) {
		s := storage.NewMemory()
		_, err := s.PutIfAbsent(t.Context(), "lease/z1.json", []byte(`{"format":"1.1","epoch":4,"write_id":"x","peers":["a"]}`))
		require.NoError(t, err)
		require.EqualValues(t, 5, campaign(t, lease.NewSingle(s, "z1", nil)).Epoch())
		require.Contains(t, content(t, s), `"peers":["a"]`)
	})
}

func TestMissingLeaseContinuesTheEpochs(t *testing.T) {
	lost := func(t *testing.T) *storage.Memory {
		s := storage.NewMemory()
		recs := storage.NewRecords(s, "z1", &storage.RecordsOptions{Epoch: 41})
		id, err := nstance.NewInstanceID("knd", time.Now())
		require.NoError(t, err)
		_, err = recs.Create(t.Context(), storage.Instance{ID: id, Tenant: "default", Group: "web"})
		require.NoError(t, err)
		return s
	}
	t.Run("after the records'", func(t *testing.T) {
		require.EqualValues(t, 42, campaign(t, lease.NewSingle(lost(t), "z1", nil)).Epoch())
	})
	t.Run("after the state's", func(t *testing.T) {
		s := lost(t)
		_, err := s.PutIfAbsent(t.Context(), "state/z1.json", []byte(`{"format":"1.0","epoch":50}`))
		require.NoError(t, err)
		require.EqualValues(t, 51, campaign(t, lease.NewSingle(s, "z1", nil)).Epoch())
	})
	t.Run("passing over what carries none", func(t *testing.T) {
		s := lost(t)
		_, err := s.PutIfAbsent(t.Context(), "instance/z1/default/web/notes.txt", []byte("remember the milk"))
		require.NoError(t, err)
		require.EqualValues(t, 42, campaign(t, lease.NewSingle(s, "z1", nil)).Epoch())
	})
	t.Run("but not when they cannot be read", func(t *testing.T) {
		for _, fault := range []storagetest.Fault{
			{Op: storagetest.Get, Prefix: "instance/"}, {Op: storagetest.Get, Prefix: "state/"}, {Op: storagetest.List},
			{Op: storagetest.List, Mode: storagetest.Lose},
		} {
			f := storagetest.NewFaulty(lost(t))
			f.Inject(fault)
			e := lease.NewSingle(f, "z1", nil)
			_, err := e.Campaign(t.Context())
			require.ErrorIs(t, err, nstance.Unavailable)
			require.EqualValues(t, 42, campaign(t, e).Epoch())
		}
	})
}

func TestErrorsSayWhatFailed(t *testing.T) {
	f := storagetest.NewFaulty(storage.NewMemory())
	f.Inject(storagetest.Fault{Err: errors.New("disk on fire")})
	_, err := lease.NewSingle(f, "z1", nil).Campaign(t.Context())
	require.ErrorContains(t, err, "take the lease")
	require.ErrorContains(t, err, "disk on fire")
}

func ExampleSingle() {
	ctx := context.Background()
	var elector lease.Elector = lease.NewSingle(storage.NewMemory(), "z1", nil)
	term, err := elector.Campaign(ctx)
	fmt.Println(term.Epoch(), term.Err(), err)
	err = elector.Resign(ctx)
	fmt.Println(term.Err(), err)
	// Output:
	// 1 <nil> <nil>
	// term 1 is over: the lease was given back <nil>
}
