package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/test/mistakes"
)

func TestExitCodesOfMistakes(t *testing.T) {
	folder := t.TempDir()
	invalid := filepath.Join(folder, "invalid")
	require.NoError(t, os.WriteFile(invalid, []byte(`{"shard": 1`), 0o600))
	agent := func(t *testing.T, args []string) (int, string) {
		code, _, errs := call(complete(t), args...)
		return code, errs
	}
	mistakes.Require(t, agent, map[mistakes.Mistake][][]string{
		mistakes.UnknownFlag:  {{"--loud"}},
		mistakes.Argument:     {{"start"}},
		mistakes.BadValue:     {{"--log-format", "xml"}, {"--report-interval", "1"}},
		mistakes.NothingNamed: {{"--instance-id="}},
		mistakes.FileMissing:  {{"--probes", filepath.Join(folder, "missing")}},
		mistakes.FileFolder:   {{"--probes", folder}},
		mistakes.FileInvalid:  {{"--probes", invalid}},
	})
}
