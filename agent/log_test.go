package agent_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLogLinesNameMachineOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *testShard, m *machine) {
		var text bytes.Buffer
		m.options.Log = slog.New(slog.NewTextHandler(&text, nil))
		_, stop := m.start()
		s.awaitSession().awaitMessage(t, isReport)
		stop()
		require.GreaterOrEqual(t, strings.Count(text.String(), "\n"), 2, "registered, and connected")
		for line := range strings.Lines(text.String()) {
			require.Equal(t, 1, strings.Count(line, "instance_id="), line)
		}
	})
}
