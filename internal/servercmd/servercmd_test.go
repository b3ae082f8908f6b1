package servercmd_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/servercmd"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/local"
	"github.com/nstance-go/nstance/provider/simcloud"
)

func parts() servercmd.Parts {
	return servercmd.Parts{Kinds: provider.Kinds{local.Kind(servercmd.Machine()...), simcloud.Kind()}}
}

func call(t *testing.T, env map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = servercmd.Main(t.Context(), parts(), args, &out, &errs, func(name string) string { return env[name] })
	return code, out.String(), errs.String()
}

func TestMain_help(t *testing.T) {
	code, out, errs := call(t, nil, "--help")
	require.Zero(t, code)
	require.Empty(t, errs)
	for _, shown := range []string{"run", "dev", "validate", "version", "Exit codes"} {
		require.Contains(t, out, shown)
	}
	for _, hidden := range []string{"\n  machine", "\n  drain-demo"} {
		require.NotContains(t, out, hidden)
	}
}

func TestPaths(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("too short"), 0o600))
	for _, tt := range []struct {
		name, says string
		env        map[string]string
		args       []string
	}{
		{"no state directory", "--data: ", nil, nil},
		{"a key that is none", "OTHER: ", map[string]string{"HOME": "/", "OTHER": "x"}, []string{"--key-source", "OTHER"}},
		{"a key file without a name", "--key-source: ", map[string]string{"HOME": "/"}, []string{"--key-provider", "file"}},
		{"a key file that holds none", file, map[string]string{"HOME": "/"}, []string{"--key-provider", "file", "--key-source", file}},
		{"storage of an unknown kind", "storage.url: ", map[string]string{"HOME": "/"}, []string{"--key-provider", "none", "--storage", "ftp://x"}},
		{"a shard that is no name", "--shard: ", map[string]string{"HOME": "/"}, []string{"--key-provider", "none", "--storage", "mem://", "--shard", "A B"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, out, errs := call(t, tt.env, append([]string{"run"}, tt.args...)...)
			require.Equal(t, 2, code, errs)
			require.Empty(t, out)
			require.Contains(t, errs, tt.says)
		})
	}
}

func TestDevRefuses(t *testing.T) {
	for says, args := range map[string][]string{
		"--count: 0 is too few":                              {"--scenario", "kill", "--count", "0"},
		"--count: belongs to scenario mass or kill or bridg": {"--count", "3"},
		"--park: belongs to scenario bridge":                 {"--scenario", "mass", "--park", "stopped"},
		"park: \"running\" is no mode":                       {"--scenario", "bridge", "--park", "running"},
		"count: 4 members of 3 cannot be lost":               {"--scenario", "bridge", "--count", "4"},
		"scenario: bridge needs provider local":              {"--provider", "qemu", "--scenario", "bridge"},
		"scenario: demo needs provider local":                {"--provider", "qemu", "--scenario", "demo"},
		"--seed: belongs to scenario kill":                   {"--scenario", "failover", "--seed", "3"},
		"--election-ttl: belongs to scenario failover or ki": {"--scenario", "mass", "--election-ttl", "3s"},
		"--instances: does not belong to scenario mass":      {"--scenario", "mass", "--instances", "3"},
		"--kernel: belongs to virtual machines":              {"--kernel", "vmlinuz"},
		"kernel: virtual machines need a kernel":             {"--provider", "qemu", "--kernel", ""},
		"scenario: virtual machines take seconds to boot":    {"--provider", "qemu", "--scenario", "kill"},
		"storage: mem:// is in one process only":             {"--storage", "mem://"},
	} {
		code, out, errs := call(t, nil, append([]string{"dev"}, args...)...)
		require.Equal(t, 2, code, errs)
		require.Empty(t, out)
		require.Contains(t, errs, says)
	}
}

func TestAddresses(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "shard.jsonc")
	require.NoError(t, os.WriteFile(conf, []byte(`{"cluster": {"id": "c"}, "shard": {"id": "a", "provider": {"kind": "sim"}}}`), 0o600))
	for _, tt := range []struct {
		flags []string
		says  string
	}{
		{[]string{"--bind", "peers=:1"}, `--bind: there is no port "peers" (use agent, http, operator, peer, registration)`},
		{[]string{"--advertise", "http=a:1"}, `--advertise: there is no port "http" (use agent, operator, peer, registration)`},
		{[]string{"--bind", "http=127.0.0.1:0,peer=8991"}, `--bind peer: "8991" is not an address`},
		{[]string{"--advertise", "peer=:8991"}, `--advertise peer: no peer can connect to ":8991"`},
		{[]string{"--host", "a b"}, `--host: "a b" is neither`},
	} {
		args := append([]string{"run", "--config", conf, "--data", t.TempDir(), "--key-provider", "none"}, tt.flags...)
		code, out, errs := call(t, nil, args...)
		require.Equal(t, 2, code, errs)
		require.Empty(t, out)
		require.Contains(t, errs, tt.says)
	}
}

func TestStateDirectory(t *testing.T) {
	base := t.TempDir()
	for _, env := range []map[string]string{
		{"STATE_DIRECTORY": base + "/a", "HOME": base},
		{"XDG_STATE_HOME": base + "/b", "HOME": base},
		{"HOME": base + "/c"},
	} {
		code, _, errs := call(t, env, "run", "--key-provider", "none", "--shard", "absent")
		require.Equal(t, 2, code, errs)
		require.Contains(t, errs, "config/absent.jsonc")
	}
	for _, dir := range []string{"a/storage", "b/nstance-server/storage", "c/.local/state/nstance-server/storage"} {
		require.DirExists(t, filepath.Join(base, dir))
	}
}

func Example() {
	code := servercmd.Main(context.Background(), parts(), []string{"validate", "testdata/misspelt.jsonc"}, os.Stdout, os.Stdout, os.Getenv)
	fmt.Println("exit code", code)
	// Output:
	// testdata/misspelt.jsonc:3:45: shard.provider.kind: this program has no provider "locla" (did you mean "local"?)
	// exit code 2
}
