package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/health"
	"github.com/nstance-go/nstance/registration"
)

// writeProbes writes a probes file and returns an environment that names it.
func writeProbes(t *testing.T, text string) (vars map[string]string, path string) {
	vars, path = minimalVariables(), filepath.Join(t.TempDir(), "probes.jsonc")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	vars["NSTANCE_PROBES"] = path
	return vars, path
}

func TestProbesFile(t *testing.T) {
	t.Parallel()
	t.Run("has every kind, every field, comments and spare commas", func(t *testing.T) {
		vars, _ := writeProbes(t, `// what this machine is for
			[
				{"name": "disk", "command": ["/usr/local/bin/check disk", "", "$HOME"], "interval": "1m", "timeout": "30s"},
				{"name": "web", "http": "http://127.0.0.1:8080/healthz"}, /* the least */
				{"name": "db", "tcp": "localhost:5432",},
			] // the end`)
		o, err := agentFromEnv(vars)
		require.NoError(t, err)
		require.Equal(t, []health.Probe{
			{Name: "disk", Command: []string{"/usr/local/bin/check disk", "", "$HOME"}, Interval: time.Minute, Timeout: 30 * time.Second},
			{Name: "web", HTTP: "http://127.0.0.1:8080/healthz"},
			{Name: "db", TCP: "localhost:5432"},
		}, o.Probes)
	})
	t.Run("may be empty", func(t *testing.T) {
		vars, _ := writeProbes(t, "[]")
		o, err := agentFromEnv(vars)
		require.NoError(t, err)
		require.Empty(t, o.Probes)
	})
}

func TestProbesFileErrors(t *testing.T) {
	t.Parallel()
	for text, says := range map[string][]string{
		``:                {"correct the JSON"},
		`[{"name": "a"`:   {"correct the JSON"},
		`{"probes": []}`:  {"is not an array of probes", `write [{"name"`},
		`["web"]`:         {"probes[0]: is not an object"},
		`[{"name": 5}]`:   {"probes[0].name: is not a text"},
		`[{"name": "a"}]`: {"probes[0]: 0 are set", "exactly one of command, http and tcp"},
		`[{"tcp": ":1"}]`: {"probes[0].name: has 0 bytes", "use 1 to 64 bytes"},
		`[{"name": "a", "tcp": ":1"}, {"name": "a", "tcp": ":1"}]`:    {`probes[1].name: "a" is used twice`},
		`[{"name": "a", "tcp": ":1", "tcp": ":2"}]`:                   {"probes[0].tcp: appears twice"},
		`[{"name": "a", "tcp": ":1", "Timeout": "1s"}]`:               {"probes[0].Timeout: is unknown", "use name, command, http, tcp, interval and timeout"},
		`[{"name": "a", "tcp": ":1", "timeout": 5}]`:                  {"probes[0].timeout: is not a positive duration", `such as "5s"`},
		`[{"name": "a", "tcp": ":1", "timeout": "0s"}]`:               {"probes[0].timeout: is not a positive duration"},
		`[{"name": "a", "tcp": ":1", "timeout": "2m"}]`:               {"probes[0].timeout: 2m0s is out of range", "1ms to 1m"},
		`[{"name": "a", "tcp": ":1", "interval": "10ms"}]`:            {"probes[0].interval: 10ms is too short", "use 1s to 1h"},
		`[{"name": "a", "http": ""}]`:                                 {"probes[0].http: is not a text"},
		`[{"name": "a", "http": "localhost/x"}]`:                      {"probes[0].http", "use a URL"},
		`[{"name": "a", "tcp": "localhost"}]`:                         {"probes[0].tcp", "use host:port"},
		`[{"name": "a", "command": "rm -rf /"}]`:                      {"probes[0].command: is not a command", "there is no shell"},
		`[{"name": "a", "command": []}]`:                              {"probes[0].command: is not a command"},
		`[{"name": "a", "command": ["a", null]}]`:                     {"probes[0].command[1]: is not a string"},
		`[{"name": "a", "command": [""]}]`:                            {"probes[0].command: is empty"},
		`[{"name": 1}, {"x": 2}]`:                                     {"probes[0].name", "probes[1].x"},
		"[" + strings.Repeat(`{"name": "a", "tcp": ":1"},`, 33) + "]": {"probes"},
		strings.Repeat(" ", 64<<10) + "[]":                            {"has more than 65536 bytes"},
	} {
		t.Run(text[:min(len(text), 50)], func(t *testing.T) {
			vars, path := writeProbes(t, text)
			_, err := agentFromEnv(vars)
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, "NSTANCE_PROBES: "+path+": ")
			for _, part := range says {
				require.ErrorContains(t, err, part)
			}
		})
	}
	t.Run("no file", func(t *testing.T) {
		for path, says := range map[string]string{
			filepath.Join(t.TempDir(), "none.jsonc"): "no such file",
			t.TempDir():                              "not a regular file",
			os.DevNull:                               "not a regular file",
		} {
			vars := minimalVariables()
			vars["NSTANCE_PROBES"] = path
			_, err := agentFromEnv(vars)
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, "NSTANCE_PROBES: "+path+": ")
			require.ErrorContains(t, err, says)
			require.ErrorContains(t, err, "unset the variable")
		}
	})
}

// TestSlowProbesDoNotDelayReports is not in a bubble, because a running command would
// stop the bubble's clock.
func TestSlowProbesDoNotDelayReports(t *testing.T) {
	t.Parallel()
	s := newShard(t, registration.Options{})
	defer s.stop()
	m := s.newMachine()
	m.options.ReportInterval = 100 * time.Millisecond
	m.options.Probes = []health.Probe{{Name: "slow", Command: []string{"/bin/sleep", "1000"}, Timeout: time.Minute}}
	_, stop := m.start()
	defer stop()
	v := receive(t, s.visits)
	for range 3 {
		probe := receive(t, v.received).GetReport().GetProbes()[0]
		require.False(t, probe.GetOk())
		require.Equal(t, "no result yet", probe.GetMessage())
	}
}
