//go:build servers

// These tests read a metadata service that others wrote: amazon-ec2-metadata-mock,
// which `make test-clouds` builds. If it is missing, they fail.
package spot_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/integration/realserver"
	"github.com/nstance-go/nstance/spot"
)

// quick is an interval between polls of a test.
const quick = 10 * time.Millisecond

// startMetadataMock returns the base URL of a service that runs until the test ends.
func startMetadataMock(t *testing.T, args ...string) string {
	t.Helper()
	t.Setenv("HOME", t.TempDir()) // of its configuration file
	addr := realserver.Begin(t, "ec2-metadata-mock", func(host, port string) []string {
		return append(args, "-n", host, "-p", port)
	})
	return "http://" + addr
}

// watchMock yields what a detector of the service finds until the test ends.
func watchMock(t *testing.T, url string) <-chan nstance.Notice {
	t.Helper()
	d, err := spot.NewAWS(&spot.Options{BaseURL: url, PollInterval: quick})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	found, ended := make(chan nstance.Notice), make(chan struct{})
	go func() {
		defer close(ended)
		for n, err := range d.Watch(ctx) {
			if err != nil {
				t.Errorf("watch: %v", err)
				continue
			}
			select {
			case found <- n:
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() { stop(); <-ended })
	return found
}

func nextNotice(t *testing.T, found <-chan nstance.Notice) nstance.Notice {
	t.Helper()
	select {
	case n := <-found:
		return n
	case <-time.After(time.Minute):
		require.FailNow(t, "no notice within a minute")
		return nstance.Notice{}
	}
}

// requireQuiet fails for a notice within d.
func requireQuiet(t *testing.T, found <-chan nstance.Notice, d time.Duration) {
	t.Helper()
	select {
	case n := <-found:
		require.FailNow(t, "a notice too many", "%+v", n)
	case <-time.After(d):
	}
}

// timeOfWatch is long enough for a time with whole seconds to change.
const timeOfWatch = 2500 * time.Millisecond

func TestServersEC2Spot(t *testing.T) {
	due := time.Now().UTC().Add(time.Hour).Truncate(time.Second)
	for _, action := range []string{"terminate", "stop", "hibernate"} {
		t.Run(action, func(t *testing.T) {
			found := watchMock(t, startMetadataMock(t, "spot", "-a", action, "-t", due.Format(time.RFC3339), "--rebalance-delay-sec", "3600"))
			n := nextNotice(t, found)
			require.Equal(t, nstance.Reclaim, n.Kind)
			require.Equal(t, action, n.Action)
			require.True(t, due.Equal(n.Deadline), n.Deadline)
			require.Equal(t, "aws/spot/"+action+"@"+due.Format(time.RFC3339), n.EventID)
		})
	}
	t.Run("an interruption appears while the watch runs", func(t *testing.T) {
		found := watchMock(t, startMetadataMock(t, "spot", "-d", "2", "--rebalance-delay-sec", "3600"))
		require.Equal(t, nstance.Reclaim, nextNotice(t, found).Kind)
	})
	t.Run("a time that moves with each read is one interruption, with the first time", func(t *testing.T) {
		found := watchMock(t, startMetadataMock(t, "spot", "--rebalance-delay-sec", "3600"))
		n := nextNotice(t, found)
		require.WithinDuration(t, time.Now().Add(2*time.Minute), n.Deadline, 10*time.Second)
		requireQuiet(t, found, timeOfWatch)
	})
}

func TestServersEC2Rebalance(t *testing.T) {
	sent := time.Now().UTC().Add(-time.Minute).Truncate(time.Second)
	t.Run("a recommendation", func(t *testing.T) {
		found := watchMock(t, startMetadataMock(t, "spot", "-d", "3600", "-r", sent.Format(time.RFC3339)))
		n := nextNotice(t, found)
		require.Equal(t, nstance.Rebalance, n.Kind)
		require.Equal(t, "aws/rebalance@"+sent.Format(time.RFC3339), n.EventID)
		require.Zero(t, n.Deadline)
	})
	t.Run("a time that is that of each read is one recommendation", func(t *testing.T) {
		found := watchMock(t, startMetadataMock(t, "spot", "-d", "3600"))
		require.Equal(t, nstance.Rebalance, nextNotice(t, found).Kind)
		requireQuiet(t, found, timeOfWatch)
	})
}

func TestServersEC2Maintenance(t *testing.T) {
	start := time.Now().UTC().Add(24 * time.Hour).Truncate(time.Second)
	for _, code := range []string{"instance-reboot", "system-reboot", "system-maintenance", "instance-retirement", "instance-stop"} {
		t.Run(code, func(t *testing.T) {
			found := watchMock(t, startMetadataMock(t, "events", "-o", code, "-b", start.Format(time.RFC3339)))
			n := nextNotice(t, found)
			require.Equal(t, nstance.Maintenance, n.Kind)
			require.Equal(t, code, n.Action)
			require.True(t, start.Equal(n.NotBefore), n.NotBefore)
			require.Equal(t, "aws/maintenance/instance-event-1234567890abcdef0", n.EventID)
		})
	}
	for _, state := range []string{"completed", "canceled"} {
		t.Run(state, func(t *testing.T) {
			found := watchMock(t, startMetadataMock(t, "events", "-t", state))
			require.True(t, nextNotice(t, found).Cancelled)
			requireQuiet(t, found, timeOfWatch)
		})
	}
}

func TestServersEC2TargetState(t *testing.T) {
	found := watchMock(t, startMetadataMock(t, "asglifecycle", "--asg-termination-delay-sec", "3"))
	requireQuiet(t, found, time.Second) // InService
	n := nextNotice(t, found)
	require.Equal(t, nstance.Terminate, n.Kind)
	require.Equal(t, "aws/autoscaling/terminated", n.EventID)
	requireQuiet(t, found, time.Second)
}

// Every path at once, where only requests with a token are answered.
func TestServersEC2Tokens(t *testing.T) {
	url := startMetadataMock(t, "--imdsv2")
	r, err := http.Get(url + "/latest/meta-data/instance-id")
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	require.Equal(t, http.StatusUnauthorized, r.StatusCode)

	d, err := spot.Detect(t.Context(), &spot.DetectOptions{Options: spot.Options{BaseURL: url}, ProbeTimeout: 10 * time.Second})
	require.NoError(t, err)
	require.IsType(t, &spot.AWS{}, d)
	interruptible, err := d.Interruptible(t.Context())
	require.NoError(t, err)
	require.False(t, interruptible, "its life cycle is on-demand")

	found := watchMock(t, url)
	kinds := map[nstance.NoticeKind]int{}
	for range 4 {
		kinds[nextNotice(t, found).Kind]++
	}
	require.Equal(t, map[nstance.NoticeKind]int{
		nstance.Reclaim: 1, nstance.Rebalance: 1, nstance.Maintenance: 1, nstance.Terminate: 1,
	}, kinds)
	requireQuiet(t, found, timeOfWatch)
}
