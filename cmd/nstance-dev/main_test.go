//go:build linux

package main_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	_ "github.com/nstance-go/nstance/internal/servercmd" // so that go test knows what the program is made of, and does not repeat an old result
)

// TestDev plays a scenario whose servers, machines and drain hook are all this
// program.
func TestDev(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "nstance-dev")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)

	out, err = exec.CommandContext(t.Context(), bin, "--scenario", "failover", "--election-ttl", "3s", "--json", "--http", "127.0.0.1:0").Output()
	require.NoError(t, err, "%s", out)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var summary struct {
		OK       bool   `json:"ok"`
		Scenario string `json:"scenario"`
	}
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &summary))
	require.True(t, summary.OK)
	require.Equal(t, "failover", summary.Scenario)

	refused := exec.CommandContext(t.Context(), bin, "--storage", "s3://bucket")
	var errs bytes.Buffer
	refused.Stderr = &errs
	require.Error(t, refused.Run())
	require.Equal(t, 2, refused.ProcessState.ExitCode())
	require.Contains(t, errs.String(), `nstance-dev: storage.url: scheme "s3" is not known here (use file:///absolute/directory`)
}
