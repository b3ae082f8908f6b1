//go:build linux

package main_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/config"
)

// documented runs the shard of docs/providers/local.md as it stands there, on ports
// of its own.
func documented(t *testing.T, bin string) {
	text, err := os.ReadFile("../../docs/providers/local.md")
	require.NoError(t, err)
	_, example, found := strings.Cut(string(text), "```jsonc\n")
	require.True(t, found)
	example, _, found = strings.Cut(example, "```")
	require.True(t, found)
	conf, err := config.Parse("local.jsonc", []byte(example))
	require.NoError(t, err)
	data := t.TempDir()
	prepare(t, filepath.Join(data, "storage"), conf.Shard.ID)
	r := start(t, bin, "run", "--config", written(t, example), "--data", data, "--key-provider", "none", "--print-events",
		"--bind", "http=127.0.0.1:0,registration=127.0.0.1:0,operator=127.0.0.1:0,agent=127.0.0.1:0,peer=127.0.0.1:0")
	r.until(t, `"group_ready"`)
	require.NoError(t, r.Process.Signal(syscall.SIGTERM))
	require.Zero(t, r.end(t))
	require.Empty(t, left(t, r.tmp), "its machines' folders go with it")
}
