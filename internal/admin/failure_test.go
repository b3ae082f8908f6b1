package admin_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/admin"
)

// TestErrorsKeepTheForm: a program that reads JSON finds the error as JSON, in
// one line.
func TestErrorsKeepTheForm(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	for _, c := range []struct {
		args string
		code int
		want admin.Failure
	}{
		{"group get absent -o json", 3, admin.Failure{Code: nstance.NotFound, Error: `no group "absent"`}},
		{"group get absent --output=yaml", 3, admin.Failure{Code: nstance.NotFound, Error: `no group "absent"`}},
		{"group scale web -2 -o json", 2, admin.Failure{Code: nstance.Invalid}},
		{"group list --bogus -o json", 2, admin.Failure{Code: nstance.Invalid, Error: "unknown flag: --bogus", Remedy: "see nstance-admin group list --help"}},
		{"events --since yesterday -o json", 2, admin.Failure{Code: nstance.Invalid, Field: "--since", Error: `"yesterday" is neither`}},
		{"group get -ojson", 2, admin.Failure{Code: nstance.Invalid, Error: "argument GROUP is missing"}},
	} {
		t.Run(c.args, func(t *testing.T) {
			r := w.run(strings.Fields(c.args)...)
			require.Equal(t, c.code, r.code)
			require.Empty(t, r.out)
			require.Equal(t, 1, strings.Count(r.errors, "\n"), r.errors)
			var got admin.Failure
			require.NoError(t, json.Unmarshal([]byte(r.errors), &got))
			require.Equal(t, c.want.Code, got.Code)
			require.Equal(t, c.code, got.ExitCode)
			require.Equal(t, c.want.Field, got.Field)
			require.Contains(t, got.Error, c.want.Error)
			if c.want.Remedy != "" {
				require.Equal(t, c.want.Remedy, got.Remedy)
				require.NotContains(t, got.Error, got.Remedy)
			}
		})
	}
	r := w.run("group", "get", "absent")
	require.Contains(t, r.errors, `error: no group "absent"`)
}
