package gcp_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp"
	"github.com/nstance-go/nstance/gcp/gcetest"
	"github.com/nstance-go/nstance/internal/test/doctest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// TestErrors checks every row of the error table through the real client: the reasons of
// HTTP errors, and the codes in operations.
func TestErrors(t *testing.T) {
	for _, row := range gcp.Rows() {
		t.Run(row.Seen+" "+row.Text, func(t *testing.T) {
			faults := &testcloud.Faults{}
			cloud, p := newCloud(t, &gcetest.Options{Faults: faults})
			m, err := p.Create(t.Context(), spec(t))
			require.NoError(t, err)
			seen := strings.ReplaceAll(row.Seen, "*", "_WITH_DETAILS")
			if row.Seen == "*" {
				seen = "other"
			}
			want := row.Code
			if unicode.IsLower(rune(seen[0])) {
				if want == nstance.Unavailable { // a mutation
					want = nstance.Ambiguous
				}
				faults.Next("instances.delete", testcloud.Fault{Answer: gcetest.Refuse(http.StatusForbidden, seen, "Before "+row.Text+" after")})
			} else {
				cloud.FailOperation("delete", gcetest.OperationError{Code: seen, Message: "Before " + row.Text + " after"})
			}
			err = p.Delete(t.Context(), m)
			if want == nstance.Conflict { // of a delete it would say that the machine is another's
				want = nstance.Unavailable
			}
			require.Equal(t, want, nstance.CodeOf(err), "%v", err)
			require.Len(t, cloud.Machines(), 1)
		})
	}
}

// TestStatuses checks errors without a known reason.
func TestStatuses(t *testing.T) {
	faults := &testcloud.Faults{}
	_, p := newCloud(t, &gcetest.Options{Faults: faults})
	m, err := p.Create(t.Context(), spec(t))
	require.NoError(t, err)
	for status, want := range map[int][2]nstance.Code{
		http.StatusBadRequest:          {nstance.Invalid, nstance.Invalid},
		http.StatusUnauthorized:        {nstance.Denied, nstance.Denied},
		http.StatusForbidden:           {nstance.Denied, nstance.Denied},
		http.StatusNotFound:            {nstance.Invalid, nstance.Invalid}, // of something else
		http.StatusRequestTimeout:      {nstance.Unavailable, nstance.Ambiguous},
		http.StatusTeapot:              {nstance.Invalid, nstance.Invalid},
		http.StatusConflict:            {nstance.Conflict, nstance.Unavailable},
		http.StatusPreconditionFailed:  {nstance.Conflict, nstance.Unavailable},
		http.StatusTooManyRequests:     {nstance.Throttled, nstance.Throttled},
		http.StatusInternalServerError: {nstance.Unavailable, nstance.Ambiguous},
		http.StatusBadGateway:          {nstance.Unavailable, nstance.Ambiguous},
		http.StatusServiceUnavailable:  {nstance.Unavailable, nstance.Ambiguous},
	} {
		answer := testcloud.Fault{Answer: gcetest.Refuse(status, "somethingNew", "x")}
		faults.Next("instances.get", answer)
		_, err = p.Get(t.Context(), m.ID)
		require.Equal(t, want[0], nstance.CodeOf(err), "get: %v", err)
		faults.Next("instances.delete", answer)
		require.Equal(t, want[1], nstance.CodeOf(p.Delete(t.Context(), m)), "delete: %d", status)
	}
	lost := testcloud.Fault{Lost: testcloud.LostAnswer}
	faults.Next("instances.get", lost, lost, lost, lost) // Go repeats a GET on a broken connection
	_, err = p.Get(t.Context(), m.ID)
	require.ErrorIs(t, err, nstance.Unavailable)
	faults.Clear()
	faults.Next("instances.delete", testcloud.Fault{Lost: testcloud.LostRequest})
	require.ErrorIs(t, p.Delete(t.Context(), m), nstance.Ambiguous)
	nowhere := open(t, "http://127.0.0.1:1", "")
	_, err = nowhere.Create(t.Context(), spec(t))
	require.ErrorIs(t, err, nstance.Unavailable, "nothing was sent")
}

// TestErrorTable compares docs/errors.md with the table.
func TestErrorTable(t *testing.T) {
	var b strings.Builder
	b.WriteString("| seen | code | remark |\n|---|---|---|\n")
	for _, r := range gcp.Rows() {
		seen := "`" + r.Seen + "`"
		switch {
		case r.Seen == "*":
			seen = "text \"" + r.Text + "\""
		case r.Text != "":
			seen += " with text \"" + r.Text + "\""
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s |\n", seen, r.Code, r.Note)
	}
	doctest.Section(t, "../docs/errors.md", "gcp", b.String())
}
