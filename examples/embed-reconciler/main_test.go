package main

import (
	"bytes"
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStory(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out))
	t.Log("\n" + out.String())
	story := regexp.MustCompile(`(?m)^ *[0-9.]+s  `).ReplaceAllString(out.String(), "")
	doomed := regexp.MustCompile(`the cloud takes (web-[1-3]) back`).FindStringSubmatch(story)[1]

	t.Run("the replacement is requested before the old machine is gone", func(t *testing.T) {
		inOrder(t, story, "group_ready", "the cloud takes", doomed+" notice_received", "replacement_requested for "+doomed, doomed+" deleted")
	})
	t.Run("the old machine is deleted after its drain", func(t *testing.T) {
		inOrder(t, story, doomed+" drain_started", doomed+" drain_acknowledged", doomed+" delete_requested", doomed+" deleted")
	})
	t.Run("in the end the group is full again", func(t *testing.T) {
		require.Equal(t, 2, strings.Count(story, "group_ready"))
		require.True(t, strings.HasSuffix(story, "three machines again\n"))
	})
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, run(ctx, t.Output()), context.Canceled)
}

// inOrder checks that the lines occur in the text one after another.
func inOrder(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		_, rest, found := strings.Cut(text, line)
		require.True(t, found, "%q is missing, or too early", line)
		text = rest
	}
}
