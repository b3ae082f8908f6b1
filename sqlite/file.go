package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"sync"

	"github.com/nstance-go/nstance"
)

// A file is the journal's file while it is open.
type file struct {
	write *sql.DB // one connection: SQLite has one writer anyway
	read  *sql.DB
	was   fs.FileInfo    // at the last check
	users sync.WaitGroup // readers
}

func (f *file) close() error { return errors.Join(f.read.Close(), f.write.Close()) }

// Reasons to replace a file, beside those of Open.
var (
	errDeleted  = errors.New("the file was deleted")
	errReplaced = errors.New("the file was replaced by another")
	errCut      = errors.New("the file was cut off")
)

// check reports whether the file at path is still the one that is open, and can
// be read. Writes to a deleted file are lost, and SQLite does not report that.
func (f *file) check(ctx context.Context, path string) error {
	now, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errDeleted
	case err != nil:
		return classify(err)
	case !os.SameFile(f.was, now):
		return errReplaced
	case now.Size() < f.was.Size(): // SQLite never makes it smaller
		return errCut
	}
	f.was = now
	var body string
	err = f.read.QueryRowContext(ctx, "SELECT body FROM events ORDER BY seq DESC LIMIT 1").Scan(&body)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	return classify(err)
}

// events returns the number of events in the file, -1 if it is unknown.
func (f *file) events(ctx context.Context) (n int) {
	if err := f.write.QueryRowContext(ctx, "SELECT count(*) FROM events").Scan(&n); err != nil {
		return -1
	}
	return n
}

// reading calls do with the file's readers. After an error that the file caused,
// Run replaces the file.
func (j *Journal) reading(do func(*sql.DB) error) error {
	j.mu.Lock()
	f := j.file
	if f == nil {
		j.mu.Unlock()
		return nstance.Errorf(nstance.Unavailable, "journal: there is no file at present")
	}
	f.users.Add(1)
	j.mu.Unlock()
	defer f.users.Done()
	err := do(f.read)
	if unusable(err) {
		j.requestReplacement(f, err)
	}
	return err
}

// requestReplacement has Run replace f, unless it has done so already.
func (j *Journal) requestReplacement(f *file, why error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file == f && j.replaceReason == nil {
		j.replaceReason = why
		signal(j.wake)
	}
}
