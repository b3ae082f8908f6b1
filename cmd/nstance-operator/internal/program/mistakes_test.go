package program_test

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
	operator := func(_ *testing.T, args []string) (int, string) {
		code, _, errs := call(args...)
		return code, errs
	}
	kubeconfig := func(file string) []string { return []string{"--own-namespace=x", "--kubeconfig", file} }
	mistakes.Require(t, operator, map[mistakes.Mistake][][]string{
		mistakes.UnknownFlag:  {{"--loud"}},
		mistakes.Argument:     {{"start"}},
		mistakes.BadValue:     {{"--own-namespace=x", "--log-format", "xml"}, {"--own-namespace=x", "--concurrency=0"}},
		mistakes.NothingNamed: {{}},
		mistakes.FileMissing:  {kubeconfig(filepath.Join(folder, "missing"))},
		mistakes.FileFolder:   {kubeconfig(folder)},
		mistakes.FileInvalid:  {kubeconfig(invalid)},
	})
}
