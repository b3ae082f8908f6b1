//go:build servers && linux

package tutorial_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// programsDir has nstance-server, nstance-admin and versitygw.
const programsDir = "NSTANCE_TUTORIAL_PROGRAMS"

// TestServersTutorial runs the commands of the page as one shell would, word for word. The
// page's ports are those of a network namespace of its own, and no process outlives the test.
func TestServersTutorial(t *testing.T) {
	programs := os.Getenv(programsDir)
	require.NotEmpty(t, programs, "run it through make test-tutorial")
	text, err := os.ReadFile("../../docs/tutorial.md")
	require.NoError(t, err)
	var script strings.Builder
	script.WriteString("set -euo pipefail\nip link set lo up\n")
	found := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(string(text), -1)
	require.GreaterOrEqual(t, len(found), 9, "the page has a block of commands for each step")
	for _, m := range found {
		script.WriteString(m[1])
	}
	out, err := inNamespace(t, programs, script.String())
	require.NoError(t, err, out)
	for _, want := range []string{
		"Standing by:       127.0.0.1:9993", "Standing by:       127.0.0.1:8993", "replacement ready",
		"no machines without a record", "Needs attention:   nothing",
	} {
		require.Contains(t, out, want, out)
	}
}

// inNamespace runs a script in an empty folder, in namespaces of its own for processes and
// network, and returns what it printed.
func inNamespace(t *testing.T, programs, script string) (string, error) {
	t.Helper()
	dir, err := os.MkdirTemp(programs, "run-") // on a disk: versitygw's listings are not exact in memory
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	args := []string{"--net", "--pid", "--fork", "--kill-child", "bash", "-xc", script}
	if os.Geteuid() != 0 {
		args = append([]string{"--map-root-user"}, args...)
	}
	cmd := exec.CommandContext(ctx, "unshare", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+programs+string(filepath.ListSeparator)+os.Getenv("PATH"),
		"AWS_EC2_METADATA_DISABLED=true", "AWS_CONFIG_FILE="+os.DevNull, "AWS_SHARED_CREDENTIALS_FILE="+os.DevNull)
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.String(), err
}
