package admin_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/test/freeport"
	"github.com/nstance-go/nstance/internal/test/mistakes"
)

func TestExitCodesOfMistakes(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	invalid, missing := filepath.Join(folder, "invalid"), filepath.Join(folder, "missing")
	require.NoError(t, os.WriteFile(invalid, []byte(`{"shard": 1`), 0o600))
	address, err := freeport.Address()
	require.NoError(t, err)
	storage := "file://" + newDepot(t).dir
	w := newWorld(t).populate()
	w.set(func() { w.fail["ListGroups"] = nstance.Errorf(nstance.Denied, "not yours") })
	call := func(t *testing.T, args []string) (int, string) {
		var out, errs bytes.Buffer
		code := admin.Main(t.Context(), nil, args, strings.NewReader(""), &out, &errs, func(string) string { return "" })
		return code, errs.String()
	}
	mistakes.Require(t, call, map[mistakes.Mistake][][]string{
		mistakes.UnknownFlag:  {{"--loud"}, {"status", "--loud"}},
		mistakes.Argument:     {{"serve"}, {"status", "extra"}},
		mistakes.BadValue:     {{"status", "-o", "xml"}, {"cluster", "init", "--cluster", "c", "--storage", storage, "--key-provider", "vault"}},
		mistakes.NothingNamed: {{"cluster", "init", "--cluster", "c"}, {"config", "validate"}},
		mistakes.FileMissing:  {{"config", "validate", missing}, {"config", "put", missing, "--storage", storage}, {"plan", "-f", missing}},
		mistakes.FileFolder:   {{"config", "validate", folder}, {"config", "put", folder, "--storage", storage}, {"plan", "-f", folder}},
		mistakes.FileInvalid:  {{"config", "validate", invalid}, {"config", "put", invalid, "--storage", storage}},
		mistakes.NoDirectory:  {{"status", "--identity", invalid}, {"config", "get", "--storage", "file://" + invalid, "--shard", "a"}},
		mistakes.NoAnswer:     {{"status", "--identity", w.dir, "--server", address, "--timeout", "1s"}},
		mistakes.NotLoggedIn:  {{"status", "--identity", missing}, {"group", "list", "--identity", missing}},
		mistakes.NotPermitted: {{"group", "list", "--identity", w.dir}},
	})
}
