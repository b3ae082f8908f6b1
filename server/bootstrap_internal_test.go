package server

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/files"
)

// TestRenderTextErrors: a template is wrong only where it could be executed to its end.
func TestRenderTextErrors(t *testing.T) {
	_, err := renderText(t.Context(), "userdata.content", "{{.Vars.none}}", files.Boot{})
	requireField := func(code nstance.Code) {
		t.Helper()
		require.ErrorIs(t, err, code)
		require.ErrorContains(t, err, "userdata.content: ")
	}
	requireField(nstance.Invalid)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = renderText(ended, "userdata.content", "{{.Vars.none}}", files.Boot{})
	requireField(nstance.Unavailable)
}
