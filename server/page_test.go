package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/wave"
	"github.com/nstance-go/nstance/internal/web"
)

// TestPageOfInterruption: the page shows an interruption from the notice on, and how it
// ended.
func TestPageOfInterruption(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	require.Empty(t, w.status().Interruptions)
	lost, replacement := w.reclaimed("e1")
	s := w.status()
	require.Len(t, s.Interruptions, 1)
	i := s.Interruptions[0]
	require.Equal(t, []string{"e1", "default", "web", string(lost), string(replacement), "reclaim", "cut short"},
		[]string{i.Event, i.Tenant, i.Group, i.Instance, i.Replacement, i.Kind, i.DrainOutcome})
	for _, at := range []time.Time{i.Deadline, i.ReplacementRequestedAt, i.ReplacementReadyAt, i.DrainStartedAt, i.DrainedAt, i.DeletedAt} {
		require.False(t, at.Before(i.NoticedAt), "%+v", i)
	}
	require.Equal(t, "cut short", i.Result)
	require.Len(t, s.Waves, 1)
	require.Equal(t, s.Waves[0].ID, i.Wave)
	require.Equal(t, wave.Count{Machines: 1, Requested: 1, Replaced: 1, Incomplete: 1}, s.Waves[0].Count)
	require.Equal(t, web.Slot{Incomplete: 1}, s.Day.Total)
	require.Zero(t, s.InterruptionsRunning)

	require.NoError(t, w.stopServer())
	running := newWorld(t, setup{webSize: 1})
	id := running.awaitMachine(nstance.DefaultTenant)
	k := running.connectReady(id)
	k.awaitAck(k.sendNotice(reclaimNotice("e2", time.Hour)))
	running.awaitEvent(nstance.EventDrainStarted, id)
	require.NoError(t, running.stopServer())
	next := newWorld(t, setup{store: running.store, provider: running.cloud, webSize: 1})
	s = next.status()
	require.Len(t, s.Interruptions, 1, "another server goes on showing what runs")
	require.Equal(t, "e2", s.Interruptions[0].Event)
	require.Equal(t, 1, s.InterruptionsRunning)
	require.Equal(t, 1, s.Waves[0].Running)
	require.True(t, s.Interruptions[0].DrainDeadline.Before(s.Interruptions[0].Deadline), "the margin is between the two deadlines")
	require.Zero(t, s.Interruptions[0].DeletedAt)
}

// TestPageStream: the stream goes through every guard of the port, and does not keep the
// server from ending.
func TestPageStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	ctx, cancel := context.WithTimeout(t.Context(), eventually)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.server.Addresses().HTTP+"/stream", nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)
	lines := bufio.NewScanner(resp.Body)
	var f struct {
		Sections struct{ Groups []web.Group }
		Rows     []web.Instance
	}
	for len(f.Sections.Groups) == 0 || len(f.Rows) == 0 { // the first view may come before the first plan
		require.True(t, lines.Scan())
		if data, is := strings.CutPrefix(lines.Text(), "data: "); is {
			require.NoError(t, json.Unmarshal([]byte(data), &f))
		}
	}
	stopped := make(chan error, 1)
	go func() { stopped <- w.stopServer() }()
	for lines.Scan() {
	}
	require.NoError(t, lines.Err(), "the stream ends in order")
	require.NoError(t, <-stopped)
}
