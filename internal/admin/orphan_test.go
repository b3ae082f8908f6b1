package admin_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

func TestOrphanDecisions(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	a, b := string(webNew), string(gone)
	for name, tc := range map[string]struct {
		args []string
		code int
		call string // empty: nothing was changed
		says string
	}{
		"delete unconfirmed":         {[]string{"delete", a, b}, 2, "", "deleting 2 machines ends whatever runs on them, without a drain"},
		"delete":                     {[]string{"delete", a, "-y"}, 0, "delete orphan " + a, ""},
		"delete several":             {[]string{"delete", a, b, "-y"}, 0, "delete orphan " + a + ";delete orphan " + b, ""},
		"delete, dry":                {[]string{"delete", a, b, "--dry-run"}, 0, "", ""},
		"delete what is none":        {[]string{"delete", string(webA), "-y"}, 3, "", "nstance-admin orphan list"},
		"one of several is none":     {[]string{"delete", a, string(webA), "-y"}, 3, "", "no machine without a record is " + string(webA)},
		"delete nothing":             {[]string{"delete", "-y"}, 2, "", "argument ID is missing"},
		"delete what is no ID":       {[]string{"delete", "i-0c3d", "-y"}, 2, "", "i-0c3d"},
		"adopt unconfirmed":          {[]string{"adopt", a}, 2, "", "which drain what is more than their size"},
		"adopt":                      {[]string{"adopt", a, "-y"}, 0, "adopt " + a, ""},
		"adopt, dry":                 {[]string{"adopt", a, "--dry-run"}, 0, "", ""},
		"adopt what is none":         {[]string{"adopt", string(webA), "-y"}, 3, "", "nstance-admin orphan list"},
		"orphan without a decision":  {nil, 2, "", "name a command"},
		"orphan with a strange word": {[]string{"adpot", a}, 2, "", `did you mean "adopt"?`},
	} {
		t.Run(name, func(t *testing.T) {
			r := w.run(append([]string{"orphan"}, tc.args...)...)
			require.Equal(t, tc.code, r.code, r.errors)
			require.Contains(t, r.errors, tc.says)
			require.Equal(t, tc.call, strings.Join(w.done(), ";"))
		})
	}
}

// What was done before an error is printed all the same.
func TestOrphanDecisionsUpToAnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	w.set(func() {
		w.fail["real DeleteOrphan "+string(gone)] = nstance.Errorf(nstance.Conflict, "instance %s has a record by now", gone)
	})
	r := w.run("orphan", "delete", string(webNew), string(gone), "-y")
	require.Equal(t, 6, r.code, r.errors)
	require.Contains(t, r.out, "i-0c3d")
	require.NotContains(t, r.out, "i-0e5f")
	require.Contains(t, r.errors, "has a record by now")
}
