package storage_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func openDir(t testing.TB, path string) *storage.Dir {
	t.Helper()
	d, err := storage.OpenDir(path, nil)
	require.NoError(t, err)
	return d
}

func TestDir(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Store { return openDir(t, t.TempDir()) })
}

func TestDirOfTwoServers(t *testing.T) {
	storagetest.Shared(t, func(t *testing.T) (first, second storage.Store) {
		path := t.TempDir()
		return openDir(t, path), openDir(t, path)
	})
}

func TestOpenDir(t *testing.T) {
	t.Run("makes the directory and opens it again", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "a", "b")
		v, err := openDir(t, path).PutIfAbsent(t.Context(), "k/1", []byte("x"))
		require.NoError(t, err)
		obj, err := openDir(t, path).Get(t.Context(), "k/1")
		require.NoError(t, err)
		require.Equal(t, v, obj.Version)
	})
	t.Run("makes none when told so", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "a")
		_, err := storage.OpenDir(path, &storage.DirOptions{Existing: true})
		require.ErrorIs(t, err, nstance.NotFound)
		require.NoFileExists(t, path)
		openDir(t, path)
		_, err = storage.OpenDir(path, &storage.DirOptions{Existing: true})
		require.NoError(t, err)
	})
	t.Run("refuses a file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "f")
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		_, err := storage.OpenDir(path, nil)
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, path+" is not a directory")
	})
	t.Run("refuses an empty path", func(t *testing.T) {
		_, err := storage.OpenDir("", nil)
		require.ErrorIs(t, err, nstance.Invalid)
	})
	t.Run("refuses a newer format", func(t *testing.T) {
		path := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(path, ".nstance-store"), []byte("nstance-store 2\n"), 0o600))
		_, err := storage.OpenDir(path, nil)
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, "use a newer program")
	})
	t.Run("removes temporary files of dead writers, and nothing else", func(t *testing.T) {
		path := t.TempDir()
		openDir(t, path)
		old, young := filepath.Join(path, ".tmp", "old"), filepath.Join(path, ".tmp", "young")
		for _, p := range []string{old, young} {
			require.NoError(t, os.WriteFile(p, []byte("half"), 0o600))
		}
		require.NoError(t, os.Chtimes(old, time.Time{}, time.Now().Add(-2*time.Hour)))
		d := openDir(t, path)
		require.NoFileExists(t, old)
		require.FileExists(t, young, "its writer may still live")
		for e, err := range d.List(t.Context(), "", "") {
			require.Fail(t, "temporary files are no objects", "%v %v", e, err)
		}
	})
}

func TestDirFiles(t *testing.T) {
	root := filepath.Join(t.TempDir(), "store")
	d := openDir(t, root)
	_, err := d.PutIfAbsent(t.Context(), "ca/identity.crt", []byte("-----BEGIN"))
	require.NoError(t, err)

	t.Run("are for their owner only", func(t *testing.T) {
		require.NoError(t, filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
			require.NoError(t, err)
			want := os.FileMode(0o600)
			if info.IsDir() {
				want = 0o700
			}
			require.Equal(t, want, info.Mode().Perm(), path)
			return nil
		}))
	})
	t.Run("leave no temporary file behind", func(t *testing.T) {
		left, err := os.ReadDir(filepath.Join(root, ".tmp"))
		require.NoError(t, err)
		require.Empty(t, left)
	})
	t.Run("created by hand are objects", func(t *testing.T) {
		path := filepath.Join(root, "config", "z1.jsonc")
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte("{}"), 0o600))
		first, err := d.Get(t.Context(), "config/z1.jsonc")
		require.NoError(t, err)
		require.Equal(t, "{}", string(first.Data))
		require.NoError(t, os.WriteFile(path, []byte("{ }"), 0o600))
		second, err := d.Get(t.Context(), "config/z1.jsonc")
		require.NoError(t, err)
		require.NotEqual(t, first.Version, second.Version)
		_, err = d.PutIfMatch(t.Context(), "config/z1.jsonc", []byte("{1}"), first.Version)
		require.ErrorIs(t, err, nstance.Conflict)
		_, err = d.PutIfMatch(t.Context(), "config/z1.jsonc", []byte("{2}"), second.Version)
		require.NoError(t, err)
	})
	t.Run("edited in place get another version", func(t *testing.T) {
		v, err := d.PutIfAbsent(t.Context(), "edited", []byte("before"))
		require.NoError(t, err)
		path := filepath.Join(root, "edited")
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(raw), "before", "after!", 1)), 0o600))
		obj, err := d.Get(t.Context(), "edited")
		require.NoError(t, err)
		require.Equal(t, "after!", string(obj.Data))
		require.NotEqual(t, v, obj.Version)
	})
}

func TestDirErrorsAreNotAbsence(t *testing.T) {
	t.Run("an object that cannot be read", func(t *testing.T) {
		root := t.TempDir()
		d := openDir(t, root)
		for name, target := range map[string]string{"loop": "loop", "dangling": "nowhere"} {
			require.NoError(t, os.Symlink(target, filepath.Join(root, name)))
			_, err := d.Get(t.Context(), name)
			require.ErrorIs(t, err, nstance.Unavailable)
			_, err = d.PutIfAbsent(t.Context(), name, []byte("x"))
			require.ErrorIs(t, err, nstance.Unavailable)
			require.ErrorContains(t, err, filepath.Join(root, name))
			require.ErrorIs(t, d.DeleteIfMatch(t.Context(), name, "v"), nstance.Unavailable)
		}
		var got []storage.Entry
		for e, err := range d.List(t.Context(), "", "") {
			require.NoError(t, err)
			got = append(got, e)
		}
		require.Equal(t, []storage.Entry{{Key: "dangling"}, {Key: "loop"}}, got, "listed, without a version")
	})
	t.Run("a store that is gone", func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "mount")
		d := openDir(t, root)
		v, err := d.PutIfAbsent(t.Context(), "a/b", []byte("x"))
		require.NoError(t, err)
		require.NoError(t, os.Rename(root, root+".away"))
		require.NoError(t, os.Mkdir(root, 0o700)) // as after an unmount
		_, get := d.Get(t.Context(), "a/b")
		_, put := d.PutIfAbsent(t.Context(), "a/c", []byte("x"))
		for _, err := range []error{get, put, d.DeleteIfMatch(t.Context(), "a/b", v), listError(t.Context(), d)} {
			require.ErrorIs(t, err, nstance.Unavailable)
			require.ErrorContains(t, err, root)
		}
	})
	t.Run("a key below another key", func(t *testing.T) {
		d := openDir(t, t.TempDir())
		_, err := d.PutIfAbsent(t.Context(), "a", []byte("x"))
		require.NoError(t, err)
		_, err = d.PutIfAbsent(t.Context(), "a/b", []byte("x"))
		require.ErrorIs(t, err, nstance.Invalid)
		_, err = d.PutIfAbsent(t.Context(), "c/d", []byte("x"))
		require.NoError(t, err)
		_, err = d.PutIfAbsent(t.Context(), "c", []byte("x"))
		require.ErrorIs(t, err, nstance.Invalid)
	})
}

func listError(ctx context.Context, s storage.Store) (err error) {
	for _, err = range s.List(ctx, "", "") {
	}
	return err
}

func TestDirWriteFails(t *testing.T) {
	full := errors.New("no space")
	for step, code := range map[string]nstance.Code{
		"temp": nstance.Unavailable, "rename": nstance.Unavailable, "settle": nstance.Ambiguous,
	} {
		t.Run("before "+step, func(t *testing.T) {
			root := t.TempDir()
			d := openDir(t, root)
			v, err := d.PutIfAbsent(t.Context(), "a", []byte("old"))
			require.NoError(t, err)
			d.SetStep(func(s string) error {
				if s == step {
					return full
				}
				return nil
			})
			_, err = d.PutIfMatch(t.Context(), "a", []byte("new"), v)
			require.ErrorIs(t, err, code)
			require.ErrorIs(t, err, full)

			want := "old"
			if code == nstance.Ambiguous {
				want = "new"
			}
			obj, err := d.Get(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, want, string(obj.Data))
			left, err := os.ReadDir(filepath.Join(root, ".tmp"))
			require.NoError(t, err)
			require.Empty(t, left)
			d.SetStep(nil)
			_, err = d.PutIfMatch(t.Context(), "a", []byte("next"), obj.Version)
			require.NoError(t, err, "the lock was given back")
		})
	}
}

func TestDirLockHonoursContext(t *testing.T) {
	root := t.TempDir()
	a, b := openDir(t, root), openDir(t, root)
	entered, leave := make(chan struct{}), make(chan struct{})
	a.SetStep(func(step string) error {
		if step == "rename" {
			close(entered)
			<-leave
		}
		return nil
	})
	done := make(chan error, 1)
	go func() {
		_, err := a.PutIfAbsent(t.Context(), "a", []byte("x"))
		done <- err
	}()
	<-entered
	for name, d := range map[string]*storage.Dir{"the same store": a, "another one": b} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := d.PutIfAbsent(ctx, "b", []byte("x"))
		cancel()
		require.ErrorIs(t, err, nstance.Unavailable, name)
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
		ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
		err = listError(ctx, d)
		cancel()
		require.ErrorIs(t, err, nstance.Unavailable, name)
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
	}
	_, err := b.Get(t.Context(), "a")
	require.ErrorIs(t, err, nstance.NotFound, "readers do not wait")
	close(leave)
	require.NoError(t, <-done)
	_, err = b.PutIfAbsent(t.Context(), "b", []byte("x"))
	require.NoError(t, err)
}
