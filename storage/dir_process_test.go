//go:build unix

package storage_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/program"
	"github.com/nstance-go/nstance/storage"
)

// TestMain is the second process when a test started it as one.
func TestMain(m *testing.M) {
	switch args := strings.Split(os.Getenv("STORAGE_CHILD"), ","); args[0] {
	case "":
		os.Exit(m.Run())
	case "count":
		os.Exit(childCounts(args[1]))
	case "die":
		childKillsItself(args[1], args[2], args[3])
	case "open":
		_, err := storage.OpenDir(args[1], nil)
		os.Stdout.WriteString(string(nstance.CodeOf(err)) + "\n" + errText(err))
	}
	os.Exit(0)
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func child(t *testing.T, bin string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), bin)
	cmd.Env = append(os.Environ(), "STORAGE_CHILD="+strings.Join(args, ","), "GORACE=halt_on_error=1 atexit_sleep_ms=0")
	return cmd
}

const childIncrements = 25

// childCounts increments a number repeatedly, in parallel with other processes.
func childCounts(root string) int {
	d, err := storage.OpenDir(root, nil)
	if err != nil {
		return 2
	}
	ctx := context.Background()
	for done := 0; done < childIncrements; {
		obj, err := d.Get(ctx, "n")
		if err != nil {
			return 3
		}
		n, _ := strconv.Atoi(string(obj.Data))
		_, err = d.PutIfMatch(ctx, "n", []byte(strconv.Itoa(n+1)), obj.Version)
		if err == nil {
			done++
		} else if nstance.CodeOf(err) != nstance.Conflict {
			return 4
		}
	}
	return 0
}

func TestDirProcessesLoseNoUpdates(t *testing.T) {
	root := t.TempDir()
	d := openDir(t, root)
	_, err := d.PutIfAbsent(t.Context(), "n", []byte("0"))
	require.NoError(t, err)
	cmds := []*exec.Cmd{child(t, os.Args[0], "count", root), child(t, os.Args[0], "count", root), child(t, os.Args[0], "count", root)}
	for _, c := range cmds {
		require.NoError(t, c.Start())
	}
	for _, c := range cmds {
		require.NoError(t, c.Wait())
	}
	obj, err := d.Get(t.Context(), "n")
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(len(cmds)*childIncrements), string(obj.Data))
}

// childKillsItself kills itself with SIGKILL at a step of a write.
func childKillsItself(root, step, op string) {
	d, err := storage.OpenDir(root, nil)
	if err != nil {
		return
	}
	ctx := context.Background()
	obj, _ := d.Get(ctx, "a/b")
	d.SetStep(func(s string) error {
		if s == step {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	})
	switch op {
	case "replace":
		_, _ = d.PutIfMatch(ctx, "a/b", []byte("new"), obj.Version)
	case "create":
		_, _ = d.PutIfAbsent(ctx, "c/d", []byte("new"))
	case "delete":
		_ = d.DeleteIfMatch(ctx, "a/b", obj.Version)
	}
}

func TestDirCrash(t *testing.T) {
	for _, c := range []struct{ op, step, key, want string }{
		{"replace", "temp", "a/b", "old"},
		{"replace", "rename", "a/b", "old"},
		{"replace", "settle", "a/b", "new"},
		{"create", "temp", "c/d", ""},
		{"create", "rename", "c/d", ""},
		{"create", "settle", "c/d", "new"},
		{"delete", "settle", "a/b", ""},
	} {
		t.Run(c.op+" killed before "+c.step, func(t *testing.T) {
			root := t.TempDir()
			d := openDir(t, root)
			_, err := d.PutIfAbsent(t.Context(), "a/b", []byte("old"))
			require.NoError(t, err)
			err = child(t, os.Args[0], "die", root, c.step, c.op).Run()
			require.ErrorContains(t, err, "killed")

			d = openDir(t, root)
			obj, err := d.Get(t.Context(), c.key)
			if c.want == "" {
				require.ErrorIs(t, err, nstance.NotFound)
				_, err = d.PutIfAbsent(t.Context(), c.key, []byte("next"))
				require.NoError(t, err, "the dead process left no lock")
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, string(obj.Data))
			_, err = d.PutIfMatch(t.Context(), c.key, []byte("next"), obj.Version)
			require.NoError(t, err, "the dead process left no lock")
		})
	}
}

// root may read everything, so the child runs as an unprivileged user.
func TestReadOnlyDir(t *testing.T) {
	base := openToAll(t)
	bin := filepath.Join(base, "child")
	raw, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	require.NoError(t, program.Write(bin, raw))
	require.NoError(t, os.Chmod(bin, 0o755)) //nolint:gosec // for another user

	open := func(t *testing.T, root string) string {
		cmd := child(t, bin, "open", root)
		if os.Getuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		out, err := cmd.Output()
		require.NoError(t, err)
		return string(out)
	}
	t.Run("where it would have to be made", func(t *testing.T) {
		locked := filepath.Join(base, "locked")
		require.NoError(t, os.Mkdir(locked, 0o555))
		out := open(t, filepath.Join(locked, "store"))
		require.Contains(t, out, "denied\n")
		require.Contains(t, out, filepath.Join(locked, "store"))
		require.Contains(t, out, "own and write the storage directory")
	})
	t.Run("where another user made it", func(t *testing.T) {
		root := filepath.Join(base, "foreign")
		openDir(t, root)
		require.NoError(t, os.Chmod(root, 0o555))
		require.NoError(t, os.Chmod(filepath.Join(root, ".tmp"), 0o555))
		require.NoError(t, os.Chmod(filepath.Join(root, ".nstance-store"), 0o444))
		out := open(t, root)
		require.Contains(t, out, "denied\n")
		require.Contains(t, out, root)
	})
}

// openToAll returns a directory that every user may enter.
func openToAll(t *testing.T) string {
	dir := t.TempDir()
	for p := dir; p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
		require.NoError(t, os.Chmod(p, 0o755))
	}
	return dir
}
