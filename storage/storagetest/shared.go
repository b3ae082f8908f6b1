package storagetest

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
	"github.com/nstance-go/nstance/storage"
)

// Shared checks what the servers of a shard rely on: two stores that open returns, over the
// same empty place, are one. It finds conditions, versions and caches that one process keeps
// for itself. Open them as two processes would.
func Shared(t *testing.T, open func(t *testing.T) (first, second storage.Store)) {
	r := conformance.NewRun(callLimit)
	for _, check := range sharedChecks {
		r.Test(t, check.name, func(t *testing.T, c *conformance.Calls) {
			first, second := open(t)
			check.run(t, recorded{first, c}, recorded{second, c})
		})
	}
}

var sharedChecks = []struct {
	name string
	run  func(t *testing.T, a, b storage.Store)
}{
	{"what one writes the other reads", sharedReads},
	{"a condition holds for the writes of the other", sharedConditions},
	{"a deletion is one for the other", sharedDeletions},
	{"put-if-absent has one winner", sharedRace},
	{"put-if-match loses no update", sharedCounter},
}

func sharedReads(t *testing.T, a, b storage.Store) {
	v := put(t, a, key, "1")
	for _, data := range []string{"2", "3"} {
		holds(t, b, key, string(data[0]-1), v)
		var err error
		v, err = a.PutIfMatch(t.Context(), key, []byte(data), v)
		require.NoError(t, err)
		holds(t, b, key, data, v)
		for e, err := range b.List(t.Context(), "", "") {
			require.NoError(t, err)
			require.Equal(t, storage.Entry{Key: key, Version: v, Size: 1}, e)
		}
	}
}

func sharedConditions(t *testing.T, a, b storage.Store) {
	v := put(t, a, key, "1")
	_, err := b.PutIfAbsent(t.Context(), key, []byte("2"))
	require.ErrorIs(t, err, nstance.Conflict)
	next, err := b.PutIfMatch(t.Context(), key, []byte("2"), v)
	require.NoError(t, err, "a version is good for both")
	_, err = a.PutIfMatch(t.Context(), key, []byte("3"), v)
	require.ErrorIs(t, err, nstance.Conflict)
	require.ErrorIs(t, a.DeleteIfMatch(t.Context(), key, v), nstance.Conflict)
	holds(t, a, key, "2", next)
}

func sharedDeletions(t *testing.T, a, b storage.Store) {
	v := put(t, a, key, "1")
	holds(t, b, key, "1", v)
	require.NoError(t, a.DeleteIfMatch(t.Context(), key, v))
	_, err := b.Get(t.Context(), key)
	require.ErrorIs(t, err, nstance.NotFound)
	require.ErrorIs(t, b.DeleteIfMatch(t.Context(), key, v), nstance.NotFound)
	_, err = b.PutIfMatch(t.Context(), key, []byte("2"), v)
	require.ErrorIs(t, err, nstance.Conflict)
	for e, err := range b.List(t.Context(), "", "") {
		require.Fail(t, "listed", "%v %v", e, err)
	}
	holds(t, a, key, "3", put(t, b, key, "3"))
}

// both runs write several times at once for each store, and returns what it returned.
func both(a, b storage.Store, write func(s storage.Store, n int) error) error {
	const each = 4
	var wg sync.WaitGroup
	start, errs := make(chan struct{}), make([]error, 2*each)
	for n := range errs {
		wg.Go(func() {
			<-start
			errs[n] = write([]storage.Store{a, b}[n%2], n)
		})
	}
	close(start)
	wg.Wait()
	return errors.Join(errs...)
}

func sharedRace(t *testing.T, a, b storage.Store) {
	for i := range 20 {
		k := "race/" + strconv.Itoa(i)
		var winners atomic.Int32
		require.NoError(t, both(a, b, func(s storage.Store, n int) error {
			_, err := s.PutIfAbsent(t.Context(), k, []byte("writer "+strconv.Itoa(n)))
			if err == nil {
				winners.Add(1)
			}
			if errors.Is(err, nstance.Conflict) {
				return nil
			}
			return err
		}))
		require.EqualValues(t, 1, winners.Load(), "writers that succeeded")
	}
}

func sharedCounter(t *testing.T, a, b storage.Store) {
	const each, maxAttempts = 5, 10_000
	put(t, a, key, "0")
	require.NoError(t, both(a, b, func(s storage.Store, _ int) error {
		for done, attempts := 0, 0; done < each; attempts++ {
			obj, err := getAgain(t.Context(), s)
			if err != nil {
				return err
			}
			n, _ := strconv.Atoi(string(obj.Data))
			switch _, err = s.PutIfMatch(t.Context(), key, []byte(strconv.Itoa(n+1)), obj.Version); {
			case err == nil:
				done++
			case !errors.Is(err, nstance.Conflict):
				return err
			case attempts == maxAttempts:
				return errors.New("one of the writers must win")
			}
		}
		return nil
	}))
	obj, err := b.Get(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(8*each), string(obj.Data))
}
