package cache

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
func (c *Cache) ensureFile(ctx context.Context) error {
	c.mu.Lock()
	f, why := c.file, c.replaceReason
	c.mu.Unlock()
	switch {
	case f == nil:
		return c.reopen()
	case why != nil:
		return c.replace(ctx, f, why)
	}
	if why = f.check(ctx, c.path); mustReplace(why) {
		return c.replace(ctx, f, why)
	}
	return why
}

// mustReplace reports whether an error means that the file must be replaced.
func mustReplace(err error) bool {
	return unusable(err) || errors.Is(err, errDeleted) || errors.Is(err, errReplaced) || errors.Is(err, errCut)
}

// replace closes the file after its last reader has finished, and opens another one
// in its place. Until then readers get Unavailable.
func (c *Cache) replace(ctx context.Context, old *file, why error) error {
	c.mu.Lock()
	c.file, c.replaceReason = nil, nil
	c.mu.Unlock()
	old.users.Wait() // a reader that closes after the next file is opened could remove its log
	lost := "its events are lost"
	if n := old.events(ctx); n >= 0 {
		lost = fmt.Sprintf("its %d events are lost", n)
	}
	if err := old.close(); err != nil {
		c.opts.Log.Warn("cache not closed", "path", c.path, "err", err)
	}
	where := ""
	if unusable(why) || errors.Is(why, errCut) {
		if err := setAside(c.path, c.path+corruptSuffix); err != nil {
			return pathError(c.path, err)
		}
		where = ", kept as " + c.path + corruptSuffix
	} else if err := removeLogs(c.path); err != nil {
		return pathError(c.path, err)
	}
	c.opts.Log.Warn("cache replaced", "path", c.path, "lost", lost, "err", why)
	c.addNote("the journal's file was replaced%s, and %s: %v", where, lost, why)
	return c.reopen()
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
func (c *Cache) reopen() error {
	f, rebuilt, err := openAny(c.path, c.opts)
	if err != nil {
		return err
	}
	if err := f.numberFrom(c.last); err != nil {
		return errors.Join(classify(err), f.close())
	}
	if rebuilt != "" {
		c.addNote("the journal's file could not be used, and was kept as %s", rebuilt)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.file, c.counts = f, nil
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
