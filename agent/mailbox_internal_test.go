package agent

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// A logHook is a handler of logs that calls a function for each line.
type logHook func(line string)

func (h logHook) Enabled(context.Context, slog.Level) bool { return true }

func (h logHook) Handle(_ context.Context, r slog.Record) error { h(r.Message); return nil }

func (h logHook) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h logHook) WithGroup(string) slog.Handler { return h }

// TestMailboxLockIsFreeOutsideMailbox: the drainer reports to the mailbox, so the mailbox
// starts no drain under its lock.
func TestMailboxLockIsFreeOutsideMailbox(t *testing.T) {
	t.Parallel()
	var a *Agent
	lines := 0
	id, err := nstance.NewInstanceID("tst", time.Now())
	require.NoError(t, err)
	a, err = New(&Options{
		InstanceID: id, RegistrationAddrs: []string{"a.test:8992"}, AgentAddrs: []string{"a.test:8994"},
		Drain: func(context.Context, nstance.Drain) (nstance.Outcome, string) { return nstance.OutcomeDrained, "" },
		Log: slog.New(logHook(func(string) {
			lines++
			if assert.True(t, a.mail.mu.TryLock(), "the mailbox is locked while a drain starts") {
				a.mail.mu.Unlock()
			}
		})),
	})
	require.NoError(t, err)
	a.mail.end()
	a.mail.observe(reclaimNotice("a"))
	a.mail.observe(reclaimNotice("b"))
	doomed, known := a.drainDoomed()
	require.True(t, doomed)
	require.False(t, known)
	require.NotZero(t, lines, "a drain started")
}
