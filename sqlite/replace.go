package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// ensureFile makes sure that there is a usable file, and replaces one that is not:
// its events are lost then, queued ones are not.
func (j *Journal) ensureFile(ctx context.Context) error {
	j.mu.Lock()
	f, why := j.file, j.replaceReason
	j.mu.Unlock()
	switch {
	case f == nil:
		return j.reopen()
	case why != nil:
		return j.replace(ctx, f, why)
	}
	if why = f.check(ctx, j.path); mustReplace(why) {
		return j.replace(ctx, f, why)
	}
	return why
}

// mustReplace reports whether an error means that the file must be replaced.
func mustReplace(err error) bool {
	return unusable(err) || errors.Is(err, errDeleted) || errors.Is(err, errReplaced) || errors.Is(err, errCut)
}

// replace closes the file after its last reader has finished, and opens another one
// in its place. Until then readers get Unavailable.
func (j *Journal) replace(ctx context.Context, old *file, why error) error {
	j.mu.Lock()
	j.file, j.replaceReason = nil, nil
	j.mu.Unlock()
	old.users.Wait() // a reader that closes after the next file is opened could remove its log
	lost := "its events are lost"
	if n := old.events(ctx); n >= 0 {
		lost = fmt.Sprintf("its %d events are lost", n)
	}
	if err := old.close(); err != nil {
		j.opts.Log.Warn("journal not closed", "path", j.path, "err", err)
	}
	where := ""
	if unusable(why) || errors.Is(why, errCut) {
		if err := setAside(j.path, j.path+corruptSuffix); err != nil {
			return pathError(j.path, err)
		}
		where = ", kept as " + j.path + corruptSuffix
	} else if err := removeLogs(j.path); err != nil {
		return pathError(j.path, err)
	}
	j.opts.Log.Warn("journal replaced", "path", j.path, "lost", lost, "err", why)
	j.addNote("the journal's file was replaced%s, and %s: %v", where, lost, why)
	return j.reopen()
}

// removeLogs removes the logs of a database that is gone. The file in its place must
// not use them.
func removeLogs(path string) error {
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// reopen opens the file at the path, or makes it. Event numbers continue.
func (j *Journal) reopen() error {
	f, rebuilt, err := openAny(j.path, j.opts)
	if err != nil {
		return err
	}
	if err := f.numberFrom(j.last); err != nil {
		return errors.Join(classify(err), f.close())
	}
	if rebuilt != "" {
		j.addNote("the journal's file could not be used, and was kept as %s", rebuilt)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.file, j.counts = f, nil
	return nil
}

// numberFrom makes the next event's number greater than last.
func (f *file) numberFrom(last int64) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := f.write.ExecContext(ctx, `INSERT INTO sqlite_sequence (name, seq)
		SELECT 'events', ? WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'events')`, last)
	if err == nil {
		_, err = f.write.ExecContext(ctx, "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'events'", last)
	}
	return err
}
