package sqlite_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/journal"
	"github.com/nstance-go/nstance/sqlite"
)

// running runs the journal in the background until the test ends.
func running(t *testing.T, c *sqlite.Journal) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
}

func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, is, time.Minute, 5*time.Millisecond, what)
}

func shown(c *sqlite.Journal) string { return strings.Join(c.Problems(), "\n") }

// newest waits until the newest event has that reason.
func newest(t *testing.T, c *sqlite.Journal, reason string) nstance.Event {
	t.Helper()
	var got []nstance.Event
	soon(t, reason+" is in the journal", func() bool {
		var err error
		got, err = c.Events(t.Context(), journal.Filter{Newest: true, Limit: 1})
		return err == nil && len(got) == 1 && got[0].Reason == reason
	})
	return got[0]
}

// SQLite's own limit gives its own error: database or disk is full.
func TestFull(t *testing.T) {
	var log bytes.Buffer
	c := open(t, newPath(t), &sqlite.Options{Queue: 100, Log: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, c.Exec(t.Context(), "PRAGMA max_page_count = 20"))
	big := strings.Repeat("x", 4096)
	for n := range 100 {
		c.Append(event(strconv.Itoa(n) + big))
		write(t, c)
		if len(c.Problems()) > 0 {
			break
		}
	}
	require.Len(t, c.Problems(), 1)
	require.Contains(t, shown(c), "database or disk is full")
	require.Contains(t, shown(c), "1 events wait, 0 events were dropped")
	require.Contains(t, log.String(), "events cannot be written")
	before := events(t, c, journal.Filter{Limit: 1000})
	require.NotEmpty(t, before, "what is there can be read")

	for n := range 150 {
		c.Append(event("late " + strconv.Itoa(n)))
	}
	write(t, c)
	require.Contains(t, shown(c), "100 events wait, 51 events were dropped")
	require.EqualValues(t, 51, c.Dropped())

	require.NoError(t, c.Exec(t.Context(), "PRAGMA max_page_count = 100000"))
	write(t, c)
	after := events(t, c, journal.Filter{Limit: 1000})
	require.Len(t, after, len(before)+100)
	require.Equal(t, "late 98", after[len(after)-1].Reason)
	require.Len(t, c.Problems(), 1)
	require.Contains(t, shown(c), "51 events were dropped: more came than could be written")
	require.Contains(t, log.String(), "events are written again")
	c.Append(event("fine"))
	write(t, c)
	require.Len(t, c.Problems(), 1, "reported once")
}

func TestFullAndRunning(t *testing.T) {
	c := open(t, newPath(t), &sqlite.Options{Interval: 5 * time.Millisecond})
	require.NoError(t, c.Exec(t.Context(), "PRAGMA max_page_count = 20"))
	running(t, c)
	for n := range 30 {
		c.Append(event(strconv.Itoa(n) + strings.Repeat("x", 4096)))
	}
	soon(t, "it is reported", func() bool { return strings.Contains(shown(c), "30 events wait") })
	require.NoError(t, c.Exec(t.Context(), "PRAGMA max_page_count = 100000"))
	c.Append(event("room again"))
	newest(t, c, "room again")
	soon(t, "and that it is over", func() bool { return len(c.Problems()) == 0 })
	require.Len(t, events(t, c, journal.Filter{Limit: 1000}), 31, "nothing is lost")
}

func TestDamagedWhileOpen(t *testing.T) {
	for _, tt := range []struct {
		name    string
		corrupt func(t *testing.T, path string)
		says    string
		kept    bool
	}{
		{"overwritten", func(t *testing.T, path string) { overwrite(t, path, 0, bytes.Repeat([]byte("garbage "), 4096)) }, "lost", true},
		{"cut off", func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 0)) }, "cut off", true},
		{"deleted", func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) }, "its 300 events are lost: the file was deleted", false},
		{"deleted with its logs", func(t *testing.T, path string) {
			for _, suffix := range []string{"", "-wal", "-shm"} {
				require.NoError(t, os.Remove(path+suffix))
			}
		}, "its 300 events are lost: the file was deleted", false},
		{"replaced by what is no database", func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path+".x", []byte("something else altogether"), 0o600))
			require.NoError(t, os.Rename(path+".x", path))
		}, "the file was replaced by another", true},
	} {
		t.Run("a file that is "+tt.name+" is reported and replaced", func(t *testing.T) {
			path := newPath(t)
			var log bytes.Buffer
			c, err := sqlite.Open(path, &sqlite.Options{Interval: 5 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil))})
			require.NoError(t, err)
			for n := range 300 {
				c.Append(event(strconv.Itoa(n)))
			}
			write(t, c)
			require.NoError(t, c.Exec(t.Context(), "PRAGMA wal_checkpoint(TRUNCATE)"))
			require.Empty(t, c.Problems())

			tt.corrupt(t, path)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			soon(t, "it is reported", func() bool { return strings.Contains(shown(c), tt.says) })
			c.Append(event("new"))
			e := newest(t, c, "new")
			require.Greater(t, e.Seq, nstance.Seq(300), "numbers are never used again")
			require.Len(t, events(t, c, journal.Filter{}), 1)
			_, err = os.Stat(path + ".corrupt")
			require.Equal(t, tt.kept, err == nil, "%v", err)
			cancel()
			require.NoError(t, <-done)
			require.NoError(t, c.Close())
			require.Contains(t, log.String(), "journal replaced")

			again := open(t, path, nil)
			require.Empty(t, again.Rebuilt(), "the new one is sound")
			require.Equal(t, []string{"new"}, reasons(events(t, again, journal.Filter{})))
		})
	}
}

// A read of damaged content makes the file be replaced. The damage is one page with old
// events, which neither the writer nor the checks read.
func TestReadersNotice(t *testing.T) {
	path := newPath(t)
	c := open(t, path, &sqlite.Options{Interval: time.Hour}) // without checks
	for n := range 300 {
		c.Append(event(strconv.Itoa(n)))
	}
	write(t, c)
	require.NoError(t, c.Exec(t.Context(), "PRAGMA wal_checkpoint(TRUNCATE)"))
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	at := bytes.Index(content, []byte(`"reason":"150"`))
	require.Positive(t, at)
	overwrite(t, path, int64(at/4096*4096), bytes.Repeat([]byte{0xff}, 4096))
	c.Append(event("sound so far"))
	write(t, c)
	require.Empty(t, c.Problems())
	_, err = c.Events(t.Context(), journal.Filter{Limit: 1000})
	require.ErrorIs(t, err, nstance.Unavailable)
	c.Append(event("new"))
	write(t, c)
	require.Contains(t, shown(c), "kept as "+path+".corrupt")
	require.Equal(t, []string{"new"}, reasons(events(t, c, journal.Filter{})))
}

// TestDamagedEvent: a file with an event that is no JSON is replaced, whatever reads the event.
func TestDamagedEvent(t *testing.T) {
	for name, read := range map[string]func(t *testing.T, c *sqlite.Journal) error{
		"the event": func(t *testing.T, c *sqlite.Journal) error {
			_, err := c.Events(t.Context(), journal.Filter{Limit: 1000})
			return err
		},
		"a search": func(t *testing.T, c *sqlite.Journal) error {
			_, err := c.Events(t.Context(), journal.Filter{Types: []nstance.EventType{nstance.EventAlarm}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			c := open(t, path, &sqlite.Options{Interval: time.Hour})
			for n := range 300 {
				c.Append(event(strconv.Itoa(n)))
			}
			write(t, c)
			require.NoError(t, c.Exec(t.Context(), "PRAGMA wal_checkpoint(TRUNCATE)"))
			require.NoError(t, c.Close())
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			at := bytes.Index(content, []byte(`"reason":"150"`))
			require.Positive(t, at)
			overwrite(t, path, int64(at), []byte(`"reason";"150"`))
			c = open(t, path, &sqlite.Options{Interval: time.Hour})
			require.ErrorIs(t, read(t, c), nstance.Unavailable)
			c.Append(event("new"))
			write(t, c)
			c.Append(event("newer"))
			write(t, c)
			require.Contains(t, shown(c), "kept as "+path+".corrupt")
			require.Contains(t, reasons(events(t, c, journal.Filter{Limit: 1000})), "newer")
		})
	}
}

// A file that was damaged before Open is a problem too.
func TestRebuiltIsAProblem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sqlite.db")
	require.NoError(t, os.WriteFile(path, []byte("this is not a database, not even nearly"), 0o600))
	require.Contains(t, shown(open(t, path, nil)), path+".corrupt")
}

// TestOpenOnADiskThatFails: a journal that nothing can be written to at present does not keep
// its program from starting.
func TestOpenOnADiskThatFails(t *testing.T) {
	for _, passing := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO} {
		require.True(t, sqlite.StorageFull(&os.PathError{Op: "open", Path: "x", Err: passing}), passing)
	}
	for _, mistake := range []error{syscall.EACCES, syscall.ENOTDIR} {
		require.False(t, sqlite.StorageFull(&os.PathError{Op: "open", Path: "x", Err: mistake}), mistake)
	}
}
