package storagetest_test

import (
	"context"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// Each of these stores breaks one promise, and the subtest of that promise must fail.
var broken = map[string]struct {
	store   func() storage.Store
	subtest string
}{
	"overwrites":      {func() storage.Store { return overwrites{storage.NewMemory()} }, "put-if-absent_writes_once"},
	"ignores_match":   {func() storage.Store { return ignoresMatch{storage.NewMemory()} }, "put-if-match_replaces_only_what_is_unchanged"},
	"ignores_delete":  {func() storage.Store { return ignoresDelete{storage.NewMemory()} }, "delete-if-match_removes_only_what_is_unchanged"},
	"errors_are_gone": {func() storage.Store { return absentError{storage.NewMemory()} }, "a_done_context_changes_nothing"},
	"later_version":   {func() storage.Store { return otherVersion{storage.NewMemory()} }, "the_version_comes_from_the_write_itself"},
	"one_page":        {func() storage.Store { return onePage{storage.NewMemory()} }, "list_yields_every_key_in_order"},
	"whole_list":      {func() storage.Store { return wholeList{storage.NewMemory()} }, "list_keeps_to_prefix_and_after"},
	"shared_data":     {func() storage.Store { return &shared{Memory: storage.NewMemory()} }, "data_is_copied"},
}

const brokenEnv = "STORAGETEST_BROKEN"

// TestBrokenStore is run in child processes by TestSuiteCatches; alone it does nothing.
func TestBrokenStore(t *testing.T) {
	if b, ok := broken[os.Getenv(brokenEnv)]; ok {
		storagetest.Run(t, func(*testing.T) storage.Store { return b.store() })
	}
}

func TestSuiteCatches(t *testing.T) {
	for name, b := range broken {
		t.Run(name, func(t *testing.T) {
			child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBrokenStore$/^"+b.subtest+"$")
			child.Env = append(os.Environ(), brokenEnv+"="+name, "GORACE=atexit_sleep_ms=0")
			out, err := child.CombinedOutput()
			require.Error(t, err, "the suite accepts a store that %s", name)
			require.Contains(t, string(out), "--- FAIL: TestBrokenStore/"+b.subtest)
		})
	}
}

type overwrites struct{ *storage.Memory }

func (s overwrites) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	if obj, err := s.Get(ctx, key); err == nil {
		return s.PutIfMatch(ctx, key, data, obj.Version)
	}
	return s.Memory.PutIfAbsent(ctx, key, data)
}

type ignoresMatch struct{ *storage.Memory }

func (s ignoresMatch) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	if obj, err := s.Get(ctx, key); err == nil {
		v = obj.Version
	}
	return s.Memory.PutIfMatch(ctx, key, data, v)
}

type ignoresDelete struct{ *storage.Memory }

func (s ignoresDelete) DeleteIfMatch(ctx context.Context, key string, v storage.Version) error {
	if obj, err := s.Get(ctx, key); err == nil {
		v = obj.Version
	}
	return s.Memory.DeleteIfMatch(ctx, key, v)
}

type absentError struct{ *storage.Memory }

func (s absentError) Get(ctx context.Context, key string) (storage.Object, error) {
	obj, err := s.Memory.Get(ctx, key)
	if err != nil {
		return obj, nstance.NotFound
	}
	return obj, nil
}

type otherVersion struct{ *storage.Memory }

func (s otherVersion) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	v, err := s.Memory.PutIfMatch(ctx, key, data, v)
	return v + "?", err
}

type onePage struct{ *storage.Memory }

func (s onePage) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		n := 0
		for e, err := range s.Memory.List(ctx, prefix, after) {
			if n++; n > 1000 || !yield(e, err) {
				return
			}
		}
	}
}

type wholeList struct{ *storage.Memory }

func (s wholeList) List(ctx context.Context, prefix, _ string) iter.Seq2[storage.Entry, error] {
	return s.Memory.List(ctx, prefix, "")
}

type shared struct {
	*storage.Memory
	last []byte
}

func (s *shared) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	s.last = data
	return s.Memory.PutIfAbsent(ctx, key, data)
}

func (s *shared) Get(ctx context.Context, key string) (storage.Object, error) {
	obj, err := s.Memory.Get(ctx, key)
	obj.Data = s.last
	return obj, err
}

// The test of a store calls Run; the tests of its users inject faults.
func ExampleNewFaulty() {
	ctx := context.Background()
	store := storagetest.NewFaulty(storage.NewMemory())
	store.Inject(storagetest.Fault{Op: storagetest.PutIfAbsent, Mode: storagetest.LoseAnswer})

	_, err := store.PutIfAbsent(ctx, "a", []byte("1"))
	fmt.Println(err)
	obj, _ := store.Get(ctx, "a")
	fmt.Printf("%s, %d call\n", obj.Data, store.Count(storagetest.PutIfAbsent))
	// Output:
	// injected fault
	// 1, 1 call
}
