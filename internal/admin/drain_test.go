package admin_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

func TestDrainAck(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	w.instances[string(webB)].Drain.Executor = string(nstance.ExecutorOperator)
	t.Run("says what happened", func(t *testing.T) {
		r := w.run("drain", "ack", string(webB), "--generation", "1")
		require.Zero(t, r.code, r.errors)
		require.Equal(t, []string{"acknowledge " + string(webB) + ` generation=1 drained delete=false ""`}, w.done())
		r = w.run("drain", "ack", string(webB), "--generation", "1", "--failed", "--reason", "a disruption budget", "-o", "json")
		require.Zero(t, r.code, r.errors)
		require.JSONEq(t, `{}`, r.out, "what the API answers")
		require.Equal(t, []string{"acknowledge " + string(webB) + ` generation=1 failed delete=false "a disruption budget"`}, w.done())
	})
	t.Run("needs the generation", func(t *testing.T) {
		r := w.run("drain", "ack", string(webB))
		require.Equal(t, 2, r.code)
		require.Contains(t, r.errors, "generation")
	})
	t.Run("a dry run says whether it would count", func(t *testing.T) {
		require.Zero(t, w.run("drain", "ack", string(webB), "--generation", "1", "--dry-run").code)
		require.Equal(t, 6, w.run("drain", "ack", string(webB), "--generation", "2", "--dry-run").code)
		require.Equal(t, 3, w.run("drain", "ack", string(webA), "--generation", "1", "--dry-run").code)
		w.set(func() { w.instances[string(webB)].Drain.Executor = string(nstance.ExecutorAgent) })
		require.Equal(t, 4, w.run("drain", "ack", string(webB), "--generation", "1", "--dry-run").code)
		require.Empty(t, w.done())
	})
}
