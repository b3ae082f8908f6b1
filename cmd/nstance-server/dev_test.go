//go:build linux

package main_test

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/eventtype"
)

// A line is one line of --json.
type line struct {
	nstance.Event
	OK       *bool  `json:"ok"`
	Scenario string `json:"scenario"`
	Count    int    `json:"count"`
	Lost     *int   `json:"lost"`

	Leaked      *int   `json:"leaked"`
	Duplicated  *int   `json:"duplicated"`
	Failover    *int64 `json:"failover_ms"`
	Address     *int64 `json:"leader_address_ms"`
	Detected    *int64 `json:"detected_ms"`
	Received    *int64 `json:"received_ms"`
	Replacement *int64 `json:"replacement_requested_ms"`
	Drained     *int64 `json:"drained_ms"`
	Ready       *int64 `json:"replacement_ready_ms"`
	Deleted     *int64 `json:"deleted_ms"`
}

// play plays a scenario and returns its events and its summary.
func play(t *testing.T, bin string, args ...string) (events []line, summary line) {
	t.Helper()
	code, out, errs := call(t, bin, append([]string{"dev", "--json", "--http", "127.0.0.1:0", "--scenario"}, args...)...)
	require.Zero(t, code, "%s\n%s", out, errs)
	for text := range strings.Lines(out) {
		var l line
		require.NoError(t, json.Unmarshal([]byte(text), &l), text)
		require.False(t, l.Time.IsZero(), text)
		events = append(events, l)
	}
	summary = events[len(events)-1]
	require.EqualValues(t, "summary", summary.Type)
	require.True(t, *summary.OK)
	require.Equal(t, args[0], summary.Scenario)
	return events[:len(events)-1], summary
}

// at returns where the first event of that type is, about id or, where
// replaces, about the replacement of id. It must be there.
func at(t *testing.T, events []line, typ nstance.EventType, id nstance.InstanceID, replaces bool) int {
	t.Helper()
	for i, e := range events {
		if e.Type == typ && (!replaces && e.Instance == id || replaces && e.Replaces == id) {
			return i
		}
	}
	require.Fail(t, "no such event", "%s %s", typ, id)
	return 0
}

func count(events []line, typ nstance.EventType) (n int) {
	for _, e := range events {
		if e.Type == typ {
			n++
		}
	}
	return n
}

// onClouds plays on the clouds' test servers, through their real providers.
func onClouds(t *testing.T, bin string) {
	for _, on := range []struct{ cloud, scenario string }{
		{"aws", "interrupt"},
		{"aws", "crash"},
		{"aws", "failover"},
		{"azure", "interrupt"},
		{"azure", "crash"},
		{"azure", "rollout"},
		{"gcp", "interrupt"},
		{"gcp", "mass"},
		{"gcp", "crash"},
		{"gcp", "rollout"},
		{"proxmox", "interrupt"},
		{"proxmox", "mass"},
		{"proxmox", "crash"},
		{"proxmox", "rollout"},
	} {
		t.Run(on.cloud+" "+on.scenario, func(t *testing.T) {
			args := []string{on.scenario, "--provider", on.cloud}
			switch on.scenario {
			case "failover":
				args = append(args, "--election-ttl", "3s")
			case "mass":
				args = append(args, "--count", "7")
			}
			events, s := play(t, bin, args...)
			require.Positive(t, count(events, nstance.EventDeleted))
			if on.scenario == "mass" {
				require.Zero(t, *s.Lost)
				require.Equal(t, 7, count(events, nstance.EventDeleted))
			}
			if on.scenario == "interrupt" || on.scenario == "mass" || on.scenario == "failover" {
				i := slices.IndexFunc(events, func(e line) bool { return e.Type == eventtype.NoticeDetected })
				require.GreaterOrEqual(t, i, 0)
				require.Regexp(t, "^"+on.cloud+"/", events[i].Notice.Source, "the machine found it at its own metadata service, or the server at the cluster")
			}
			if on.scenario == "failover" {
				require.Zero(t, *s.Leaked+*s.Duplicated+*s.Lost)
				require.GreaterOrEqual(t, *s.Address, *s.Failover, "it moves when the new leader leads")
				i := at(t, events, "leader_address_moved", "", false)
				require.Regexp(t, `^10\.0\.0\.100 from eni-\w+ to eni-\w+$`, events[i].Reason)
			}
		})
	}
}

func interrupt(t *testing.T, bin string) {
	events, s := play(t, bin, "interrupt")
	published := count(events, eventtype.NoticePublished)
	require.Equal(t, 1, published)
	var victim nstance.InstanceID
	for _, e := range events {
		if e.Type == eventtype.NoticePublished {
			victim = e.Instance
		}
	}
	of := func(typ nstance.EventType, replaces bool) int { return at(t, events, typ, victim, replaces) }
	order := func(first ...int) {
		t.Helper()
		require.IsIncreasing(t, first)
	}
	full := at(t, events, nstance.EventGroupReady, "", false)
	received := of(nstance.EventNoticeReceived, false)
	requested := of(nstance.EventReplacementRequested, true)
	order(full, of(eventtype.NoticePublished, false), of(eventtype.NoticeDetected, false), received, requested, of(nstance.EventReady, true))
	order(received, of(nstance.EventDrainStarted, false), of(nstance.EventDrainAcknowledged, false),
		of(nstance.EventDeleteRequested, false), of(nstance.EventDeleted, false))
	require.Equal(t, 4, count(events, nstance.EventReady))

	for _, ms := range []*int64{s.Detected, s.Received, s.Replacement, s.Drained, s.Ready, s.Deleted} {
		require.NotNil(t, ms)
		require.GreaterOrEqual(t, *ms, int64(0))
		require.Less(t, *ms, int64(60_000))
	}
	require.LessOrEqual(t, *s.Detected, *s.Received)
	require.Less(t, *s.Drained, *s.Deleted)
}

func interactive(t *testing.T, bin string) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	r := start(t, bin, "dev", "--instances", "2", "--http", taken.Addr().String())
	page := strings.Fields(r.until(t, "status page"))[2]
	require.NotContains(t, page, taken.Addr().String(), "that port is taken")
	r.until(t, "nstance-admin status")
	r.until(t, "group_ready")
	require.Len(t, processes(r.tmp), 2)
	resp, err := http.Get(page + "readyz")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)

	require.NoError(t, r.Process.Signal(syscall.SIGINT))
	require.Zero(t, r.end(t), r.errs.String())
	require.Empty(t, processes(r.tmp), "a machine still runs")
	require.Empty(t, left(t, r.tmp), "a temporary directory stays behind")
}

func killed(t *testing.T, bin string) {
	r := start(t, bin, "dev", "--instances", "2", "--json", "--http", "127.0.0.1:0")
	r.until(t, `"group_ready"`)
	require.Len(t, processes(r.tmp), 2)
	require.NoError(t, r.Process.Kill())
	require.Eventually(t, func() bool { return len(processes(r.tmp)) == 0 }, time.Minute, 50*time.Millisecond)
}

// servers returns how many servers have their configuration below dir.
func servers(dir string) (n int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, _ := os.ReadFile(file) // some are gone
		if strings.Contains(string(line), "\x00run\x00--config\x00"+dir) {
			n++
		}
	}
	return n
}

func killedPair(t *testing.T, bin string) {
	r := start(t, bin, "dev", "--scenario", "failover", "--json", "--http", "127.0.0.1:0")
	r.until(t, `"group_ready"`)
	require.Len(t, processes(r.tmp), 3)
	require.Equal(t, 2, servers(r.tmp))
	require.NoError(t, r.Process.Kill())
	require.Eventually(t, func() bool { return len(processes(r.tmp)) == 0 && servers(r.tmp) == 0 }, time.Minute, 50*time.Millisecond)
}
