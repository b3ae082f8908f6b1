package admin_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

func TestAudit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.run("audit", "--by", "admin-1", "--since", "2d")
	require.Zero(t, r.code, r.errors)
	require.Regexp(t, `(?m)^2026-01-02T03:04:06\S*\s+admin-1\s+admin\s+default\s+Freeze\s+\{"reason":"audit"\}\s+storage is slow\s+-$`, r.out)
	require.Regexp(t, `(?m)^2026-01-02T03:04:05\S*\s+operator-1\s+operator\s+blue\s+PauseGroup\s+\{"group":"db"\}\s+-\s+7$`, r.out, "from the second page")
	require.Equal(t, 1, strings.Count(r.errors, "ledger/eu1a/x: line 3"), "once")

	r = w.run("audit", "--limit", "1", "-o", "json")
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.out, `"code": "unavailable"`)
	require.NotContains(t, r.out, "operator-1")
	require.Equal(t, 2, w.run("audit", "--since", "yesterday").code)
	w.set(func() { w.fail["ListActions"] = nstance.Errorf(nstance.Denied, "role operator may not") })
	require.Equal(t, 4, w.run("audit").code)
}
