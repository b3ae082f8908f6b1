package storage

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"iter"
	"slices"
	"strings"
)

// List implements Store. It reads one folder at a time. Names that begin with
// a dot are not objects; any other file is listed, even one whose name is no
// valid key, so that nothing is skipped silently.
func (d *Dir) List(ctx context.Context, prefix, after string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		w := walk{d: d, ctx: ctx, prefix: prefix, after: after, yield: yield}
		err := d.alive()
		if err == nil {
			err = w.folder("")
		}
		if err != nil && !errors.Is(err, errStopped) {
			yield(Entry{}, dirError("list", d.root, err))
		}
	}
}

// errStopped ends the walk after the caller has stopped ranging over the list.
var errStopped = errors.New("stopped")

type walk struct {
	d             *Dir
	ctx           context.Context
	prefix, after string
	yield         func(Entry, error) bool
}

// folder lists what is below a folder, whose name is empty or ends in a slash.
func (w *walk) folder(name string) error {
	entries, err := w.d.entries(w.ctx, name)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if err := w.entry(name+e.name, e.isDir); err != nil {
			return err
		}
	}
	return w.ctx.Err()
}

func (w *walk) entry(key string, isDir bool) error {
	switch {
	case isDir && w.enters(key):
		return w.folder(key)
	case isDir, !strings.HasPrefix(key, w.prefix), key <= w.after:
		return nil
	}
	data, v, err := w.d.read(key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed in the meantime
	}
	if err := w.d.alive(); err != nil {
		return err
	}
	if !w.yield(Entry{Key: key, Version: v, Size: int64(len(data))}, nil) {
		return errStopped
	}
	return nil
}

// enters reports whether a key to be listed can be below the folder.
func (w *walk) enters(folder string) bool {
	if !strings.HasPrefix(folder, w.prefix) && !strings.HasPrefix(w.prefix, folder) {
		return false
	}
	return folder > w.after || strings.HasPrefix(w.after, folder)
}

type dirEntry struct {
	name  string // of a folder with its slash, which is how keys sort
	isDir bool
}

func (d *Dir) entries(ctx context.Context, folder string) ([]dirEntry, error) {
	unlock, err := d.lock(ctx, toList) // no rename happens during the read
	if err != nil {
		return nil, err
	}
	found, err := d.readDir(d.path(folder))
	unlock()
	if errors.Is(err, fs.ErrNotExist) && folder != "" {
		return nil, d.alive()
	}
	if err != nil {
		return nil, err
	}
	entries := make([]dirEntry, 0, len(found))
	for _, f := range found {
		switch {
		case strings.HasPrefix(f.Name(), "."):
		case f.IsDir():
			entries = append(entries, dirEntry{f.Name() + "/", true})
		default:
			entries = append(entries, dirEntry{f.Name(), false})
		}
	}
	slices.SortFunc(entries, func(a, b dirEntry) int { return cmp.Compare(a.name, b.name) })
	return entries, nil
}
