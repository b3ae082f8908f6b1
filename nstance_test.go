package nstance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

func TestStates(t *testing.T) {
	all := []nstance.State{
		nstance.Pending, nstance.Provisioning, nstance.Booting, nstance.Ready, nstance.Draining, nstance.Deleting,
		nstance.Deleted, nstance.Failed, nstance.Parking, nstance.Parked, nstance.Waking, nstance.Gone,
	}
	t.Run("leaving members", func(t *testing.T) {
		var leaving []nstance.State
		for _, s := range all {
			if s.Leaving() {
				leaving = append(leaving, s)
			}
		}
		require.Equal(t, []nstance.State{nstance.Draining, nstance.Deleting, nstance.Deleted, nstance.Failed}, leaving)
	})
}

func TestErrors(t *testing.T) {
	t.Run("a code decides, through added context", func(t *testing.T) {
		err := fmt.Errorf("create web: %w", nstance.Errorf(nstance.Capacity, "sold out: %w", io.EOF))
		require.ErrorIs(t, err, nstance.Capacity)
		require.NotErrorIs(t, err, nstance.Quota)
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, nstance.Capacity, nstance.CodeOf(err))
		require.Equal(t, "create web: sold out: EOF", err.Error())
	})
	t.Run("field and remedy are named", func(t *testing.T) {
		err := nstance.FieldError("size", "use 0 or more", "%d is negative", -1)
		require.EqualError(t, err, "size: -1 is negative (use 0 or more)")
		require.ErrorIs(t, err, nstance.Invalid)
	})
	t.Run("codes of other errors", func(t *testing.T) {
		require.Equal(t, nstance.Code(""), nstance.CodeOf(nil))
		require.Equal(t, nstance.Internal, nstance.CodeOf(errors.New("no code")))
		require.Equal(t, nstance.Unavailable, nstance.CodeOf(context.DeadlineExceeded))
		require.Equal(t, nstance.Throttled, nstance.CodeOf(fmt.Errorf("list: %w", nstance.Throttled)))
	})
}

func TestReportJSON(t *testing.T) {
	deadline := time.Date(2024, 1, 1, 12, 0, 0, 0, time.UTC)
	got, err := json.Marshal(nstance.Report{
		Version: "1.0.0", InstanceID: knownID, Timestamp: deadline.Add(-2 * time.Minute),
		TerminationNotice: &nstance.TerminationNotice{Action: "terminate", Deadline: deadline},
		OneMinute:         nstance.Usage{CPUPercent: 15.2, MemoryPercent: 45.8},
	})
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(got, &fields))
	require.Equal(t, "1.0.0", fields["version"])
	require.Equal(t, "2024-01-01T11:58:00Z", fields["timestamp"])
	require.Equal(t, map[string]any{"action": "terminate", "deadline": "2024-01-01T12:00:00Z"}, fields["termination_notice"])
	require.InDelta(t, 15.2, fields["one_minute"].(map[string]any)["cpu_usage"], 0)
	require.InDelta(t, 45.8, fields["one_minute"].(map[string]any)["memory_usage"], 0)

	t.Run("a notice without deadline has none", func(t *testing.T) {
		got, err := json.Marshal(nstance.TerminationNotice{Action: "terminate"})
		require.NoError(t, err)
		require.JSONEq(t, `{"action":"terminate"}`, string(got))
	})
}

func TestCount(t *testing.T) {
	require.Equal(t, 3, nstance.Count{N: 3}.Of(100))
	require.Equal(t, 1, nstance.Count{N: 1, Percent: true}.Of(3), "rounds up")
	require.Equal(t, 0, nstance.Count{N: 0, Percent: true}.Of(3), "0 only where it is written")
	require.Equal(t, 10, nstance.Count{N: 10, Percent: true}.Of(100))
}

func TestCountText(t *testing.T) {
	for text, want := range map[string]nstance.Count{`"3"`: {N: 3}, `"25%"`: {N: 25, Percent: true}, `"0%"`: {Percent: true}} {
		var got nstance.Count
		require.NoError(t, json.Unmarshal([]byte(text), &got))
		require.Equal(t, want, got)
		back, err := json.Marshal(got)
		require.NoError(t, err)
		require.Equal(t, text, string(back))
	}
	for _, text := range []string{"", "%", "-1", "1.5", "101%", "many"} {
		require.ErrorIs(t, new(nstance.Count).UnmarshalText([]byte(text)), nstance.Invalid, text)
	}
}

func TestOwner(t *testing.T) {
	machine := nstance.Owner{Installation: "i1", Cluster: "c", Shard: "s", Tenant: "t"}
	require.True(t, nstance.Owner{Installation: "i1", Cluster: "c", Shard: "s"}.Owns(machine), "no tenant: every tenant")
	require.True(t, machine.Owns(machine))
	for _, other := range []nstance.Owner{
		{Installation: "i2", Cluster: "c", Shard: "s"}, {Installation: "i1", Cluster: "d", Shard: "s"},
		{Installation: "i1", Cluster: "c", Shard: "u"}, {Installation: "i1", Cluster: "c", Shard: "s", Tenant: "u"},
	} {
		require.False(t, other.Owns(machine), "%+v", other)
	}
}

func TestNoticeKinds(t *testing.T) {
	require.True(t, nstance.Reclaim.Dooms())
	require.False(t, nstance.Rebalance.Dooms())
	require.False(t, nstance.Maintenance.Dooms())
}

func TestMachineStatusDead(t *testing.T) {
	for status, dead := range map[nstance.MachineStatus]bool{
		nstance.StatusUnknown: false, nstance.StatusPending: false, nstance.StatusRunning: false,
		nstance.StatusStopping: true, nstance.StatusStopped: true, nstance.StatusDeleting: true, nstance.StatusFailed: true,
	} {
		require.Equal(t, dead, status.Dead(), status)
	}
}
