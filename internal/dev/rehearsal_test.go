//go:build linux

package dev_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/dev"
	"github.com/nstance-go/nstance/storage"
)

// TestMassRehearsal interrupts a whole group of real agents at once, as nstance-admin
// does it: all of them are drained in time and replaced.
func TestMassRehearsal(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	const size = 4
	data, ended := t.TempDir(), make(chan error, 1)
	var out screen
	go func() {
		ended <- dev.Run(ctx, &dev.Options{Instances: size, Data: data, Out: &out, HTTP: "127.0.0.1:0"})
	}()
	defer func() {
		cancel()
		require.NoError(t, <-ended)
	}()
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "group_ready") }, time.Minute, 20*time.Millisecond)

	var answer, errs bytes.Buffer
	args := []string{"interrupt", "--group", "web", "--count", "4", "--wait", "-y", "-o", "json", "--wait-timeout", "60s"}
	code := admin.Main(t.Context(), storage.Open, args, strings.NewReader(""), &answer, &errs, func(name string) string {
		return map[string]string{"NSTANCE_ADMIN_DIR": data + "/admin"}[name]
	})
	require.Zero(t, code, errs.String())
	var report struct {
		Stages        []admin.RehearsedStage `json:"stages"`
		Missed        []string               `json:"missed"`
		Interruptions []struct {
			Outcome string `json:"drain_outcome"`
		} `json:"interruptions"`
	}
	require.NoError(t, json.Unmarshal(answer.Bytes(), &report))
	require.Empty(t, report.Missed)
	require.Len(t, report.Interruptions, size)
	for _, i := range report.Interruptions {
		require.Equal(t, "drained", i.Outcome)
	}
	for _, s := range report.Stages {
		require.Equal(t, size, s.Count, "%s", s.Stage)
	}
}
