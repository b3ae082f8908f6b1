package lease_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
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

const leaseKey = "lease/z1.json"

// bubble runs a subtest in virtual time.
func bubble(t *testing.T, name string, f func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// candidate returns an elector with a clock that works in bubbles.
func candidate(t *testing.T, s storage.Store, o lease.Options) *lease.Lease {
	t.Helper()
	if o.Clock == nil {
		o.Clock = lease.GoClock()
	}
	l, err := lease.New(s, "z1", &o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Resign(context.Background()) })
	return l
}

// startCampaign campaigns in the background.
func startCampaign(t *testing.T, l *lease.Lease) <-chan *lease.Term {
	granted := make(chan *lease.Term, 1)
	go func() {
		if term, err := l.Campaign(t.Context()); err == nil {
			granted <- term
		}
	}()
	return granted
}

// putForeign writes an object of another writer.
func putForeign(t *testing.T, s storage.Store, format string, args ...any) storage.Version {
	t.Helper()
	v, err := s.PutIfAbsent(t.Context(), leaseKey, fmt.Appendf(nil, format, args...))
	require.NoError(t, err)
	return v
}

// removeObject deletes the object under a key.
func removeObject(t *testing.T, s storage.Store, key string) {
	t.Helper()
	obj, err := s.Get(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, s.DeleteIfMatch(t.Context(), key, obj.Version))
}

// saveSnapshot saves a snapshot of that epoch, of a shard of three instances that are
// deleted later.
func saveSnapshot(t *testing.T, s storage.Store, epoch uint64) {
	t.Helper()
	recs := records.New(s, "z1", &records.Options{Epoch: epoch})
	for range 3 {
		id, err := nstance.NewInstanceID("web", time.Now())
		require.NoError(t, err)
		_, err = recs.Create(t.Context(), records.Instance{ID: id, Tenant: "default", Group: "web"})
		require.NoError(t, err)
	}
	saved, err := recs.SaveSnapshot(t.Context())
	require.NoError(t, err)
	require.True(t, saved)
	for _, rec := range recs.All() {
		require.NoError(t, recs.Delete(t.Context(), rec.ID))
	}
}

// newShardStore returns the storage of a new shard.
func newShardStore(t *testing.T) *storage.Memory {
	t.Helper()
	s := storage.NewMemory()
	made, err := lease.Prepare(t.Context(), s, "z1")
	require.NoError(t, err)
	require.True(t, made)
	return s
}

const foreign = `{"format":"1.0","epoch":%d,"write_id":%q,"holder":"H","address":"a:1","ttl_ms":%d,"released":%t}`

// campaignDuration returns the duration of Campaign.
func campaignDuration(t *testing.T, l *lease.Lease) (time.Duration, *lease.Term) {
	t.Helper()
	began := time.Now()
	term := campaign(t, l)
	return time.Since(began), term
}

func TestFollower(t *testing.T) {
	bubble(t, "takes a released lease at once", func(t *testing.T) {
		s := storage.NewMemory()
		putForeign(t, s, foreign, 4, "w", 6000, true)
		d, term := campaignDuration(t, candidate(t, s, lease.Options{}))
		require.Zero(t, d)
		require.EqualValues(t, 5, term.Epoch())
	})
	bubble(t, "takes an object unchanged for its ttl since it was first seen", func(t *testing.T) {
		s := storage.NewMemory()
		putForeign(t, s, foreign, 4, "w", 12000, false)
		d, term := campaignDuration(t, candidate(t, s, lease.Options{TTL: 2 * time.Second}))
		require.Equal(t, 12*time.Second, d)
		require.EqualValues(t, 5, term.Epoch())
	})
	bubble(t, "counts from the answer that showed the change", func(t *testing.T) {
		s := storage.NewMemory()
		putForeign(t, s, foreign, 4, "w", 6000, false)
		slow := &slow{Store: s, get: 300 * time.Millisecond}
		d, _ := campaignDuration(t, candidate(t, slow, lease.Options{}))
		require.Equal(t, 6300*time.Millisecond, d)
	})
	bubble(t, "restarts the wait after every change", func(t *testing.T) {
		s := storage.NewMemory()
		v := putForeign(t, s, foreign, 4, "w", 6000, false)
		granted, began := startCampaign(t, candidate(t, s, lease.Options{})), time.Now()
		for i := range 5 {
			after(t.Context(), 5*time.Second)
			v, _ = s.PutIfMatch(t.Context(), leaseKey, fmt.Appendf(nil, foreign, 4, fmt.Sprint(i), 6000, false), v)
		}
		<-granted
		require.InDelta(t, 31*time.Second, time.Since(began), float64(400*time.Millisecond))
	})
	bubble(t, "assumes the longest ttl for a lease without one", func(t *testing.T) {
		s := storage.NewMemory()
		putForeign(t, s, `{"format":"1.0","epoch":4,"write_id":"w"}`)
		d, _ := campaignDuration(t, candidate(t, s, lease.Options{}))
		require.Equal(t, records.MaxLeaseTTL, d)
	})
	bubble(t, "replaces an impossible ttl by the nearest valid one", func(t *testing.T) {
		for ttl, want := range map[string]time.Duration{
			"9223372036854775807": records.MaxLeaseTTL, "3600000": records.MaxLeaseTTL, "60001": records.MaxLeaseTTL, "60000": records.MaxLeaseTTL,
			"1": records.MinLeaseTTL, "999": records.MinLeaseTTL, "1000": records.MinLeaseTTL, "1001": 1001 * time.Millisecond, "-5": records.MaxLeaseTTL,
		} {
			s := storage.NewMemory()
			putForeign(t, s, `{"format":"1.0","epoch":4,"write_id":"w","ttl_ms":%s}`, ttl)
			look, err := records.ReadLease(t.Context(), s, "z1")
			require.NoError(t, err)
			require.Equal(t, want, look.TTL(), ttl)
			d, _ := campaignDuration(t, candidate(t, s, lease.Options{}))
			require.Equal(t, want, d, ttl)
		}
	})
	bubble(t, "reads a lease of a short ttl thrice within it, by default", func(t *testing.T) {
		f := storagetest.NewFaulty(storage.NewMemory())
		putForeign(t, f, foreign, 4, "w", 6000, false)
		startCampaign(t, candidate(t, f, lease.Options{TTL: time.Second}))
		after(t.Context(), 3*time.Second-time.Millisecond)
		require.Equal(t, 9, f.Count(storagetest.Get))
	})
	bubble(t, "reads it as often as Poll says", func(t *testing.T) {
		f := storagetest.NewFaulty(storage.NewMemory())
		putForeign(t, f, foreign, 4, "w", 6000, false)
		startCampaign(t, candidate(t, f, lease.Options{Poll: time.Second}))
		after(t.Context(), 3*time.Second-time.Millisecond)
		require.Equal(t, 3, f.Count(storagetest.Get))
	})
	bubble(t, "one of many candidates wins", func(t *testing.T) {
		s := storage.NewMemory()
		putForeign(t, s, foreign, 4, "w", 6000, false)
		var won []<-chan *lease.Term
		for range 5 {
			won = append(won, startCampaign(t, candidate(t, s, lease.Options{})))
		}
		after(t.Context(), 30*time.Second)
		sum := 0
		for _, w := range won {
			sum += len(w)
		}
		require.Equal(t, 1, sum)
		require.Contains(t, content(t, s), `"epoch":5`)
	})
	bubble(t, "keeps what newer versions added, and their format", func(t *testing.T) {
		s := storage.NewMemory()
		putForeign(t, s, `{"format":"1.7","epoch":4,"write_id":"w","released":true,"mates":["a<b"],"zone":{"x":1}}`)
		l := candidate(t, s, lease.Options{Address: "b:2"})
		campaign(t, l)
		const shape = `^\{"format":"1\.7","epoch":5,"write_id":"[A-Z2-7]{26}","holder":"[A-Z2-7]{26}","address":"b:2","ttl_ms":6000,"released":%t,"mates":\["a<b"\],"zone":\{"x":1\}\}\n$`
		require.Regexp(t, fmt.Sprintf(shape, false), content(t, s))
		require.NoError(t, l.Resign(t.Context()))
		require.Regexp(t, fmt.Sprintf(shape, true), content(t, s))
	})
	for name, data := range map[string]string{
		"of a newer major format": `{"format":"2.0","released":true}`,
		"without a format":        `{"released":true}`,
		"that is no JSON":         `released`,
		"of another shape":        `{"format":"1.0","epoch":"four","released":true}`,
	} {
		bubble(t, "does not take a lease "+name, func(t *testing.T) {
			s := storage.NewMemory()
			putForeign(t, s, "%s", data)
			_, err := candidate(t, s, lease.Options{}).Campaign(t.Context())
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, leaseKey)
		})
	}
}

func TestMissingLease(t *testing.T) {
	bubble(t, "is taken after the longest ttl", func(t *testing.T) {
		s := storage.NewMemory()
		d, term := campaignDuration(t, candidate(t, s, lease.Options{}))
		require.Equal(t, records.MaxLeaseTTL, d)
		require.EqualValues(t, 1, term.Epoch())
	})
	bubble(t, "is waited for as long by a process that has run for long", func(t *testing.T) {
		l := candidate(t, storage.NewMemory(), lease.Options{})
		after(t.Context(), time.Hour)
		d, _ := campaignDuration(t, l)
		require.Equal(t, records.MaxLeaseTTL, d)
	})
	bubble(t, "has its epochs read from 64 objects at a time", func(t *testing.T) {
		s := storage.NewMemory()
		for i := range 200 {
			_, err := s.PutIfAbsent(t.Context(), fmt.Sprintf("instance/z1/default/web/knd%03d.json", i), fmt.Appendf(nil, `{"format":"1.0","epoch":%d}`, i))
			require.NoError(t, err)
		}
		c := &crowded{Store: s}
		require.EqualValues(t, 200, campaign(t, electorWithoutWait(t, c)).Epoch())
		require.EqualValues(t, 64, c.most.Load())
	})
	bubble(t, "restarts the wait when it goes missing", func(t *testing.T) {
		s := storage.NewMemory()
		v := putForeign(t, s, foreign, 4, "w", 60000, false)
		granted := startCampaign(t, candidate(t, s, lease.Options{}))
		after(t.Context(), 30*time.Second)
		require.NoError(t, s.DeleteIfMatch(t.Context(), leaseKey, v))
		began := time.Now()
		require.EqualValues(t, 5, (<-granted).Epoch(), "what it has seen itself counts too")
		require.InDelta(t, records.MaxLeaseTTL, time.Since(began), float64(400*time.Millisecond))
	})
	bubble(t, "is never taken at once by two candidates that cannot see each other", func(t *testing.T) {
		s := newShardStore(t)
		a := campaign(t, candidate(t, s, lease.Options{}))
		obj, err := s.Get(t.Context(), leaseKey)
		require.NoError(t, err)
		require.NoError(t, s.DeleteIfMatch(t.Context(), leaseKey, obj.Version)) // by hand
		d, _ := campaignDuration(t, candidate(t, s, lease.Options{}))
		require.Equal(t, records.MaxLeaseTTL, d)
		require.Error(t, a.Err())
	})
	bubble(t, "is waited for where machines have marks", func(t *testing.T) {
		d, term := campaignDuration(t, candidate(t, storage.NewMemory(), lease.Options{Marks: func(context.Context) (uint64, error) { return 7, nil }}))
		require.Equal(t, records.MaxLeaseTTL, d)
		require.EqualValues(t, 8, term.Epoch())
	})
	bubble(t, "continues after the highest epoch in records, documents, snapshot and marks", func(t *testing.T) {
		s := storage.NewMemory()
		put := func(key, format string, epoch int) {
			_, err := s.PutIfAbsent(t.Context(), key, fmt.Appendf(nil, format, epoch))
			require.NoError(t, err)
		}
		const plain = `{"format":"1.0","epoch":%d}`
		marks := uint64(0)
		candidates := map[string]func() lease.Elector{
			"lease": func() lease.Elector {
				return candidate(t, s, lease.Options{Marks: func(context.Context) (uint64, error) { return marks, nil }})
			},
			"at once": func() lease.Elector { return electorWithoutWait(t, s) },
		}
		follows := func(epoch uint64, names ...string) {
			t.Helper()
			for _, name := range names {
				l := candidates[name]()
				require.Equal(t, epoch+1, campaign(t, l).Epoch(), name)
				require.NoError(t, l.Resign(t.Context()))
				removeObject(t, s, leaseKey)
			}
		}
		put("instance/z1/default/web/knd000.json", plain, 41)
		follows(41, "lease", "at once")
		put("state/z1.json", plain, 50)
		follows(50, "lease", "at once")
		saveSnapshot(t, s, 60)
		follows(60, "lease", "at once")
		put(layout.ResolvedKey("z1"), plain, 62)
		follows(62, "lease", "at once")
		put("accepted/z1.json", plain, 64)
		follows(64, "lease", "at once")
		put("groups/z1.jsonc", "// edited by hand\n{\"format\":\"1.0\",\"epoch\":%d,}\n", 66)
		follows(66, "lease", "at once")
		marks = 70
		follows(70, "lease")
	})
	bubble(t, "is not taken while epochs cannot be read", func(t *testing.T) {
		for _, fault := range []storagetest.Fault{
			{Op: storagetest.List, Times: 3}, {Op: storagetest.List, Mode: storagetest.LoseAnswer, Times: 3},
			{Op: storagetest.Get, Prefix: "state/", Times: 3}, {Op: storagetest.Get, Prefix: "snapshot/", Times: 3},
		} {
			f := storagetest.NewFaulty(storage.NewMemory())
			f.Inject(fault)
			d, _ := campaignDuration(t, electorWithoutWait(t, f))
			require.Equal(t, 3*400*time.Millisecond, d)
			f = storagetest.NewFaulty(storage.NewMemory())
			f.Inject(fault)
			marked := lease.Options{TakeAtOnce: true, Marks: func(context.Context) (uint64, error) { return 7, nil }}
			d, term := campaignDuration(t, candidate(t, f, marked))
			require.Equal(t, 3*400*time.Millisecond, d, "marks do not replace them")
			require.EqualValues(t, 8, term.Epoch())
		}
		blind := candidate(t, newShardStore(t), lease.Options{Marks: func(context.Context) (uint64, error) { return 0, nstance.Denied }})
		_, err := blind.Campaign(t.Context())
		require.ErrorIs(t, err, nstance.Denied)
	})
}

// crowded is a store whose reads of records take some time; it counts those at the same time.
type crowded struct {
	storage.Store
	now, most atomic.Int32
}

func (c *crowded) Get(ctx context.Context, key string) (storage.Object, error) {
	if strings.HasPrefix(key, "instance/") {
		n := c.now.Add(1)
		defer c.now.Add(-1)
		for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
		}
		after(ctx, 10*time.Millisecond)
	}
	return c.Store.Get(ctx, key)
}

func TestStandbyTakesLeaseFirst(t *testing.T) {
	again := func(standby func() bool) func(*testing.T) time.Duration {
		return func(t *testing.T) time.Duration {
			l := candidate(t, newShardStore(t), lease.Options{Standby: standby})
			campaign(t, l)
			require.NoError(t, l.Resign(t.Context()))
			d, term := campaignDuration(t, l)
			require.EqualValues(t, 2, term.Epoch())
			return d
		}
	}
	bubble(t, "a holder that released the lease waits for two ttl", func(t *testing.T) {
		require.Equal(t, 12*time.Second, again(func() bool { return true })(t))
	})
	bubble(t, "but not one that has released nothing", func(t *testing.T) {
		d, _ := campaignDuration(t, candidate(t, newShardStore(t), lease.Options{Standby: func() bool { return true }}))
		require.Zero(t, d)
	})
	bubble(t, "unless no other server is known", func(t *testing.T) {
		require.Zero(t, again(nil)(t))
		require.Zero(t, again(func() bool { return false })(t))
	})
	bubble(t, "or no other server is left", func(t *testing.T) {
		var asked atomic.Int32
		require.InDelta(t, 2*time.Second, again(func() bool { return asked.Add(1) < 10 })(t), float64(2*time.Second))
	})
}

func TestCampaign(t *testing.T) {
	bubble(t, "ends with its context", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := candidate(t, storage.NewMemory(), lease.Options{}).Campaign(ctx)
		require.ErrorIs(t, err, nstance.Unavailable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	bubble(t, "continues after transient errors, without restarting the wait", func(t *testing.T) {
		mem := storage.NewMemory()
		putForeign(t, mem, foreign, 4, "w", 6000, false)
		f := storagetest.NewFaulty(mem)
		f.Inject(storagetest.Fault{Op: storagetest.Get, Skip: 1, Times: 10, Err: nstance.Throttled})
		d, _ := campaignDuration(t, candidate(t, f, lease.Options{}))
		require.Equal(t, 6*time.Second, d)
	})
	bubble(t, "returns other errors, without restarting the wait", func(t *testing.T) {
		mem := storage.NewMemory()
		putForeign(t, mem, foreign, 4, "w", 6000, false)
		f := storagetest.NewFaulty(mem)
		f.Inject(storagetest.Fault{Op: storagetest.Get, Skip: 10, Err: nstance.Denied})
		l, began := candidate(t, f, lease.Options{}), time.Now()
		_, err := l.Campaign(t.Context())
		require.ErrorIs(t, err, nstance.Denied)
		require.ErrorContains(t, err, "take the lease")
		campaign(t, l)
		require.Equal(t, 6*time.Second, time.Since(began))
	})
	bubble(t, "returns what refuses its write", func(t *testing.T) {
		f := storagetest.NewFaulty(newShardStore(t))
		f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Err: nstance.Denied})
		l := candidate(t, f, lease.Options{})
		_, err := l.Campaign(t.Context())
		require.ErrorIs(t, err, nstance.Denied)
		require.EqualValues(t, 1, campaign(t, l).Epoch())
	})
	bubble(t, "asks for marks only where the lease has no epoch", func(t *testing.T) {
		s := storage.NewMemory()
		putForeign(t, s, foreign, 4, "w", 6000, true)
		l := candidate(t, s, lease.Options{Marks: func(context.Context) (uint64, error) { return 0, nstance.Denied }})
		require.EqualValues(t, 5, campaign(t, l).Epoch())
	})
	bubble(t, "called again, ends the term without release", func(t *testing.T) {
		l := candidate(t, newShardStore(t), lease.Options{})
		first := campaign(t, l)
		d, second := campaignDuration(t, l)
		require.Error(t, first.Err())
		require.EqualValues(t, 2, second.Epoch())
		require.Equal(t, 6*time.Second, d)
	})
	bubble(t, "takes the lease by a write with a lost answer, from its send time", func(t *testing.T) {
		for _, code := range []nstance.Code{nstance.Conflict, nstance.Ambiguous, nstance.Unavailable, nstance.Internal} {
			f := storagetest.NewFaulty(newShardStore(t))
			f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: leaseKey, Mode: storagetest.LoseAnswer, Err: code},
				storagetest.Fault{Op: storagetest.Get, Prefix: leaseKey, Skip: 1, Times: 4})
			l, began := candidate(t, f, lease.Options{}), time.Now()
			term := campaign(t, l)
			require.EqualValues(t, 1, term.Epoch(), code)
			f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Times: -1})
			<-term.Context().Done()
			require.Equal(t, 5*time.Second, time.Since(began), "%s", code)
		}
	})
	bubble(t, "called again after such a write, has another term", func(t *testing.T) {
		f := storagetest.NewFaulty(newShardStore(t))
		f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: leaseKey, Mode: storagetest.LoseAnswer},
			storagetest.Fault{Op: storagetest.Get, Prefix: leaseKey, Skip: 1})
		l := candidate(t, f, lease.Options{})
		require.EqualValues(t, 1, campaign(t, l).Epoch())
		require.EqualValues(t, 2, campaign(t, l).Epoch())
	})
	bubble(t, "creates no term from a write that landed too late", func(t *testing.T) {
		f := storagetest.NewFaulty(newShardStore(t))
		f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: leaseKey, Mode: storagetest.LoseAnswer},
			storagetest.Fault{Op: storagetest.Get, Prefix: leaseKey, Skip: 1, Times: -1})
		l, began := candidate(t, f, lease.Options{}), time.Now()
		granted := startCampaign(t, l)
		after(t.Context(), 5*time.Second)
		f.ClearFaults()
		require.EqualValues(t, 2, (<-granted).Epoch())
		require.GreaterOrEqual(t, time.Since(began), 11*time.Second)
	})
	bubble(t, "creates no term from a write that the machine slept over", func(t *testing.T) {
		clock := &suspended{Clock: lease.GoClock()}
		f := storagetest.NewFaulty(newShardStore(t))
		f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: leaseKey, Pass: true, Do: func() { clock.slept.Add(int64(5 * time.Second)) }})
		term := campaign(t, candidate(t, f, lease.Options{Clock: clock}))
		require.EqualValues(t, 2, term.Epoch())
		require.NoError(t, term.Err())
	})
	bubble(t, "repeats a write that did not land", func(t *testing.T) {
		for _, code := range []nstance.Code{nstance.Conflict, nstance.Unavailable} {
			f := storagetest.NewFaulty(newShardStore(t))
			f.Inject(storagetest.Fault{Op: storagetest.PutIfMatch, Prefix: leaseKey, Times: 2, Err: code})
			d, term := campaignDuration(t, candidate(t, f, lease.Options{}))
			require.EqualValues(t, 1, term.Epoch())
			require.Equal(t, 800*time.Millisecond, d)
		}
	})
}

// suspended is the clock of a machine that sleeps.
type suspended struct {
	lease.Clock
	slept atomic.Int64
}

func (c *suspended) Now() time.Duration { return c.Clock.Now() + time.Duration(c.slept.Load()) }

func TestNewValidates(t *testing.T) {
	for name, o := range map[string]*lease.Options{
		"election.ttl: 999ms": {TTL: 999 * time.Millisecond}, "election.ttl: 1m1s": {TTL: 61 * time.Second},
		"election.ttl: -1s": {TTL: -time.Second}, "poll: -1s": {Poll: -time.Second}, "poll: 2.001s": {Poll: 2001 * time.Millisecond},
	} {
		_, err := lease.New(newShardStore(t), "z1", o)
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, name)
	}
	_, err := lease.New(newShardStore(t), "../x", nil)
	require.ErrorIs(t, err, nstance.Invalid)
	_, err = lease.New(nil, "z1", nil)
	require.ErrorIs(t, err, nstance.Invalid)
	_, err = lease.New(newShardStore(t), "z1", nil)
	require.NoError(t, err)
}

func TestHolder(t *testing.T) {
	bubble(t, "is what Holder returns and OnChange receives", func(t *testing.T) {
		s := newShardStore(t)
		var changes []lease.Holder
		a := candidate(t, s, lease.Options{Address: "a:1", Registration: "a:2", Peer: "a:3"})
		b := candidate(t, s, lease.Options{Address: "b:1", OnChange: func(h lease.Holder) { changes = append(changes, h) }})
		require.Zero(t, a.Holder())
		campaign(t, a)
		require.True(t, a.Holder().Self)
		granted := startCampaign(t, b)
		after(t.Context(), 10*time.Second)
		have := b.Holder()
		require.Equal(t, lease.Holder{ID: a.Holder().ID, Address: "a:1", Registration: "a:2", Peer: "a:3", Epoch: 1}, have)
		require.NoError(t, a.Resign(t.Context()))
		<-granted
		released, own := have, b.Holder()
		released.Released = true
		require.Equal(t, lease.Holder{ID: own.ID, Address: "b:1", Epoch: 2, Self: true}, own)
		require.Equal(t, []lease.Holder{have, released, own}, changes)
	})
	bubble(t, "is the zero Holder when the lease is gone", func(t *testing.T) {
		s := storage.NewMemory()
		v := putForeign(t, s, foreign, 4, "w", 6000, false)
		l := candidate(t, s, lease.Options{})
		startCampaign(t, l)
		after(t.Context(), time.Second)
		require.NotZero(t, l.Holder())
		require.NoError(t, s.DeleteIfMatch(t.Context(), leaseKey, v))
		after(t.Context(), time.Second)
		require.Zero(t, l.Holder())
	})
}
