package storagetest_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/conformance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// Each of these stores breaks one promise, and the subtest of that promise must fail.
var broken = map[string]struct {
	store   func() storage.Store
	subtest string
	limit   time.Duration // of each call; 0: that of Run
}{
	"overwrites":           {store: func() storage.Store { return overwrites{storage.NewMemory()} }, subtest: "put-if-absent_writes_once"},
	"ignores_match":        {store: func() storage.Store { return ignoresMatch{storage.NewMemory()} }, subtest: "put-if-match_replaces_only_what_is_unchanged"},
	"ignores_delete":       {store: func() storage.Store { return ignoresDelete{storage.NewMemory()} }, subtest: "delete-if-match_removes_only_what_is_unchanged"},
	"empty_matches":        {store: func() storage.Store { return emptyMatches{storage.NewMemory()} }, subtest: "put-if-match_replaces_only_what_is_unchanged"},
	"empty_deletes":        {store: func() storage.Store { return emptyMatches{storage.NewMemory()} }, subtest: "delete-if-match_removes_only_what_is_unchanged"},
	"errors_are_gone":      {store: func() storage.Store { return absentError{storage.NewMemory()} }, subtest: "a_done_context_changes_nothing"},
	"later_version":        {store: func() storage.Store { return otherVersion{storage.NewMemory()} }, subtest: "the_version_comes_from_the_write_itself"},
	"one_page":             {store: func() storage.Store { return onePage{storage.NewMemory()} }, subtest: "list_yields_every_key_in_order"},
	"whole_list":           {store: func() storage.Store { return wholeList{storage.NewMemory()} }, subtest: "list_keeps_to_prefix_and_after"},
	"shared_data":          {store: func() storage.Store { return &shared{Memory: storage.NewMemory()} }, subtest: "data_is_copied"},
	"looks_and_writes":     {store: func() storage.Store { return &looksAndWrites{Memory: storage.NewMemory(), written: map[string]bool{}} }, subtest: "put-if-absent_has_one_winner_of_16"},
	"looks_and_replaces":   {store: func() storage.Store { return &looksAndWrites{Memory: storage.NewMemory(), written: map[string]bool{}} }, subtest: "put-if-match_has_one_winner_of_16"},
	"lists_under_its_lock": {store: func() storage.Store { return &lockedList{Memory: storage.NewMemory()} }, subtest: "the_loop_over_a_list_may_write", limit: time.Second},
}

// Each of these stores cannot do the least: the smoke test must fail with this message.
var smoking = map[string]struct {
	store   storage.Store
	message string
}{
	"writes nothing":           {replaced{op: "PutIfAbsent"}, `PutIfAbsent("instance/z1/default/web/a.json", 3 bytes) answered : a version was due`},
	"finds nothing":            {replaced{op: "Get"}, `answered no object: what was written, with its key and version`},
	"replaces nothing":         {replaced{op: "PutIfMatch"}, ` answered : a new version was due`},
	"lists nothing":            {replaced{op: "List"}, `List(prefix "", after "") answered 0 entries: one entry was due`},
	"deletes nothing":          {replaced{op: "DeleteIfMatch"}, `: NotFound after the deletion was due`},
	"hangs in put-if-absent":   {replaced{op: "PutIfAbsent", hang: true}, `PutIfAbsent("instance/z1/default/web/a.json", 3 bytes) hangs: it has not returned`},
	"hangs in get":             {replaced{op: "Get", hang: true}, `Get("instance/z1/default/web/a.json") hangs: it has not returned`},
	"hangs in put-if-match":    {replaced{op: "PutIfMatch", hang: true}, `) hangs: it has not returned`},
	"hangs in list":            {replaced{op: "List", hang: true}, `List(prefix "", after "") hangs: its sequence has not gone on`},
	"hangs in delete-if-match": {replaced{op: "DeleteIfMatch", hang: true}, `) hangs: it has not returned`},
}

// replaced is a store with one call that answers nothing, or hangs.
type replaced struct {
	storage.Store
	op   string
	hang bool
}

func (s replaced) broken(op string) bool {
	if s.op == op && s.hang {
		select {}
	}
	return s.op == op
}

func (s replaced) Get(ctx context.Context, key string) (storage.Object, error) {
	if s.broken("Get") {
		return storage.Object{}, nil
	}
	return s.Store.Get(ctx, key)
}

func (s replaced) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	if s.broken("PutIfAbsent") {
		return "", nil
	}
	return s.Store.PutIfAbsent(ctx, key, data)
}

func (s replaced) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	if s.broken("PutIfMatch") {
		return "", nil
	}
	return s.Store.PutIfMatch(ctx, key, data, v)
}

func (s replaced) DeleteIfMatch(ctx context.Context, key string, v storage.Version) error {
	if s.broken("DeleteIfMatch") {
		return nil
	}
	return s.Store.DeleteIfMatch(ctx, key, v)
}

func (s replaced) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		if !s.broken("List") {
			s.Store.List(ctx, prefix, after)(yield)
		}
	}
}

// hangsOnConflict hangs in many subtests, and not in the smoke test.
type hangsOnConflict struct{ *storage.Memory }

func (s hangsOnConflict) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	v, err := s.Memory.PutIfAbsent(ctx, key, data)
	if err != nil {
		select {}
	}
	return v, err
}

// Each of these stores keeps something for its own process, and the subtest of Shared must fail.
var selfish = map[string]struct {
	open    func() (first, second storage.Store)
	subtest string
}{
	"caches_reads": {func() (first, second storage.Store) {
		s := storage.NewMemory()
		return &cachesReads{Memory: s}, &cachesReads{Memory: s}
	}, "what_one_writes_the_other_reads"},
	"own_versions": {func() (first, second storage.Store) {
		s := storage.NewMemory()
		return ownVersions{s, "a"}, ownVersions{s, "b"}
	}, "a_condition_holds_for_the_writes_of_the_other"},
	"knows_keys": {func() (first, second storage.Store) {
		s := storage.NewMemory()
		return &cachesReads{Memory: s}, &cachesReads{Memory: s}
	}, "a_deletion_is_one_for_the_other"},
	"own_condition": {func() (first, second storage.Store) {
		s := storage.NewMemory()
		return &ownCondition{Memory: s, written: map[string]bool{}}, &ownCondition{Memory: s, written: map[string]bool{}}
	}, "put-if-absent_has_one_winner"},
}

// cachesReads returns what it has read before.
type cachesReads struct {
	*storage.Memory
	mu   sync.Mutex
	read map[string]storage.Object
}

func (s *cachesReads) Get(ctx context.Context, key string) (storage.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if obj, ok := s.read[key]; ok {
		return obj, nil
	}
	obj, err := s.Memory.Get(ctx, key)
	if err == nil {
		if s.read == nil {
			s.read = map[string]storage.Object{}
		}
		s.read[key] = obj
	}
	return obj, err
}

// ownVersions has versions that only it understands.
type ownVersions struct {
	*storage.Memory
	name string
}

func (s ownVersions) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	v, err := s.Memory.PutIfAbsent(ctx, key, data)
	return storage.Version(s.name) + v, err
}

func (s ownVersions) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	if len(v) == 0 || v[:1] != storage.Version(s.name) {
		return "", nstance.Conflict
	}
	return s.Memory.PutIfMatch(ctx, key, data, v[1:])
}

// ownCondition knows the keys that its own process has written, and overwrites all others.
type ownCondition struct {
	*storage.Memory
	mu      sync.Mutex
	written map[string]bool
}

func (s *ownCondition) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.written[key] {
		return "", nstance.Conflict
	}
	s.written[key] = true
	return overwrites{s.Memory}.PutIfAbsent(ctx, key, data)
}

// TestBrokenStore is run in child processes by TestSuiteCatches; alone it does nothing.
func TestBrokenStore(t *testing.T) {
	name := conformance.Defect()
	if b, ok := broken[name]; ok {
		storagetest.RunWithin(t, func(*testing.T) storage.Store { return b.store() }, cmp.Or(b.limit, 10*time.Second))
	}
	if b, ok := selfish[name]; ok {
		storagetest.Shared(t, func(*testing.T) (first, second storage.Store) { return b.open() })
	}
	const limit = time.Second
	if b, ok := smoking[name]; ok {
		s := b.store.(replaced)
		s.Store = storage.NewMemory()
		storagetest.RunWithin(t, func(*testing.T) storage.Store { return s }, limit)
	}
	if name == "hangs on conflict" {
		storagetest.RunWithin(t, func(*testing.T) storage.Store { return hangsOnConflict{storage.NewMemory()} }, limit)
	}
}

func TestSuiteCatches(t *testing.T) {
	for name, b := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.RequireFailure(t, "TestBrokenStore", "/^"+b.subtest+"$", name, "--- FAIL: TestBrokenStore/"+b.subtest)
		})
	}
	for name, b := range selfish {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.RequireFailure(t, "TestBrokenStore", "/^"+b.subtest+"$", name, "--- FAIL: TestBrokenStore/"+b.subtest)
		})
	}
	for name, b := range smoking {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.RequireSmokeFailure(t, "TestBrokenStore", name, b.message)
		})
	}
	t.Run("hangs on conflict", func(t *testing.T) {
		conformance.RequireFailure(t, "TestBrokenStore", "", "hangs on conflict", "--- PASS: TestBrokenStore/smoke ",
			"--- FAIL: TestBrokenStore/put-if-absent_writes_once ", ") hangs: it has not returned after 1s", "in vain; repair them first")
	})
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

// emptyMatches sends no condition for an empty version, as a client does that leaves out
// empty headers.
type emptyMatches struct{ *storage.Memory }

func (s emptyMatches) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	if obj, err := s.Get(ctx, key); err == nil && v == "" {
		v = obj.Version
	}
	return s.Memory.PutIfMatch(ctx, key, data, v)
}

func (s emptyMatches) DeleteIfMatch(ctx context.Context, key string, v storage.Version) error {
	if obj, err := s.Get(ctx, key); err == nil && v == "" {
		v = obj.Version
	}
	return s.Memory.DeleteIfMatch(ctx, key, v)
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

// looksAndWrites unlocks between the look at a key and the write.
type looksAndWrites struct {
	*storage.Memory
	mu      sync.Mutex
	written map[string]bool // keys, and versions that were replaced
}

// begin reports whether a write was not made before, and records it later.
func (s *looksAndWrites) begin(write string) bool {
	s.mu.Lock()
	before, count := s.written[write], len(s.written)
	s.mu.Unlock()
	if before {
		return false
	}
	if count%10 == 9 { // so that a busy machine finds it too
		runtime.Gosched()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written[write] = true
	return true
}

// overwrite writes in any case.
func (s *looksAndWrites) overwrite(ctx context.Context, key string, data []byte) (v storage.Version, err error) {
	for err = nstance.Conflict; errors.Is(err, nstance.Conflict); {
		if v, err = s.Memory.PutIfAbsent(ctx, key, data); errors.Is(err, nstance.Conflict) {
			obj, _ := s.Get(ctx, key)
			v, err = s.Memory.PutIfMatch(ctx, key, data, obj.Version)
		}
	}
	return v, err
}

func (s *looksAndWrites) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	if s.begin(key) {
		return s.overwrite(ctx, key, data)
	}
	return s.Memory.PutIfAbsent(ctx, key, data)
}

func (s *looksAndWrites) PutIfMatch(ctx context.Context, key string, data []byte, v storage.Version) (storage.Version, error) {
	if obj, err := s.Get(ctx, key); err == nil && obj.Version == v && s.begin(key+" "+string(v)) {
		return s.overwrite(ctx, key, data)
	}
	return s.Memory.PutIfMatch(ctx, key, data, v)
}

// lockedList holds its lock while it yields.
type lockedList struct {
	*storage.Memory
	mu sync.RWMutex
}

func (s *lockedList) PutIfAbsent(ctx context.Context, key string, data []byte) (storage.Version, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Memory.PutIfAbsent(ctx, key, data)
}

func (s *lockedList) List(ctx context.Context, prefix, after string) iter.Seq2[storage.Entry, error] {
	return func(yield func(storage.Entry, error) bool) {
		s.mu.RLock()
		defer s.mu.RUnlock()
		s.Memory.List(ctx, prefix, after)(yield)
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
