package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/agent"
	"github.com/nstance-go/nstance/internal/version"
)

// call runs the command line in a context that has ended, so that an agent that
// starts stops at once.
func call(vars map[string]string, args ...string) (code int, stdout, stderr string) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, errs bytes.Buffer
	code = run(ctx, args, func(name string) string { return vars[name] }, &out, &errs)
	return code, out.String(), errs.String()
}

func complete(t *testing.T) map[string]string {
	return map[string]string{
		"NSTANCE_INSTANCE_ID":              "acc06bgm7733st2576nx5jht4ecjw",
		"NSTANCE_SERVER_REGISTRATION_ADDR": "127.0.0.1:8992",
		"NSTANCE_SERVER_AGENT_ADDR":        "127.0.0.1:8994",
		"NSTANCE_IDENTITY_DIR":             t.TempDir(),
		"NSTANCE_PROVIDER":                 "none",
	}
}

func TestCommandLine(t *testing.T) {
	t.Run("help names every flag and variable", func(t *testing.T) {
		for _, ask := range []string{"--help", "-h"} {
			code, out, _ := call(nil, ask)
			require.Equal(t, exitOK, code)
			for _, v := range agent.Variables() {
				require.Contains(t, out, v.Name)
				require.Contains(t, out, "--"+flagOf(v)+"")
			}
		}
	})
	t.Run("version is one line", func(t *testing.T) {
		code, out, _ := call(nil, "--version")
		require.Equal(t, exitOK, code)
		require.Regexp(t, `^nstance-agent `+regexp.QuoteMeta(version.Software)+` go\S+.*\n$`, out)
	})
	t.Run("an empty environment is a mistake that is explained", func(t *testing.T) {
		code, _, errs := call(nil)
		require.Equal(t, exitUsage, code)
		require.Contains(t, errs, "NSTANCE_INSTANCE_ID")
		require.Contains(t, errs, "NSTANCE_SERVER_AGENT_ADDR")
	})
	t.Run("a flag overrides the environment", func(t *testing.T) {
		code, _, errs := call(complete(t), "--provider", "amazon")
		require.Equal(t, exitUsage, code)
		require.Contains(t, errs, "amazon")
		vars := complete(t)
		vars["NSTANCE_PROVIDER"], vars["NSTANCE_DEBUG"] = "amazon", "true"
		code, _, errs = call(vars, "--provider=none", "--debug=false")
		require.Equal(t, exitOK, code, errs)
	})
	t.Run("an empty flag unsets the variable", func(t *testing.T) {
		code, _, errs := call(complete(t), "--instance-id=")
		require.Equal(t, exitUsage, code)
		require.Contains(t, errs, "no instance ID")
	})
	t.Run("a mistake in the file of probes ends it, and is named", func(t *testing.T) {
		vars, file := complete(t), filepath.Join(t.TempDir(), "probes.jsonc")
		require.NoError(t, os.WriteFile(file, []byte(`[{"name": "web", "http": "http://localhost/", "every": "5s"}]`), 0o600))
		code, _, errs := call(vars, "--probes", file)
		require.Equal(t, exitUsage, code)
		require.Contains(t, errs, "NSTANCE_PROBES: "+file+": probes[0].every: is unknown")
		vars["NSTANCE_PROBES"] = file
		require.NoError(t, os.WriteFile(file, []byte(`[{"name": "web", "http": "http://localhost/"}]`), 0o600))
		code, _, errs = call(vars)
		require.Equal(t, exitOK, code, errs)
	})
	t.Run("what is not understood is named", func(t *testing.T) {
		for _, args := range [][]string{{"--no-such-flag"}, {"start"}, {"--provider"}} {
			code, _, errs := call(complete(t), args...)
			require.Equal(t, exitUsage, code)
			require.Contains(t, errs, "--help")
		}
	})
	t.Run("exits with 0 after SIGTERM", func(t *testing.T) {
		code, _, errs := call(complete(t))
		require.Equal(t, exitOK, code, errs)
		require.Contains(t, errs, "nstance-agent starts")
	})
	t.Run("its log is text, or JSON", func(t *testing.T) {
		code, _, errs := call(complete(t), "--log-format", "xml")
		require.Equal(t, exitUsage, code)
		require.Contains(t, errs, `NSTANCE_LOG_FORMAT: "xml" is no format (use text or json)`)
		code, _, errs = call(complete(t), "--log-format=json", "--debug")
		require.Equal(t, exitOK, code, errs)
		for line := range strings.Lines(errs) {
			require.True(t, json.Valid([]byte(line)), line)
		}
		require.Contains(t, errs, `"msg":"nstance-agent starts"`)
	})
}

func Example() {
	run(context.Background(), []string{"--identity-dir"}, os.Getenv, os.Stdout, os.Stdout)
	fmt.Println("exit code", run(context.Background(), []string{"--provider=moon"}, func(string) string { return "" }, os.Stdout, os.Stderr))
	// Output:
	// flag needs an argument: -identity-dir
	// see nstance-agent --help
	// exit code 2
}
