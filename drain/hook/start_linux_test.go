package hook_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain/hook"
	"github.com/nstance-go/nstance/internal/test/busyprogram"
)

// TestStartThatPasses: a hook that cannot be started now is started as soon as it can be.
func TestStartThatPasses(t *testing.T) {
	path, done := busyprogram.New(t)
	h, err := hook.New([]string{path, "-c", "echo emptied"}, nil)
	require.NoError(t, err)
	time.AfterFunc(300*time.Millisecond, done)
	outcome, message := h.Run(t.Context(), nstance.Drain{Deadline: time.Now().Add(time.Minute)})
	require.Equal(t, nstance.OutcomeDrained, outcome, message)
	require.Equal(t, "emptied", message)
}

// TestStartThatDoesNotPass: what never ran is told from what ran and failed.
func TestStartThatDoesNotPass(t *testing.T) {
	path, _ := busyprogram.New(t)
	h, err := hook.New([]string{path}, nil)
	require.NoError(t, err)
	outcome, message := h.Run(t.Context(), nstance.Drain{Deadline: time.Now().Add(500 * time.Millisecond)})
	require.Equal(t, nstance.OutcomeFailed, outcome)
	require.Regexp(t, "^not started: .*text file busy", message)

	noProgram := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(noProgram, []byte("no program"), 0o700))
	for _, missing := range []string{"/no/such/program", "no-such-program", t.TempDir(), noProgram} {
		h, err := hook.New([]string{missing}, nil)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		outcome, message := h.Run(ctx, nstance.Drain{Deadline: time.Now().Add(time.Hour)})
		require.NoError(t, ctx.Err(), "no retry can help")
		cancel()
		require.Equal(t, nstance.OutcomeFailed, outcome)
		require.Regexp(t, "^not started: ", message)
	}
	h, err = hook.New([]string{"/bin/sh", "-c", "exit 7"}, nil)
	require.NoError(t, err)
	_, message = h.Run(t.Context(), nstance.Drain{Deadline: time.Now().Add(time.Minute)})
	require.Regexp(t, "^exit status 7", message)
}
