//go:build linux

package main_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

const good = `{
  "cluster": {"id": "demo"},
  "shard": {"id": "a", "provider": {"kind": "sim"},
    "bind": {"http": "127.0.0.1:0", "registration": "127.0.0.1:0", "operator": "127.0.0.1:0", "agent": "127.0.0.1:0", "peer": "127.0.0.1:0"}},
  "templates": {"web": {"kind": "web", "arch": "amd64"}},
  "groups": {"default": {"web": {"template": "web", "size": 0}}},
}
`

// written returns a file with that text.
func written(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shard.jsonc")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func validate(t *testing.T, bin string) {
	fine, bad := written(t, good), written(t, strings.Replace(strings.Replace(good, "size", "siez", 1), `"arch"`, `"acrh"`, 1))
	code, out, errs := call(t, bin, "validate", fine)
	require.Zero(t, code, errs)
	require.Equal(t, fine+": ok\n", out)
	require.Empty(t, errs)

	code, out, errs = call(t, bin, "validate", bad, fine, filepath.Join(t.TempDir(), "absent"))
	require.Equal(t, 2, code)
	require.Equal(t, fine+": ok\n", out)
	require.Contains(t, errs, bad+":5:")
	require.Contains(t, errs, bad+":6:")
	require.Contains(t, errs, `did you mean "size"?`)
	require.Contains(t, errs, "no such file")

	for _, kind := range []string{"rack", "asw"} {
		code, _, errs = call(t, bin, "validate", written(t, strings.Replace(good, `"sim"`, `"`+kind+`"`, 1)))
		require.Equal(t, 2, code)
		require.Contains(t, errs, `shard.provider.kind: this program has no provider "`+kind)
	}
	t.Run("what only a cloud understands, without its credentials", func(t *testing.T) {
		cloud := strings.NewReplacer(`{"kind": "sim"}`, `{"kind": "aws", "region": "eu-west-1"}, "subnet_pools": {"w": ["subnet-0123456789abcdef0"]}`,
			`"arch": "amd64"`, `"arch": "amd64", "instance_type": "m5.large", "subnet_pool": "w", "args": {"image_idd": "ami-0123456789abcdef0"}`,
			`"size": 0`, `"size": 1`).Replace(good)
		bad := written(t, cloud)
		code, _, errs := call(t, bin, "validate", bad)
		require.Equal(t, 2, code)
		require.Contains(t, errs, bad+":5:")
		require.Contains(t, errs, "templates.web.args.image_idd")
	})
	code, _, errs = call(t, bin, "validate", written(t, strings.Replace(good, `{"kind": "sim"`, `{"kind": "sim", "options": {"sede": 1}`, 1)))
	require.Equal(t, 2, code)
	require.Contains(t, errs, "shard.provider.options.sede")
	code, _, errs = call(t, bin, "validate", written(t, strings.Replace(good, "{", `{"$schema": "https://example.com/schema.json", `, 1)))
	require.Zero(t, code, errs)

	code, _, errs = call(t, bin, "validate")
	require.Equal(t, 2, code)
	require.Contains(t, errs, "--help")
}

// prepare writes a released lease for a shard, as nstance-admin cluster init does,
// and returns the folder.
func prepare(t *testing.T, storageDir string, shard nstance.ShardID) string {
	t.Helper()
	store, err := storage.OpenDir(storageDir, nil)
	require.NoError(t, err)
	_, err = lease.Prepare(t.Context(), store, shard)
	require.NoError(t, err)
	return storageDir
}

func runs(t *testing.T, bin string) {
	t.Run("a provider that is not there", func(t *testing.T) {
		code, _, errs := call(t, bin, "run", "--key-provider", "none", "--storage", "mem://", "--config", written(t, strings.Replace(good, "sim", "rack", 1)))
		require.Equal(t, 2, code)
		require.Contains(t, errs, `this program has no provider "rack"`)
	})
	t.Run("options that the provider does not have", func(t *testing.T) {
		code, _, errs := call(t, bin, "run", "--key-provider", "none", "--storage", "mem://",
			"--config", written(t, strings.Replace(good, `"sim"`, `"sim", "options": {"sede": 1}`, 1)))
		require.Equal(t, 2, code)
		require.Contains(t, errs, "shard.provider.options.sede")
	})
	t.Run("a cloud of another process, and one of its own", func(t *testing.T) {
		for options, says := range map[string]string{
			`{"endpoint": "/tmp/x", "dir": "/tmp"}`:             "is the cloud of another process",
			`{"endpoint": "/` + strings.Repeat("x", 200) + `"}`: "201 bytes",
		} {
			code, _, errs := call(t, bin, "run", "--key-provider", "none", "--storage", "mem://",
				"--config", written(t, strings.Replace(good, `"sim"`, `"local", "options": `+options, 1)))
			require.Equal(t, 2, code)
			require.Contains(t, errs, "shard.provider.options.endpoint: ")
			require.Contains(t, errs, says)
		}
	})
	t.Run("the wrong shard", func(t *testing.T) {
		code, _, errs := call(t, bin, "run", "--key-provider", "none", "--storage", "mem://", "--config", written(t, good), "--shard", "b")
		require.Equal(t, 2, code)
		require.Contains(t, errs, "shard.id")
	})
	t.Run("tethered, it stops when standard input ends", func(t *testing.T) {
		data := t.TempDir()
		prepare(t, filepath.Join(data, "storage"), "a")
		cmd := exec.CommandContext(t.Context(), bin, "run", "--key-provider", "none", "--data", data, "--config", written(t, good), "--tethered")
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		logs, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		defer func() { _ = cmd.Process.Kill() }()
		said := bufio.NewScanner(logs)
		for said.Scan() && !strings.Contains(said.Text(), "lease acquired") {
		}
		require.Contains(t, said.Text(), "lease acquired")
		require.NoError(t, in.Close())
		for said.Scan() {
		}
		require.NoError(t, cmd.Wait())
	})
	t.Run("with its configuration in storage", func(t *testing.T) {
		data := t.TempDir()
		code, _, errs := call(t, bin, "run", "--key-provider", "none", "--data", data, "--shard", "a")
		require.Equal(t, 2, code)
		require.Contains(t, errs, "config/a.jsonc")
		require.NoError(t, os.MkdirAll(filepath.Join(data, "storage", "config"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(data, "storage", "config", "a.jsonc"), []byte(good), 0o600))
		prepare(t, filepath.Join(data, "storage"), "a")
		cmd := exec.CommandContext(t.Context(), bin, "run", "--key-provider", "none", "--data", data, "--shard", "a")
		out, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		logs := bufio.NewScanner(out)
		for logs.Scan() && !strings.Contains(logs.Text(), "lease acquired") {
		}
		require.Contains(t, logs.Text(), "lease acquired")
	})
	t.Run("two with one configuration find each other", func(t *testing.T) {
		conf, store := written(t, `{"cluster": {"id": "demo"}, "shard": {"id": "a", "provider": {"kind": "sim"}}}`), prepare(t, t.TempDir(), "a")
		start := func() (signal func(os.Signal) error, until func(string)) {
			cmd := exec.CommandContext(t.Context(), bin, "run", "--config", conf, "--data", t.TempDir(), "--storage", "file://"+store, "--key-provider", "none",
				"--bind", "http=127.0.0.1:0,registration=127.0.0.1:0,operator=127.0.0.1:0,agent=127.0.0.1:0,peer=127.0.0.1:0")
			out, err := cmd.StderrPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			logs := bufio.NewScanner(out)
			return cmd.Process.Signal, func(text string) {
				t.Helper()
				for logs.Scan() && !strings.Contains(logs.Text(), text) {
				}
				require.Contains(t, logs.Text(), text)
			}
		}
		stop, first := start()
		first("lease acquired")
		_, second := start()
		second("peer stream to the leader opened")
		require.NoError(t, stop(syscall.SIGTERM))
		second("the leader has released the lease")
		second("lease acquired")
		first("lease released")
	})
	t.Run("it serves, reads its configuration again, and stops", func(t *testing.T) {
		path, data := written(t, good), t.TempDir()
		prepare(t, filepath.Join(data, "storage"), "a")
		cmd := exec.CommandContext(t.Context(), bin, "run", "--config", path, "--data", data)
		cmd.Env = append(os.Environ(), "NSTANCE_SECRET_KEY=MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
		out, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		defer func() { _ = cmd.Process.Kill() }()
		logs := bufio.NewScanner(out)
		until := func(text string) {
			t.Helper()
			for logs.Scan() {
				if strings.Contains(logs.Text(), text) {
					return
				}
			}
			require.Fail(t, "it ended without saying", text)
		}
		until("nstance-server starts")
		require.Eventually(t, func() bool {
			_, err := os.Stat(filepath.Join(data, "storage", "lease", "a.json"))
			return err == nil
		}, time.Minute, 20*time.Millisecond)
		require.NoError(t, os.WriteFile(path, []byte(good+"// changed\n"), 0o600))
		require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
		until("configuration in force") // at once, or as soon as the server leads
		require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
		require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
		until("configuration refused")
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		for logs.Scan() {
		}
		require.NoError(t, cmd.Wait())
		key, err := os.ReadFile(filepath.Join(data, "storage", "secret", "identity-ca.key"))
		require.NoError(t, err)
		require.NotContains(t, string(key), "PRIVATE KEY")
	})
}
