package repository_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/version"
)

// unit returns the settings of a systemd unit. Of those that stand more than once
// it has the last.
func unit(t *testing.T, path string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	out := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			out[name] = value
		}
	}
	return out
}

// TestRecommendedCommandWorksUnderTheUnit: what docs/files.md recommends as
// post_apply is possible for the agent as it is shipped.
func TestRecommendedCommandWorksUnderTheUnit(t *testing.T) {
	doc, err := os.ReadFile("docs/files.md")
	require.NoError(t, err)
	found := regexp.MustCompile(`"post_apply": (\[[^\]]*\])`).FindSubmatch(doc)
	require.NotNil(t, found, "docs/files.md recommends a command")
	var command []string
	require.NoError(t, json.Unmarshal(found[1], &command))
	service := unit(t, "deploy/systemd/nstance-agent.service")

	require.True(t, filepath.IsAbs(command[0]), "no PATH decides what runs")
	if service["NoNewPrivileges"] == "yes" {
		require.NotContains(t, []string{"sudo", "su", "doas", "pkexec", "run0", "runuser"}, filepath.Base(command[0]), "it cannot change the user")
	}
	require.Equal(t, "systemctl", filepath.Base(command[0]))
	require.Contains(t, command, "--no-ask-password", "there is no terminal to ask on")
	require.Contains(t, strings.Fields(service["RestrictAddressFamilies"]), "AF_UNIX", "systemctl speaks to systemd on a socket")

	rules, err := os.ReadFile("deploy/polkit/50-nstance-agent.rules")
	require.NoError(t, err)
	verb, target := command[len(command)-2], command[len(command)-1]
	for _, want := range []string{
		`action.id == "org.freedesktop.systemd1.manage-units"`, `subject.user == "` + service["User"] + `"`,
		`action.lookup("verb") == "` + verb + `"`, `["` + target + `"]`,
	} {
		require.Contains(t, string(rules), want)
	}
}

// TestUnitsStartAgainWithoutLimit: an outage at boot does not end in a program that nothing
// starts any more.
func TestUnitsStartAgainWithoutLimit(t *testing.T) {
	for _, path := range []string{"deploy/systemd/nstance-agent.service", "deploy/systemd/nstance-server.service"} {
		service := unit(t, path)
		require.Equal(t, "0", service["StartLimitIntervalSec"], path)
		require.Equal(t, "always", service["Restart"], path)
	}
}

// TestUnitLeavesTheHookItsTime: SIGTERM goes to the agent alone, and waits as long as any cloud
// lets a reclaimed machine run.
func TestUnitLeavesTheHookItsTime(t *testing.T) {
	service := unit(t, "deploy/systemd/nstance-agent.service")
	require.Equal(t, "mixed", service["KillMode"])
	seconds, err := strconv.Atoi(service["TimeoutStopSec"])
	require.NoError(t, err)
	require.GreaterOrEqual(t, seconds, 120)
}

// TestUnitsAreValid has systemd read the units, where it is installed.
func TestUnitsAreValid(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("there is no systemd-analyze")
	}
	units, err := filepath.Glob("deploy/systemd/*.service")
	require.NoError(t, err)
	require.Len(t, units, 2)
	for _, path := range units {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		self, err := os.Executable()
		require.NoError(t, err)
		data = regexp.MustCompile(`(?m)^ExecStart=\S+`).ReplaceAll(data, []byte("ExecStart="+self)) // the program is not installed here
		copied := filepath.Join(t.TempDir(), filepath.Base(path))
		require.NoError(t, os.WriteFile(copied, data, 0o600))
		out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", copied).CombinedOutput()
		require.NoError(t, err, string(out))
		require.NotContains(t, string(out), filepath.Base(path)+":", "a line that systemd would ignore")
	}
}

// TestRootStaysRoot: nothing runs as root where the agent's user could replace a path.
func TestRootStaysRoot(t *testing.T) {
	service := unit(t, "deploy/systemd/nstance-agent.service")
	owners := map[string]string{} // by folder
	for line := range strings.Lines(read(t, "deploy/systemd/nstance-agent.conf")) {
		if f := strings.Fields(line); len(f) > 0 && f[0] != "#" {
			require.Len(t, f, 5, line)
			require.Equal(t, "d", f[0], "a folder, and nothing below it")
			owners[f[1]] = f[3]
		}
	}
	writable := strings.Fields(service["ReadWritePaths"])
	require.NotEmpty(t, writable)
	for _, path := range writable {
		require.Equal(t, service["User"], owners[path], path)
	}
	for path, owner := range owners {
		if owner != "root" {
			require.Contains(t, writable, path)
			require.Equal(t, "root", owners[filepath.Dir(path)], "who owns the folder above %s can replace it", path)
		}
	}
	for _, path := range []string{"deploy/systemd/nstance-agent.service", "deploy/systemd/nstance-server.service"} {
		require.NotRegexp(t, `(?m)^Exec\w+=[-@:]*[+!]`, read(t, path), "a step with root's rights")
		require.NotRegexp(t, `(?m)^(PermissionsStartOnly|User=root)`, read(t, path))
	}
	require.Equal(t, "root", owners[service["Environment"][strings.Index(service["Environment"], "/"):]], "of user data")
}

// TestUnitsAreConfined: how much of the machine systemd finds a unit exposes, on its scale from 0 to 10.
func TestUnitsAreConfined(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("there is no systemd-analyze")
	}
	for _, path := range []string{"deploy/systemd/nstance-agent.service", "deploy/systemd/nstance-server.service"} {
		out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold=25", path).CombinedOutput()
		require.NoError(t, err, string(out))
	}
}

// TestPackagingVersions: what is installed in Kubernetes says this version of the software.
func TestPackagingVersions(t *testing.T) {
	series := version.Software[:strings.LastIndex(version.Software, ".")]
	major, minor, _ := strings.Cut(series, ".")
	for path, want := range map[string][]string{
		"kubernetes/charts/nstance-operator/Chart.yaml": {"\nversion: " + version.Software + "\n", "\nappVersion: " + version.Software + "\n"},
		"kubernetes/config/manager/kustomization.yaml":  {"newTag: v" + version.Software + "\n"},
		"kubernetes/config/metadata.yaml":               {"major: " + major + "\n    minor: " + minor + "\n    contract: v1beta2\n"},
	} {
		for _, text := range want {
			require.Contains(t, read(t, path), text, path)
		}
	}
}

// TestCRDsAreListed: the kustomization names every CRD that is generated.
func TestCRDsAreListed(t *testing.T) {
	found, err := filepath.Glob("kubernetes/config/crd/infrastructure.*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, found)
	for _, path := range found {
		require.Contains(t, read(t, "kubernetes/config/crd/kustomization.yaml"), "  - "+filepath.Base(path)+"\n")
	}
}
