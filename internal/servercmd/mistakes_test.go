package servercmd_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/servercmd"
	"github.com/nstance-go/nstance/internal/test/mistakes"
)

func TestExitCodesOfMistakes(t *testing.T) {
	folder := t.TempDir()
	invalid, missing := filepath.Join(folder, "invalid"), filepath.Join(folder, "missing")
	require.NoError(t, os.WriteFile(invalid, []byte(`{"shard": 1`), 0o600))
	run := func(args ...string) []string {
		return append([]string{"run", "--key-provider", "none", "--data", filepath.Join(folder, "data"), "--bind", ports("127.0.0.1:0")}, args...)
	}
	server := func(t *testing.T, args []string) (int, string) {
		code, _, errs := call(t, nil, args...)
		return code, errs
	}
	mistakes.Require(t, server, map[mistakes.Mistake][][]string{
		mistakes.UnknownFlag:   {{"--loud"}, run("--loud"), {"dev", "--loud"}, {"validate", "--loud"}},
		mistakes.Argument:      {{"serve"}, run("extra"), {"dev", "extra"}, {"version", "extra"}},
		mistakes.BadValue:      {run("--config", invalid, "--log-level", "loud"), run("--config", invalid, "--log-format", "xml"), {"dev", "--log-format", "xml"}},
		mistakes.NothingNamed:  {run(), {"validate"}, {"run", "--config", invalid, "--key-provider", "file", "--key-source", missing}},
		mistakes.FileMissing:   {run("--config", missing), {"validate", missing}},
		mistakes.FileFolder:    {run("--config", folder), {"validate", folder}},
		mistakes.FileInvalid:   {run("--config", invalid), {"validate", invalid}},
		mistakes.NoDirectory:   {run("--config", invalid, "--data", invalid), {"run", "--storage", "file://" + invalid, "--cluster", "c", "--shard", "a"}},
		mistakes.NothingStored: {run("--storage", "mem://", "--shard", "a")},
	})
	development := func(t *testing.T, args []string) (int, string) {
		var out, errs bytes.Buffer
		code := servercmd.Dev(t.Context(), parts(), args, &out, &errs, func(string) string { return "" })
		return code, errs.String()
	}
	mistakes.Require(t, development, map[mistakes.Mistake][][]string{
		mistakes.UnknownFlag: {{"--loud"}, {"admin", "--loud"}},
		mistakes.Argument:    {{"extra"}, {"admin", "status", "extra"}},
		mistakes.BadValue:    {{"--log-level", "loud"}, {"--scenario", "storm"}},
		mistakes.NoDirectory: {{"--data", invalid}},
		mistakes.NotLoggedIn: {{"admin", "status", "--identity", missing}},
	})
}
