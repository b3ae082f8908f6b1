// Package storagetest checks that a storage.Store keeps its promises, one
// subtest for each, and injects faults into stores for the tests of their users.
//
// The first subtest, smoke, writes one object, reads, replaces, lists and deletes it.
// If it fails, no other one is run. A call that does not return within 10 seconds is a
// failure with its name. After 20 seconds of such waits, or of a run in which a subtest
// has failed, the rest is skipped.
//
// Subtests run one after the other; some call their store concurrently. A [Faulty] is
// safe for concurrent use.
package storagetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
	"github.com/nstance-go/nstance/storage"
)

// A Factory returns a store without objects for one subtest.
type Factory func(t *testing.T) storage.Store

const callLimit = 10 * time.Second

// Run checks every promise of storage.Store.
func Run(t *testing.T, open Factory) { runWithin(t, open, callLimit) }

func runWithin(t *testing.T, open Factory, limit time.Duration) {
	r := conformance.NewRun(limit)
	if !r.Smoke(t, func(t *testing.T, c *conformance.Calls) { smoke(t, c, recorded{open(t), c}) }) {
		return
	}
	for _, check := range checks {
		r.Test(t, check.name, func(t *testing.T, c *conformance.Calls) { check.run(t, recorded{open(t), c}) })
	}
}

var checks = []struct {
	name string
	run  func(*testing.T, storage.Store)
}{
	{"get of a missing key is NotFound", missing},
	{"put-if-absent writes once", absentOnce},
	{"put-if-absent has one winner of 16", absentRace},
	{"put-if-match replaces only what is unchanged", matchOnce},
	{"put-if-match has one winner of 16", matchRace},
	{"put-if-match loses no update", matchCounter},
	{"delete-if-match removes only what is unchanged", deleteOnce},
	{"a key can be written again after its deletion", rewrite},
	{"the version comes from the write itself", versions},
	{"different bytes never share a version", distinct},
	{"any bytes come back", contents},
	{"data is copied", copies},
	{"an object that is too large is Invalid", tooLarge},
	{"a bad key is Invalid", badKeys},
	{"a done context changes nothing", cancelled},
	{"list yields every key in order", listAll},
	{"list keeps to prefix and after", listPart},
	{"list shows sizes and the present versions", listEntries},
	{"list shows every key that is being replaced", listRewritten},
	{"folders are those right below a prefix", listFolders},
	{"list can be left and repeated", listBreak},
	{"the loop over a list may write", listWrites},
	{"list ends with its context", listCancelled},
	{"the probe accepts it", func(t *testing.T, s storage.Store) { require.NoError(t, storage.Probe(t.Context(), s)) }},
}

const key = "instance/z1/default/web/a.json"

func put(t *testing.T, s storage.Store, key, data string) storage.Version {
	t.Helper()
	v, err := s.PutIfAbsent(t.Context(), key, []byte(data))
	require.NoError(t, err)
	require.NotEmpty(t, v)
	return v
}

func holds(t *testing.T, s storage.Store, key, data string, v storage.Version) {
	t.Helper()
	obj, err := s.Get(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, storage.Object{Key: key, Data: []byte(data), Version: v}, obj)
}

func missing(t *testing.T, s storage.Store) {
	put(t, s, "a/b", "1")
	for _, k := range []string{key, "a", "a/b/c", "a/c"} {
		_, err := s.Get(t.Context(), k)
		require.ErrorIs(t, err, nstance.NotFound, k)
	}
}

func absentOnce(t *testing.T, s storage.Store) {
	v := put(t, s, key, "1")
	_, err := s.PutIfAbsent(t.Context(), key, []byte("2"))
	require.ErrorIs(t, err, nstance.Conflict)
	_, err = s.PutIfAbsent(t.Context(), key, []byte("1"))
	require.ErrorIs(t, err, nstance.Conflict, "equal bytes are no excuse")
	holds(t, s, key, "1", v)
}

// race runs 16 writers at once and returns those that succeeded.
func race(t *testing.T, write func(data []byte) (storage.Version, error)) (winner string, v storage.Version) {
	t.Helper()
	var wg sync.WaitGroup
	var winners atomic.Int32
	start := make(chan struct{})
	errs := make([]error, 16)
	for i := range errs {
		wg.Go(func() {
			<-start
			data := "writer " + strconv.Itoa(i) + " " + rand.Text() // equal bytes may have equal versions
			got, err := write([]byte(data))
			if errs[i] = err; err == nil {
				winners.Add(1)
				winner, v = data, got
			}
		})
	}
	close(start)
	wg.Wait()
	require.EqualValues(t, 1, winners.Load(), "writers that succeeded")
	for _, err := range errs {
		if err != nil {
			require.ErrorIs(t, err, nstance.Conflict)
		}
	}
	return winner, v
}

func absentRace(t *testing.T, s storage.Store) {
	for i := range 10 {
		k := "race/" + strconv.Itoa(i)
		winner, v := race(t, func(data []byte) (storage.Version, error) { return s.PutIfAbsent(t.Context(), k, data) })
		holds(t, s, k, winner, v)
	}
	absentRush(t, s)
}

func matchOnce(t *testing.T, s storage.Store) {
	_, err := s.PutIfMatch(t.Context(), key, []byte("0"), "some-version")
	require.ErrorIs(t, err, nstance.Conflict, "absent")
	_, err = s.PutIfMatch(t.Context(), key, []byte("0"), "")
	require.Error(t, err, "without a version")
	_, err = s.Get(t.Context(), key)
	require.ErrorIs(t, err, nstance.NotFound, "nothing was written without a version")
	v1 := put(t, s, key, "1")
	_, err = s.PutIfMatch(t.Context(), key, []byte("0"), "")
	require.Error(t, err, "an empty version matches nothing")
	holds(t, s, key, "1", v1)
	v2, err := s.PutIfMatch(t.Context(), key, []byte("2"), v1)
	require.NoError(t, err)
	_, err = s.PutIfMatch(t.Context(), key, []byte("3"), v1)
	require.ErrorIs(t, err, nstance.Conflict, "changed")
	holds(t, s, key, "2", v2)
	require.NoError(t, s.DeleteIfMatch(t.Context(), key, v2))
	_, err = s.PutIfMatch(t.Context(), key, []byte("4"), v2)
	require.ErrorIs(t, err, nstance.Conflict, "gone")
	_, err = s.Get(t.Context(), key)
	require.ErrorIs(t, err, nstance.NotFound)
}

func matchRace(t *testing.T, s storage.Store) {
	v := put(t, s, key, "start")
	for range 10 {
		held := v
		var winner string
		winner, v = race(t, func(data []byte) (storage.Version, error) { return s.PutIfMatch(t.Context(), key, data, held) })
		holds(t, s, key, winner, v)
	}
	matchRush(t, s)
}

// getAgain repeats a get without an answer. An emulator may read an object while it
// is replaced, which the checksum detects.
func getAgain(ctx context.Context, s storage.Store) (obj storage.Object, err error) {
	for range 10 {
		if obj, err = s.Get(ctx, key); nstance.CodeOf(err) != nstance.Unavailable {
			break
		}
	}
	return obj, err
}

func matchCounter(t *testing.T, s storage.Store) {
	const writers, each, maxAttempts = 8, 5, 10_000
	put(t, s, key, "0")
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for done, attempts := 0, 0; done < each; attempts++ {
				if attempts == maxAttempts {
					t.Errorf("PutIfMatch(%q) of one of %d writers succeeded only %d times of %d: one of them must win", key, writers, done, attempts)
					return
				}
				obj, err := getAgain(t.Context(), s)
				if err != nil {
					t.Error(err)
					return
				}
				n, _ := strconv.Atoi(string(obj.Data))
				_, err = s.PutIfMatch(t.Context(), key, []byte(strconv.Itoa(n+1)), obj.Version)
				if err == nil {
					done++
				} else if nstance.CodeOf(err) != nstance.Conflict {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	obj, err := s.Get(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(writers*each), string(obj.Data))
}

func deleteOnce(t *testing.T, s storage.Store) {
	require.ErrorIs(t, s.DeleteIfMatch(t.Context(), key, "some-version"), nstance.NotFound)
	v1 := put(t, s, key, "1")
	v2, err := s.PutIfMatch(t.Context(), key, []byte("2"), v1)
	require.NoError(t, err)
	require.ErrorIs(t, s.DeleteIfMatch(t.Context(), key, v1), nstance.Conflict)
	require.Error(t, s.DeleteIfMatch(t.Context(), key, ""), "an empty version matches nothing")
	holds(t, s, key, "2", v2)
	require.NoError(t, s.DeleteIfMatch(t.Context(), key, v2))
	_, err = s.Get(t.Context(), key)
	require.ErrorIs(t, err, nstance.NotFound)
	require.ErrorIs(t, s.DeleteIfMatch(t.Context(), key, v2), nstance.NotFound)
}

func rewrite(t *testing.T, s storage.Store) {
	v1 := put(t, s, key, "1")
	require.NoError(t, s.DeleteIfMatch(t.Context(), key, v1))
	v2 := put(t, s, key, "2")
	require.ErrorIs(t, s.DeleteIfMatch(t.Context(), key, v1), nstance.Conflict)
	holds(t, s, key, "2", v2)
}

func versions(t *testing.T, s storage.Store) {
	v := put(t, s, key, "1")
	holds(t, s, key, "1", v)
	for _, data := range []string{"2", "3"} {
		var err error
		v, err = s.PutIfMatch(t.Context(), key, []byte(data), v)
		require.NoError(t, err, "the version that a write returned is good for the next one")
		holds(t, s, key, data, v)
	}
}

func distinct(t *testing.T, s storage.Store) {
	seen := map[storage.Version]bool{}
	v := put(t, s, key, "0")
	for i := range 20 {
		require.False(t, seen[v], "version %s was used before", v)
		seen[v] = true
		var err error
		v, err = s.PutIfMatch(t.Context(), key, []byte(strconv.Itoa(i+1)), v)
		require.NoError(t, err)
	}
}

func contents(t *testing.T, s storage.Store) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for name, data := range map[string][]byte{
		"empty": {}, "bytes": all, "newline": []byte("\n"), "text": []byte("one\ntwo\r\n\n"), "large": bytes.Repeat(all, 1<<10),
	} {
		v := put(t, s, "contents/"+name, string(data))
		holds(t, s, "contents/"+name, string(data), v)
	}
}

func copies(t *testing.T, s storage.Store) {
	data := []byte("mine")
	v, err := s.PutIfAbsent(t.Context(), key, data)
	require.NoError(t, err)
	copy(data, "evil")
	obj, err := s.Get(t.Context(), key)
	require.NoError(t, err)
	copy(obj.Data, "evil")
	holds(t, s, key, "mine", v)
}

func tooLarge(t *testing.T, s storage.Store) {
	_, err := s.PutIfAbsent(t.Context(), key, make([]byte, storage.MaxObjectSize+1))
	require.ErrorIs(t, err, nstance.Invalid)
	_, err = s.Get(t.Context(), key)
	require.ErrorIs(t, err, nstance.NotFound)
}

// calls returns every call of a store for one key, by name.
func calls(ctx context.Context, s storage.Store, key string, v storage.Version) map[string]error {
	_, get := s.Get(ctx, key)
	_, absent := s.PutIfAbsent(ctx, key, []byte("x"))
	_, match := s.PutIfMatch(ctx, key, []byte("x"), v)
	return map[string]error{
		"get": get, "put-if-absent": absent, "put-if-match": match, "delete-if-match": s.DeleteIfMatch(ctx, key, v),
	}
}

func badKeys(t *testing.T, s storage.Store) {
	for _, k := range BadKeys() {
		for name, err := range calls(t.Context(), s, k, "v") {
			require.ErrorIs(t, err, nstance.Invalid, "%s of %q", name, k)
		}
	}
}

func cancelled(t *testing.T, s storage.Store) {
	v := put(t, s, key, "1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, err := range calls(ctx, s, key, v) {
		require.ErrorIs(t, err, nstance.Unavailable, name)
		require.ErrorIs(t, err, context.Canceled, name)
	}
	_, err := s.PutIfAbsent(ctx, "other", []byte("1"))
	require.ErrorIs(t, err, nstance.Unavailable)
	holds(t, s, key, "1", v)
	_, err = s.Get(t.Context(), "other")
	require.ErrorIs(t, err, nstance.NotFound)
}
