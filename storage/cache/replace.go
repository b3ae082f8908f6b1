package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// sound makes sure that there is a file that can be used, and replaces it if
// not: what was in it is lost then, what is queued is not.
func (c *Cache) sound(ctx context.Context) error {
	c.mu.Lock()
	f, why := c.file, c.unsound
	c.mu.Unlock()
	switch {
	case f == nil:
		return c.reopen()
	case why != nil:
		return c.replace(ctx, f, why)
	}
	if why = f.look(ctx, c.path); hopeless(why) {
		return c.replace(ctx, f, why)
	}
	return why
}

// hopeless reports whether an error means that the file must be replaced.
func hopeless(err error) bool {
	return unusable(err) || errors.Is(err, errDeleted) || errors.Is(err, errReplaced) || errors.Is(err, errCut)
}

// replace lets go of the file, once nobody reads it any more, and opens another
// in its place. Readers meanwhile get Unavailable.
func (c *Cache) replace(ctx context.Context, old *file, why error) error {
	c.mu.Lock()
	c.file, c.unsound = nil, nil
	c.mu.Unlock()
	old.users.Wait() // a reader that closed after the next file was opened could remove its log
	lost := "its events are lost"
	if n := old.events(ctx); n >= 0 {
		lost = fmt.Sprintf("its %d events are lost", n)
	}
	if err := old.close(); err != nil {
		c.opts.Log.Warn("cache not closed well", "path", c.path, "err", err)
	}
	where := ""
	if unusable(why) || errors.Is(why, errCut) {
		if err := setAside(c.path, c.path+aside); err != nil {
			return pathError(c.path, err)
		}
		where = ", kept as " + c.path + aside
	} else if err := removeLogs(c.path); err != nil {
		return pathError(c.path, err)
	}
	c.opts.Log.Warn("cache replaced", "path", c.path, "lost", lost, "err", why)
	c.remark("the journal's file was replaced%s, and %s: %v", where, lost, why)
	return c.reopen()
}

// removeLogs removes what belongs to a database that is not there any more. A
// file that has come into its place keeps nothing of it.
func removeLogs(path string) error {
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// reopen opens what is at the path, or makes it. Numbers of events go on.
func (c *Cache) reopen() error {
	f, rebuilt, err := openAny(c.path, c.opts)
	if err != nil {
		return err
	}
	if err := f.numberFrom(c.last); err != nil {
		return errors.Join(classify(err), f.close())
	}
	if rebuilt != "" {
		c.remark("the journal's file could not be used, and was kept as %s", rebuilt)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.file, c.counts = f, nil
	return nil
}

// numberFrom has the next event numbered later than last.
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
