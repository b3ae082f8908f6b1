package sqlite_test

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	driversqlite "modernc.org/sqlite"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/journal"
	"github.com/nstance-go/nstance/journal/journaltest"
	"github.com/nstance-go/nstance/sqlite"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func event(reason string) nstance.Event {
	return nstance.Event{Time: noon, Type: nstance.EventReady, Tenant: "default", Group: "web", Instance: "i1", Reason: reason}
}

func reasons(events []nstance.Event) []string {
	out := []string{}
	for _, e := range events {
		out = append(out, e.Reason)
	}
	return out
}

func open(t *testing.T, path string, o *sqlite.Options) *sqlite.Journal {
	t.Helper()
	c, err := sqlite.Open(path, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// write runs the writer once for all queued events.
func write(t *testing.T, c journal.Journal) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, c.Run(ctx))
}

func events(t *testing.T, c journal.Journal, f journal.Filter) []nstance.Event {
	t.Helper()
	got, err := c.Events(t.Context(), f)
	require.NoError(t, err)
	return got
}

func newPath(t *testing.T) string { return filepath.Join(t.TempDir(), "sub", "journal #1?.db") }

func TestJournal(t *testing.T) {
	path := newPath(t)
	c := open(t, path, nil)
	full := event("full")
	full.Seq, full.Code, full.Error = 77, nstance.Capacity, "sold out"
	full.Notice = &nstance.Notice{Kind: nstance.Reclaim, EventID: "e1", DetectedAt: noon}
	full.Drain = &nstance.Drain{Instance: "i1", Deadline: noon}
	c.Append(full)
	other := event("other tenant")
	other.Tenant, other.Instance = "acme", "i2"
	c.Append(other)
	c.Append(nstance.Event{Time: noon, Type: nstance.EventAlarm, Reason: "of no tenant"})
	for i := range 5 {
		c.Append(event(strconv.Itoa(i)))
	}
	write(t, c)

	t.Run("every field comes back, with the journal's own number", func(t *testing.T) {
		got := events(t, c, journal.Filter{Limit: 1})
		want := full
		want.Seq = 1
		require.Equal(t, []nstance.Event{want}, got)
	})
	for _, f := range []struct {
		name   string
		filter journal.Filter
		want   []string
	}{
		{"all", journal.Filter{}, []string{"full", "other tenant", "of no tenant", "0", "1", "2", "3", "4"}},
		{"a tenant's", journal.Filter{Tenant: "acme"}, []string{"other tenant"}},
		{"a group's", journal.Filter{Tenant: "default", Group: "web", Limit: 2}, []string{"full", "0"}},
		{"an instance's", journal.Filter{Instance: "i2"}, []string{"other tenant"}},
		{"later ones", journal.Filter{After: 6}, []string{"3", "4"}},
		{"newest ones, oldest first", journal.Filter{Newest: true, Limit: 2}, []string{"3", "4"}},
		{"a stranger's", journal.Filter{Tenant: "x' OR 1=1 --"}, []string{}},
	} {
		t.Run("shows "+f.name, func(t *testing.T) { require.Equal(t, f.want, reasons(events(t, c, f.filter))) })
	}
	t.Run("goes on after a restart", func(t *testing.T) {
		again := open(t, path, nil)
		require.Empty(t, again.Rebuilt())
		again.Append(event("later"))
		write(t, again)
		got := events(t, again, journal.Filter{After: 8})
		require.Equal(t, []string{"later"}, reasons(got))
		require.EqualValues(t, 9, got[0].Seq)
	})
	t.Run("is for its owner only", func(t *testing.T) {
		files, err := os.ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, f := range files {
			info, err := f.Info()
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), f.Name())
		}
	})
	t.Run("one event that has no JSON form does not block the others", func(t *testing.T) {
		bad := event("bad")
		bad.Time = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
		c.Append(bad)
		c.Append(event("after bad"))
		write(t, c)
		require.Equal(t, []string{"after bad"}, reasons(events(t, c, journal.Filter{Newest: true, Limit: 1})))
	})
}

func TestRetention(t *testing.T) {
	c := open(t, newPath(t), &sqlite.Options{MaxEvents: 50})
	for i := range 170 {
		c.Append(event(strconv.Itoa(i)))
		if i%30 == 0 {
			write(t, c)
		}
	}
	write(t, c)
	t.Run("the newest events stay", func(t *testing.T) {
		got := events(t, c, journal.Filter{Limit: 1000})
		require.LessOrEqual(t, len(got), 55)
		require.GreaterOrEqual(t, len(got), 50)
		require.Equal(t, "169", got[len(got)-1].Reason)
		require.EqualValues(t, 170, got[len(got)-1].Seq, "numbers are never used again")
	})
}

func TestRun(t *testing.T) {
	t.Run("writes by itself, and the rest at the end", func(t *testing.T) {
		c := open(t, newPath(t), &sqlite.Options{Interval: 5 * time.Millisecond})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		var wg sync.WaitGroup
		for w := range 4 {
			wg.Go(func() {
				for i := range 25 {
					c.Append(event(fmt.Sprint(w, i)))
				}
			})
		}
		wg.Wait()
		require.Eventually(t, func() bool {
			got, err := c.Events(t.Context(), journal.Filter{Limit: 1000})
			return err == nil && len(got) == 100
		}, time.Minute, 5*time.Millisecond)
		c.Append(event("last"))
		cancel()
		require.NoError(t, <-done)
		require.Equal(t, []string{"last"}, reasons(events(t, c, journal.Filter{After: 100})))
		require.Zero(t, c.Dropped())
	})
	t.Run("a read returns all events queued before it", func(t *testing.T) {
		c := open(t, newPath(t), &sqlite.Options{Interval: time.Hour})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		for i := range 20 { // Run may not have started at the first
			c.Append(event(strconv.Itoa(i)))
			if got := events(t, c, journal.Filter{Newest: true, Limit: 1}); i > 0 || len(got) > 0 {
				require.Eventually(t, func() bool {
					return slices.Equal(reasons(events(t, c, journal.Filter{Newest: true, Limit: 1})), []string{strconv.Itoa(i)})
				}, time.Minute, time.Millisecond)
			}
		}
		c.Append(event("last"))
		require.Equal(t, []string{"last"}, reasons(events(t, c, journal.Filter{Newest: true, Limit: 1})))
		cancel()
		require.NoError(t, <-done)
	})
	t.Run("a full batch does not wait", func(t *testing.T) {
		c := open(t, newPath(t), &sqlite.Options{Interval: time.Hour})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		for range 600 {
			c.Append(event("x"))
		}
		require.Eventually(t, func() bool {
			got, err := c.Events(t.Context(), journal.Filter{Limit: 1})
			return err == nil && len(got) == 1
		}, time.Minute, 5*time.Millisecond)
		cancel()
		require.NoError(t, <-done)
	})
	t.Run("too much is dropped and counted", func(t *testing.T) {
		c := open(t, newPath(t), &sqlite.Options{Queue: 10})
		for i := range 13 {
			c.Append(event(strconv.Itoa(i)))
		}
		require.EqualValues(t, 3, c.Dropped())
		write(t, c)
		require.Len(t, events(t, c, journal.Filter{}), 10)
	})
	t.Run("a failed batch is repeated", func(t *testing.T) {
		var log bytes.Buffer
		c := open(t, newPath(t), &sqlite.Options{Queue: 3, Log: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, c.Exec(t.Context(), "ALTER TABLE events RENAME TO away"))
		c.Append(event("1"))
		write(t, c)
		require.Contains(t, log.String(), "events cannot be written")
		for _, s := range []string{"2", "3", "4"} {
			c.Append(event(s))
		}
		write(t, c)
		require.NoError(t, c.Exec(t.Context(), "ALTER TABLE away RENAME TO events"))
		write(t, c)
		require.Contains(t, log.String(), "events are written again")
		require.Equal(t, []string{"1", "2", "3"}, reasons(events(t, c, journal.Filter{})))
		require.EqualValues(t, 1, c.Dropped())
	})
}

func TestOpen(t *testing.T) {
	filled := func(t *testing.T) string {
		path := newPath(t)
		c, err := sqlite.Open(path, nil)
		require.NoError(t, err)
		for i := range 300 {
			c.Append(event(strconv.Itoa(i)))
		}
		write(t, c)
		require.NoError(t, c.Close())
		return path
	}
	for name, corrupt := range map[string]func(t *testing.T, path string){
		"is no database":       func(t *testing.T, path string) { overwrite(t, path, 0, []byte("hello, this is not SQLite at all")) },
		"is damaged within":    func(t *testing.T, path string) { overwrite(t, path, 4096, bytes.Repeat([]byte{0xff}, 8192)) },
		"is cut off":           func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 8192)) },
		"has another version":  func(t *testing.T, path string) { exec(t, path, "PRAGMA user_version = 9") },
		"is another's already": func(t *testing.T, path string) { exec(t, path, "PRAGMA user_version = 0") },
	} {
		t.Run("a file that "+name+" is set aside, reported and replaced", func(t *testing.T) {
			path := filled(t)
			corrupt(t, path)
			damaged, err := os.ReadFile(path)
			require.NoError(t, err)
			var log bytes.Buffer
			c := open(t, path, &sqlite.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
			require.Equal(t, path+".corrupt", c.Rebuilt())
			require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
			require.Contains(t, log.String(), "damaged journal moved aside and rebuilt")
			kept, err := os.ReadFile(c.Rebuilt())
			require.NoError(t, err)
			require.Equal(t, damaged, kept)
			require.Empty(t, events(t, c, journal.Filter{}))
			c.Append(event("new"))
			write(t, c)
			require.Len(t, events(t, c, journal.Filter{}), 1)
			require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
			again := open(t, path, nil)
			require.Empty(t, again.Rebuilt(), "the new file is sound")
		})
	}
	t.Run("a second corrupt file replaces the first", func(t *testing.T) {
		path := newPath(t)
		for range 2 {
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
			require.NoError(t, os.WriteFile(path, []byte("this is not a database, not even nearly"), 0o600))
			c, err := sqlite.Open(path, nil)
			require.NoError(t, err)
			require.NoError(t, c.Close())
		}
		files, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*.corrupt*"))
		require.NoError(t, err)
		require.Len(t, files, 1)
	})
	t.Run("a path that cannot be written is a clear error", func(t *testing.T) {
		dir := t.TempDir()
		file := filepath.Join(dir, "file")
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		for _, path := range []string{filepath.Join(file, "sqlite.db"), dir} {
			_, err := sqlite.Open(path, nil)
			require.Error(t, err)
			require.ErrorContains(t, err, path)
			require.ErrorContains(t, err, "may write")
			require.Contains(t, []nstance.Code{nstance.Denied, nstance.Unavailable}, nstance.CodeOf(err))
		}
	})
	t.Run("a closed journal answers Unavailable", func(t *testing.T) {
		c, err := sqlite.Open(newPath(t), nil)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		_, err = c.Events(t.Context(), journal.Filter{})
		require.ErrorIs(t, err, nstance.Unavailable)
	})
}

func overwrite(t *testing.T, path string, at int64, data []byte) {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(data, at)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func exec(t *testing.T, path, stmt string) {
	c, err := sqlite.Open(path, nil)
	require.NoError(t, err)
	require.NoError(t, c.Exec(t.Context(), stmt))
	require.NoError(t, c.Close())
}

func Example() {
	dir, err := os.MkdirTemp("", "cache")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	c, err := sqlite.Open(filepath.Join(dir, "sqlite.db"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { fmt.Println("run:", c.Run(ctx)) })
	c.Append(nstance.Event{Type: nstance.EventReady, Instance: "i1"})
	cancel()
	wg.Wait()

	events, err := c.Events(context.Background(), journal.Filter{Instance: "i1"})
	fmt.Println(len(events), events[0].Seq, events[0].Type, err)
	// Output:
	// run: <nil>
	// 1 1 ready <nil>
}

// during is called while a batch is written in TestBatchIsPutBackInOrder.
var during atomic.Pointer[func() error]

// TestBatchIsPutBackInOrder: events queued during a failed write come after its batch,
// and beyond the limit the newest are dropped.
func TestBatchIsPutBackInOrder(t *testing.T) {
	registerDuring()
	for queue, want := range map[int][]string{100: {"1", "2", "3", "4", "5"}, 3: {"1", "2", "3"}} {
		c := open(t, newPath(t), &sqlite.Options{Queue: queue})
		require.NoError(t, c.Exec(t.Context(), "CREATE TRIGGER hold BEFORE INSERT ON events BEGIN SELECT nstance_test_during(); END"))
		c.Append(event("1"))
		c.Append(event("2"))
		failing := func() error {
			for _, reason := range []string{"3", "4", "5"} {
				c.Append(event(reason))
			}
			return errors.New("no")
		}
		during.Store(&failing)
		write(t, c)
		require.NoError(t, c.Exec(t.Context(), "DROP TRIGGER hold"))
		write(t, c)
		require.Equal(t, want, reasons(events(t, c, journal.Filter{})), "queue of %d", queue)
		require.EqualValues(t, 5-len(want), c.Dropped())
	}
}

// registerDuring gives SQLite a function that calls during.
var registerDuring = sync.OnceFunc(func() {
	driversqlite.MustRegisterScalarFunction("nstance_test_during", 0, func(*driversqlite.FunctionContext, []driver.Value) (driver.Value, error) {
		return int64(0), (*during.Load())()
	})
})

func TestJournalKeepsItsPromises(t *testing.T) {
	journaltest.Run(t, func(t *testing.T) journal.Journal { return open(t, newPath(t), &sqlite.Options{MaxEvents: 200}) })
}
