package dev_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/dev"
)

// TestPrintedCommands types what dev prints, as a person does who has only the
// checkout.
func TestPrintedCommands(t *testing.T) {
	goTool, err := exec.LookPath("go")
	require.NoError(t, err)
	t.Setenv("PATH", filepath.Dir(goTool)+":/usr/bin:/bin")
	t.Chdir(filepath.Join("..", ".."))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out screen
	ended := make(chan error, 1)
	go func() {
		ended <- dev.Run(ctx, &dev.Options{Instances: 2, Data: t.TempDir(), Out: &out, HTTP: "127.0.0.1:0"})
	}()
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "group_ready") }, time.Minute, 20*time.Millisecond)

	machine := regexp.MustCompile(`ready +(\w+)\n +process \d+, log (\S+)`).FindStringSubmatch(out.String())
	require.NotNil(t, machine, out.String())
	require.FileExists(t, machine[2])
	config := regexp.MustCompile(`configuration (\S+): edit it`).FindStringSubmatch(out.String())
	require.NotNil(t, config, out.String())
	edit(t, config[1], `"size": 2`, `"size": 3`)

	export := regexp.MustCompile(`export NSTANCE_ADMIN_DIR=\S+`).FindString(out.String())
	printed := regexp.MustCompile(`(?m)^  (go run \./cmd/nstance-dev admin .*)$`).FindAllStringSubmatch(out.String(), -1)
	require.Len(t, printed, 6)
	for _, line := range printed {
		if strings.Contains(line[1], "--follow") {
			continue // it has no end
		}
		script := export + " && " + strings.NewReplacer("INSTANCE", machine[1], "--wait", "--wait --yes").Replace(line[1]) // a person confirms
		answer, err := exec.CommandContext(t.Context(), "sh", "-c", script).CombinedOutput()
		require.NoError(t, err, "%s\n%s", line[1], answer)
	}
	require.Equal(t, 2, strings.Count(out.String(), "config_accepted"), "the edited one too")
	require.Contains(t, out.String(), "(notice: rehearsal/admin-", "a rehearsal takes the way of a real notice, and is shown as one")
	cancel()
	require.NoError(t, <-ended)
}

func edit(t *testing.T, path, old, replacement string) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(data), old)
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(data), old, replacement, 1)), 0o600))
}
