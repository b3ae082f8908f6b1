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
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
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

// electorWithoutWait returns an elector that does not wait.
func electorWithoutWait(t *testing.T, s storage.Store) *lease.Lease {
	return candidate(t, s, lease.Options{TakeAtOnce: true})
}

func TestAcquireAtOnce(t *testing.T) {
	bubble(t, "takes a missing lease", func(t *testing.T) {
		d, term := campaignDuration(t, electorWithoutWait(t, storage.NewMemory()))
		require.Zero(t, d)
		require.EqualValues(t, 1, term.Epoch())
	})
	bubble(t, "takes a held lease, and thereby ends its term", func(t *testing.T) {
		s := newShardStore(t)
		held := campaign(t, candidate(t, s, lease.Options{}))
		d, term := campaignDuration(t, electorWithoutWait(t, s))
		require.Zero(t, d)
		require.EqualValues(t, 2, term.Epoch())
		after(t.Context(), 6*time.Second)
		require.ErrorIs(t, held.Err(), nstance.Unavailable)
		require.NoError(t, term.Err(), "it is renewed as any other")
	})
	bubble(t, "ends when another server takes it", func(t *testing.T) {
		s := storage.NewMemory()
		first := campaign(t, electorWithoutWait(t, s))
		campaign(t, electorWithoutWait(t, s))
		after(t.Context(), 6*time.Second)
		require.ErrorIs(t, first.Err(), lease.ErrLost)
	})
	bubble(t, "does not take an unreadable lease", func(t *testing.T) {
		s := storage.NewMemory()
		_, err := s.PutIfAbsent(t.Context(), leaseKey, []byte(`{"format":"2.0"}`))
		require.NoError(t, err)
		_, err = electorWithoutWait(t, s).Campaign(t.Context())
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, leaseKey)
	})
}

func TestObject(t *testing.T) {
	bubble(t, "has the documented shape", func(t *testing.T) {
		s := storage.NewMemory()
		e := candidate(t, s, lease.Options{TakeAtOnce: true, Address: "10.0.0.1:8993", Registration: "10.0.0.1:8992", Peer: "10.0.0.1:8991", TTL: 9 * time.Second})
		campaign(t, e)
		const shape = `^\{"format":"1\.0","epoch":1,"write_id":"[A-Z2-7]{26}","holder":"[A-Z2-7]{26}","address":"10\.0\.0\.1:8993","peer":"10\.0\.0\.1:8991","registration":"10\.0\.0\.1:8992","ttl_ms":9000,"released":%t\}\n$`
		require.Regexp(t, fmt.Sprintf(shape, false), content(t, s))
		require.NoError(t, e.Resign(t.Context()))
		require.Regexp(t, fmt.Sprintf(shape, true), content(t, s))
		require.NoError(t, e.Resign(t.Context()), "nothing to release")
	})
}

func TestPrepare(t *testing.T) {
	bubble(t, "lets one first leader start at once", func(t *testing.T) {
		s := newShardStore(t)
		a, b := startCampaign(t, candidate(t, s, lease.Options{})), startCampaign(t, candidate(t, s, lease.Options{}))
		synctest.Wait()
		require.Equal(t, 1, len(a)+len(b))
	})
	bubble(t, "saves the search for epochs", func(t *testing.T) {
		f := storagetest.NewFaulty(newShardStore(t))
		f.Inject(storagetest.Fault{Op: storagetest.List, Times: -1})
		d, _ := campaignDuration(t, candidate(t, f, lease.Options{}))
		require.Zero(t, d)
	})
	bubble(t, "continues after the machines' marks", func(t *testing.T) {
		d, term := campaignDuration(t, candidate(t, newShardStore(t), lease.Options{Marks: func(context.Context) (uint64, error) { return 7, nil }}))
		require.Zero(t, d)
		require.EqualValues(t, 8, term.Epoch())
	})
	bubble(t, "changes nothing where there is a lease", func(t *testing.T) {
		s := newShardStore(t)
		campaign(t, candidate(t, s, lease.Options{}))
		was := content(t, s)
		made, err := lease.Prepare(t.Context(), s, "z1")
		require.NoError(t, err)
		require.False(t, made)
		require.Equal(t, was, content(t, s))
	})
	for name, key := range map[string]string{
		"a record":     "instance/z1/default/web/knd000.json",
		"a snapshot":   layout.SnapshotKey("z1"),
		"the state":    layout.StateKey("z1"),
		"changes":      layout.GroupsKey("z1"),
		"what applied": layout.AcceptedKey("z1"),
	} {
		bubble(t, "writes nothing where a leader has left "+name+", readable or not", func(t *testing.T) {
			s := storage.NewMemory()
			_, err := s.PutIfAbsent(t.Context(), key, []byte("damaged"))
			require.NoError(t, err)
			made, err := lease.Prepare(t.Context(), s, "z1")
			require.NoError(t, err)
			require.False(t, made)
			d, _ := campaignDuration(t, candidate(t, s, lease.Options{}))
			require.Equal(t, records.MaxLeaseTTL, d)
		})
	}
	bubble(t, "reports that another process was faster", func(t *testing.T) {
		mem := storage.NewMemory()
		f := storagetest.NewFaulty(mem)
		f.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Pass: true, Do: func() { putForeign(t, mem, foreign, 4, "w", 6000, false) }})
		made, err := lease.Prepare(t.Context(), f, "z1")
		require.NoError(t, err)
		require.False(t, made)
		require.Contains(t, content(t, mem), `"epoch":4`)
	})
	bubble(t, "resolves a lost answer by a read", func(t *testing.T) {
		f := storagetest.NewFaulty(storage.NewMemory())
		f.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.LoseAnswer})
		made, err := lease.Prepare(t.Context(), f, "z1")
		require.NoError(t, err)
		require.True(t, made)
		for _, op := range []storagetest.Op{storagetest.Get, storagetest.List, storagetest.PutIfAbsent} {
			f := storagetest.NewFaulty(storage.NewMemory())
			f.Inject(storagetest.Fault{Op: op})
			made, err := lease.Prepare(t.Context(), f, "z1")
			require.Error(t, err, op)
			require.False(t, made)
		}
	})
}

func TestMissingLeaseContinuesEpochs(t *testing.T) {
	lost := func(t *testing.T) *storage.Memory {
		s := storage.NewMemory()
		recs := records.New(s, "z1", &records.Options{Epoch: 41})
		id, err := nstance.NewInstanceID("knd", time.Now())
		require.NoError(t, err)
		_, err = recs.Create(t.Context(), records.Instance{ID: id, Tenant: "default", Group: "web"})
		require.NoError(t, err)
		return s
	}
	bubble(t, "after the epoch of the state", func(t *testing.T) {
		s := lost(t)
		_, err := s.PutIfAbsent(t.Context(), "state/z1.json", []byte(`{"format":"1.0","epoch":50}`))
		require.NoError(t, err)
		require.EqualValues(t, 51, campaign(t, electorWithoutWait(t, s)).Epoch())
	})
	bubble(t, "skipping objects without epoch", func(t *testing.T) {
		s := lost(t)
		_, err := s.PutIfAbsent(t.Context(), "instance/z1/default/web/notes.txt", []byte("remember the milk"))
		require.NoError(t, err)
		require.EqualValues(t, 42, campaign(t, electorWithoutWait(t, s)).Epoch())
	})
	bubble(t, "not while epochs are unreadable", func(t *testing.T) {
		for _, fault := range []storagetest.Fault{
			{Op: storagetest.Get, Prefix: "instance/"}, {Op: storagetest.Get, Prefix: "state/"}, {Op: storagetest.List},
			{Op: storagetest.List, Mode: storagetest.LoseAnswer},
		} {
			f := storagetest.NewFaulty(lost(t))
			f.Inject(fault)
			d, term := campaignDuration(t, electorWithoutWait(t, f))
			require.Positive(t, d, "it tries again")
			require.EqualValues(t, 42, term.Epoch())
		}
	})
}

func TestErrorsNameOperation(t *testing.T) {
	f := storagetest.NewFaulty(storage.NewMemory())
	f.Inject(storagetest.Fault{Err: errors.New("disk on fire")})
	_, err := candidate(t, f, lease.Options{}).Campaign(t.Context())
	require.ErrorContains(t, err, "take the lease")
	require.ErrorContains(t, err, "disk on fire")
}
