//go:build linux

package dev_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/dev"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
)

func TestFailover(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	var out screen
	err := dev.Run(t.Context(), &dev.Options{Temp: tmp, Scenario: dev.Failover, ElectionTTL: 3 * time.Second, JSON: true, Out: &out, HTTP: "127.0.0.1:0"})
	require.NoError(t, err, out.String())
	s := lastLine(t, out.String())
	require.True(t, s.OK)
	require.Positive(t, *s.FailoverMS)
	nothingLost(t, s)
	require.Greater(t, *s.DrainedMS, *s.FailoverMS)
	require.NotNil(t, s.ReplacementReadyMS)
	require.NotNil(t, s.DeletedMS)
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left, "a temporary directory stays behind")
}

func nothingLost(t *testing.T, s dev.Summary) {
	t.Helper()
	require.True(t, s.OK)
	for name, n := range map[string]*int{"leaked": s.Leaked, "duplicated": s.Duplicated, "lost": s.Lost} {
		require.NotNil(t, n, name)
		require.Zero(t, *n, name)
	}
}

func TestServerThatEnds(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	var out screen
	err := dev.Run(t.Context(), &dev.Options{Temp: tmp, Scenario: dev.Failover, Server: []string{"/bin/false"}, JSON: true, Out: &out, HTTP: "127.0.0.1:0"})
	var f *dev.Failure
	require.ErrorAs(t, err, &f)
	require.Equal(t, "start", f.Stage)
	require.ErrorContains(t, err, "has ended: exit status 1")
	require.False(t, lastLine(t, out.String()).OK)
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestGate(t *testing.T) {
	cloud := simcloud.New(nil)
	defer cloud.Close()
	p, g := dev.NewGate(cloud)
	require.NotNil(t, provider.AbilitiesOf(p).Parking, "it hides no ability to park")
	spec := func() nstance.MachineSpec {
		now := time.Now().UTC()
		id, err := nstance.NewInstanceID("web", now)
		require.NoError(t, err)
		return nstance.MachineSpec{
			ID: id, CreatedAt: now, Token: string(id),
			Owner: nstance.Owner{Installation: "i", Cluster: "c", Shard: "s", Tenant: "t"},
		}
	}
	_, err := p.Create(t.Context(), spec())
	require.NoError(t, err, "an open gate")
	dev.Shut(g)
	require.Empty(t, dev.Count(g), "that was before")

	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 2)
	specs := []nstance.MachineSpec{spec(), spec()}
	for i, s := range specs {
		go func() {
			_, err := p.Create(ctx, s)
			failed <- err
		}()
		require.Eventually(t, func() bool { done, undone := dev.Hanging(g); return done+undone == i+1 }, time.Minute, time.Millisecond)
	}
	done, undone := dev.Hanging(g)
	require.Equal(t, [2]int{1, 1}, [2]int{done, undone})
	_, err = cloud.Get(t.Context(), specs[0].ID)
	require.NoError(t, err, "the first was carried out")
	_, err = cloud.Get(t.Context(), specs[1].ID)
	require.ErrorIs(t, err, nstance.NotFound, "the second was not")
	dev.Unshut(g)
	cancel()
	require.ErrorIs(t, errors.Join(<-failed, <-failed), nstance.Ambiguous)

	for _, s := range specs { // as the other server does
		_, err := p.Create(t.Context(), s)
		require.NoError(t, err)
	}
	require.Equal(t, map[nstance.InstanceID]int{specs[0].ID: 1, specs[1].ID: 1}, dev.Count(g))
	require.NoError(t, cloud.Delete(t.Context(), nstance.Machine{ID: specs[0].ID, Owner: specs[0].Owner}))
}

func TestWeigh(t *testing.T) {
	type ids = []nstance.InstanceID
	type by = map[nstance.InstanceID]int
	for _, tt := range []struct {
		name              string
		records, machines ids
		running, made     by
		want              [3]int // leaked, duplicated, lost
	}{
		{"all well", ids{"a", "b"}, ids{"a", "b"}, by{"a": 1, "b": 2}, by{"b": 1}, [3]int{}},
		{"a machine without a record", ids{"a", "b"}, ids{"a", "b", "c"}, by{"a": 1, "b": 2, "c": 3}, by{"b": 1}, [3]int{1, 0, 0}},
		{"a process that the cloud does not know", ids{"a", "b"}, ids{"a", "b"}, by{"a": 1, "b": 2, "c": 3}, by{"b": 1}, [3]int{1, 0, 0}},
		{"two machines of one instance", ids{"a", "b"}, ids{"a", "b", "b"}, by{"a": 1, "b": 2}, by{"b": 1}, [3]int{0, 1, 0}},
		{"two machines one after the other", ids{"a", "b"}, ids{"a", "b"}, by{"a": 1, "b": 2}, by{"b": 2}, [3]int{0, 1, 0}},
		{"two instances where one was needed", ids{"a", "b"}, ids{"a", "b"}, by{"a": 1, "b": 2}, by{"b": 1, "c": 0}, [3]int{0, 1, 0}},
		{"a record without a machine", ids{"a", "b"}, ids{"a"}, by{"a": 1}, by{"b": 0}, [3]int{0, 0, 1}},
		{"a record without a process", ids{"a", "b"}, ids{"a", "b"}, by{"a": 1}, by{"b": 1}, [3]int{0, 0, 1}},
		{"an instance without a record", ids{"a"}, ids{"a"}, by{"a": 1}, by{"b": 1}, [3]int{0, 0, 1}},
		{"a member that is not the same any more", ids{"a", "b"}, ids{"a", "b"}, by{"a": 9, "b": 2}, by{"b": 1}, [3]int{0, 0, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, dev.Weigh(tt.records, tt.machines, tt.running, tt.made, 2, 1, by{"a": 1}))
		})
	}
	t.Run("any number of new instances", func(t *testing.T) {
		many := by{"a": 1, "b": 1, "c": 1, "d": 0}
		require.Zero(t, dev.Weigh(ids{"a", "b"}, ids{"a", "b"}, by{"a": 1, "b": 2}, many, 2, dev.AnyNumber, nil))
		many["d"] = 2
		require.Equal(t, [3]int{0, 1, 0}, dev.Weigh(ids{"a", "b"}, ids{"a", "b"}, by{"a": 1, "b": 2}, many, 2, dev.AnyNumber, nil))
	})
}
