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

// programsDir has the programs of Nstance, versitygw and fake-gcs-server.
const programsDir = "NSTANCE_TUTORIAL_PROGRAMS"

// TestServersTutorial runs the commands of the page as one shell would, word for word. The
// page's ports are those of a network namespace of its own, and no process outlives the test.
func TestServersTutorial(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/tutorial.md")
	require.NoError(t, err)
	var script strings.Builder
	script.WriteString("set -euo pipefail\nip link set lo up\n")
	found := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(string(text), -1)
	require.GreaterOrEqual(t, len(found), 9, "the page has a block of commands for each step")
	for _, m := range found {
		script.WriteString(m[1])
	}
	programs, dir := folders(t)
	out, err := inNamespace(t, dir, []string{
		"PATH=" + programs + string(filepath.ListSeparator) + os.Getenv("PATH"),
		"AWS_EC2_METADATA_DISABLED=true", "AWS_CONFIG_FILE=" + os.DevNull, "AWS_SHARED_CREDENTIALS_FILE=" + os.DevNull,
	}, "bash", "-xc", script.String())
	require.NoError(t, err, out)
	for _, want := range []string{
		"Standing by:       127.0.0.1:9993", "Standing by:       127.0.0.1:8993", "replacement ready",
		"no machines without a record", "Needs attention:   nothing",
	} {
		require.Contains(t, out, want, out)
	}
}

// folders returns the folder of the programs, and an empty one on a disk: versitygw's listings
// are not exact in memory.
func folders(t *testing.T) (programs, dir string) {
	t.Helper()
	programs = os.Getenv(programsDir)
	require.NotEmpty(t, programs, "run it through make test-tutorial")
	dir, err := os.MkdirTemp(programs, "run-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return programs, dir
}

// inNamespace runs a command in a folder, in namespaces of its own for processes, mounts and
// network, and returns what it printed.
func inNamespace(t *testing.T, dir string, env []string, command ...string) (string, error) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, "unshare", append(unshared("--net", "--mount", "--pid"), command...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// unshared are the arguments of unshare for a command whose processes end with it.
func unshared(namespaces ...string) []string {
	if os.Geteuid() != 0 {
		namespaces = append(namespaces, "--map-root-user")
	}
	return append(namespaces, "--fork", "--kill-child")
}
