package main

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

func Example() {
	nothing := func(string) string { return "" }
	if err := run(context.Background(), nothing, os.Stdout); err != nil {
		os.Stdout.WriteString(err.Error())
	}
	// Output:
	// server: the machine is registered
	// server: first report, can drain: true
	// server: notice: reclaim by pretend/spot, please drain
	// worker: asked to drain, generation 1
	// server: drain 1 ended: drained, the last job is done
	// server: goodbye: the agent is shutting down
}

func TestEnvironment(t *testing.T) {
	t.Run("a half set environment is a mistake, not a demonstration", func(t *testing.T) {
		vars := map[string]string{"NSTANCE_SERVER_AGENT_ADDR": "127.0.0.1:8994"}
		err := run(t.Context(), func(name string) string { return vars[name] }, t.Output())
		require.ErrorIs(t, err, nstance.Invalid)
	})
	t.Run("a demonstration that is stopped says so", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, run(ctx, func(string) string { return "" }, t.Output()))
	})
}
