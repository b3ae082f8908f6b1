package storage

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// PutIfAbsent implements Store.
func (d *Dir) PutIfAbsent(ctx context.Context, key string, data []byte) (Version, error) {
	return d.put(ctx, key, data, ifAbsent)
}

// PutIfMatch implements Store.
func (d *Dir) PutIfMatch(ctx context.Context, key string, data []byte, v Version) (Version, error) {
	return d.put(ctx, key, data, ifMatch(v))
}

func (d *Dir) put(ctx context.Context, key string, data []byte, may condition) (Version, error) {
	if err := beginPut(ctx, key, data); err != nil {
		return "", err
	}
	temp, v, err := d.writeTemp(data)
	if err != nil {
		return "", err
	}
	defer d.tree.Remove(temp) // fails after the rename, as expected
	if err := d.replace(ctx, key, temp, may); err != nil {
		return "", err
	}
	return v, d.makeDurable("put", key)
}

// replace renames temp to key's file, if may permits it.
func (d *Dir) replace(ctx context.Context, key, temp string, may condition) error {
	unlock, err := d.lock(ctx, toWrite)
	if err != nil {
		return err
	}
	defer unlock()
	if err := d.check(key, may); err != nil {
		return err
	}
	path := d.path(key)
	if err := d.makeDirs(filepath.Dir(path)); err != nil {
		return dirError("put", path, err)
	}
	if err := d.at("rename"); err != nil {
		return dirError("put", path, err)
	}
	if err := stopped(ctx, "put", key); err != nil {
		return err
	}
	return dirError("put", path, d.tree.Rename(temp, path))
}

// DeleteIfMatch implements Store.
func (d *Dir) DeleteIfMatch(ctx context.Context, key string, v Version) error {
	if err := begin(ctx, "delete", key); err != nil {
		return err
	}
	if err := d.remove(ctx, key, v); err != nil {
		return err
	}
	return d.makeDurable("delete", key)
}

func (d *Dir) remove(ctx context.Context, key string, v Version) error {
	unlock, err := d.lock(ctx, toWrite)
	if err != nil {
		return err
	}
	defer unlock()
	err = d.check(key, func(key string, have Version, exists bool) error {
		return mayDelete(key, v, have, exists)
	})
	if err != nil {
		return err
	}
	if err := d.at("remove"); err != nil {
		return dirError("delete", d.path(key), err)
	}
	if err := stopped(ctx, "delete", key); err != nil {
		return err
	}
	return dirError("delete", d.path(key), d.tree.Remove(d.path(key)))
}

// check applies a condition to the stored object. The caller holds the lock.
func (d *Dir) check(key string, may condition) error {
	_, have, err := d.read(key)
	gone := errors.Is(err, fs.ErrNotExist)
	if err != nil && !gone {
		return dirError("read", d.path(key), err)
	}
	return may(key, have, !gone)
}

// makeDurable syncs the folder of a visible change, so that it survives a power cut.
func (d *Dir) makeDurable(op, key string) error {
	err := d.at("settle")
	if err == nil {
		err = d.syncDir(filepath.Dir(d.path(key)))
	}
	if err != nil {
		return nstance.Errorf(nstance.Ambiguous, "%s %s: done, but perhaps not durably: %w", op, key, err)
	}
	return nil
}

// writeTemp writes an object to a temporary file, durably.
func (d *Dir) writeTemp(data []byte) (path string, v Version, err error) {
	token := newToken()
	path = filepath.Join(d.root, tempName, token)
	raw := append(append(append(make([]byte, 0, headerLen+len(data)), headerStart...), token...), '\n')
	err = d.writeFile(path, append(raw, data...), os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err == nil {
		err = d.at("temp")
	}
	if err != nil {
		_ = d.tree.Remove(path) // the error of the write counts
		return "", "", dirError("write", path, err)
	}
	return path, versionOf(token, data), nil
}

func (d *Dir) at(step string) error {
	if d.step == nil {
		return nil
	}
	return d.step(step)
}

// writeFile writes and syncs a file. A short write is an error.
func (d *Dir) writeFile(path string, data []byte, flag int) error {
	f, err := d.tree.OpenFile(path, flag, 0o600)
	if err != nil {
		return err
	}
	if err = d.tree.Adopt(f); err == nil {
		_, err = f.Write(data)
	}
	if err == nil {
		err = d.flush(f)
	}
	return errors.Join(err, f.Close())
}

// makeDirs makes a folder and its parents, each durably in its own parent, and of its
// owner.
func (d *Dir) makeDirs(path string) error {
	err := d.tree.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err := d.makeDirs(filepath.Dir(path)); err != nil {
			return err
		}
		err = d.tree.Mkdir(path, 0o700)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil // a file in the way makes the rename fail
	}
	if err != nil {
		return err
	}
	made, err := d.tree.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(d.tree.Adopt(made), made.Close()); err != nil {
		return err
	}
	return d.syncDir(filepath.Dir(path))
}

func (d *Dir) syncDir(path string) error {
	f, err := d.tree.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(d.flush(f), f.Close())
}

// flush has the system write a file or folder to the disk.
func (d *Dir) flush(f *os.File) error {
	if d.sync != nil {
		return d.sync(f)
	}
	return f.Sync()
}

// What the lock is needed for.
const (
	toWrite = os.O_RDWR
	toList  = os.O_RDONLY // shared with other processes that list
)

// lock waits for the lock to change the directory, or to list its names. It polls
// instead of blocking in the system, because a wait there cannot be cancelled. The
// lock is never taken once ctx has ended.
func (d *Dir) lock(ctx context.Context, purpose int) (unlock func(), err error) {
	select {
	case d.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, stopped(ctx, "lock", d.root)
	}
	f, err := d.flock(ctx, purpose)
	if err != nil {
		<-d.turn
		return nil, err
	}
	return func() { _ = f.Close(); <-d.turn }, nil // closing releases the lock
}

func (d *Dir) flock(ctx context.Context, purpose int) (*os.File, error) {
	f, err := d.tree.OpenFile(d.marker(), purpose, 0)
	if errors.Is(err, fs.ErrNotExist) {
		err = d.alive()
	}
	if err != nil {
		return nil, dirError("lock", d.root, err)
	}
	for attempt := 1; ; attempt++ {
		if err := stopped(ctx, "lock", d.root); err != nil {
			_ = f.Close()
			return nil, err
		}
		held, err := tryLock(f, purpose == toWrite)
		if err != nil {
			_ = f.Close()
			return nil, dirError("lock", d.root, err)
		}
		if held {
			return f, nil
		}
		sleep.For(ctx, sleep.Backoff(attempt, time.Millisecond, 50*time.Millisecond))
	}
}
