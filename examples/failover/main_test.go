package main

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain is a copy of the program where it is started as one.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && !strings.HasPrefix(os.Args[1], "-") {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		err := keep(ctx, os.Args[1])
		stop()
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestFailover(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := demo(t.Context(), os.Args[0], &out)
	t.Log("\n" + out.String())
	require.NoError(t, err)
	story := out.String()
	killed := strings.Index(story, "copy is killed")
	require.Equal(t, 1, strings.Count(story[:killed], "leads"))
	require.Equal(t, 1, strings.Count(story[killed:], "leads"))
	machines := func(story string) []string { return regexp.MustCompile(`has (web\S+)`).FindAllString(story, -1) }
	require.Len(t, machines(story[:killed]), 3)
	later := machines(story[killed:])
	require.NotContains(t, machines(story[:killed]), later[len(later)-1], "another machine is there in its place")
	gone := regexp.MustCompile(`(web\S+) is killed`).FindStringSubmatch(story)
	require.Contains(t, machines(story[:killed]), "has "+gone[1])
}
