package simcloud_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// parkable creates a machine that can be parked, and lets it boot.
func parkable(t *testing.T, c *simcloud.Cloud) nstance.Machine {
	s := spec(t, nstance.OnDemand)
	s.Park = nstance.ParkStopped
	m := create(t, c, s)
	pass(time.Second)
	return m
}

// TestParking: a parked machine has no agent and no capacity, keeps its address, and takes
// its time.
func TestParking(t *testing.T) {
	var starts, stops int
	o := func() *simcloud.Options {
		starts, stops = 0, 0
		return &simcloud.Options{
			Park: simcloud.Delay{Min: time.Minute}, Wake: simcloud.Delay{Min: 10 * time.Second}, Subnets: map[string]int{"": 5},
			Limits:  map[simcloud.Pool]int{{Market: nstance.OnDemand}: 1},
			OnStart: func(nstance.Machine, nstance.MachineSpec) { starts++ },
			OnStop:  func(nstance.Machine) { stops++ },
		}
	}
	bubble(t, o(), func(t *testing.T, c *simcloud.Cloud) {
		m := parkable(t, c)
		require.NoError(t, c.Park(t.Context(), m, nstance.ParkStopped))
		pass(59 * time.Second)
		require.Equal(t, nstance.StatusStopping, status(t, c, m.ID))
		require.ErrorIs(t, c.Wake(t.Context(), m), nstance.Conflict, "not yet")
		pass(2 * time.Second)
		require.Equal(t, nstance.StatusStopped, status(t, c, m.ID))
		require.Equal(t, []int{1, 1}, []int{starts, stops})
		free, err := c.FreeAddresses(t.Context(), []string{""})
		require.NoError(t, err)
		require.Equal(t, 4, free[""], "it keeps its address")

		other := create(t, c, spec(t, nstance.OnDemand)) // has its capacity
		pass(time.Second)
		require.ErrorIs(t, c.Wake(t.Context(), m), nstance.Capacity)
		require.NoError(t, c.Delete(t.Context(), other))
		pass(time.Second)
		require.NoError(t, c.Wake(t.Context(), m))
		require.NoError(t, c.Wake(t.Context(), m), "again")
		pass(9 * time.Second)
		require.Equal(t, nstance.StatusPending, status(t, c, m.ID))
		pass(2 * time.Second)
		require.Equal(t, nstance.StatusRunning, status(t, c, m.ID))
		require.Equal(t, 3, starts, "its agent runs again")
	})
	t.Run("deleting a parked machine frees its address once", func(t *testing.T) {
		bubble(t, o(), func(t *testing.T, c *simcloud.Cloud) {
			m := parkable(t, c)
			require.NoError(t, c.Park(t.Context(), m, nstance.ParkStopped))
			pass(2 * time.Minute)
			require.NoError(t, c.Delete(t.Context(), m))
			pass(time.Minute)
			require.EqualValues(t, "gone", status(t, c, m.ID))
			free, err := c.FreeAddresses(t.Context(), []string{""})
			require.NoError(t, err)
			require.Equal(t, 5, free[""])
			require.Equal(t, 1, stops)
			parkable(t, c) // the capacity is there, once
			_, err = c.Create(t.Context(), spec(t, nstance.OnDemand))
			require.ErrorIs(t, err, nstance.Capacity)
		})
	})
	t.Run("a woken machine that fails to start ends", func(t *testing.T) {
		bubble(t, o(), func(t *testing.T, c *simcloud.Cloud) {
			m := parkable(t, c)
			require.NoError(t, c.Park(t.Context(), m, nstance.ParkStopped))
			pass(2 * time.Minute)
			c.FailStarts(simcloud.Pool{}, nstance.LossHost, 1)
			require.NoError(t, c.Wake(t.Context(), m))
			pass(time.Minute)
			_, err := c.Get(t.Context(), m.ID)
			require.ErrorIs(t, err, nstance.NotFound)
			require.Equal(t, nstance.LossHost, nstance.LossCauseOf(err))
		})
	})
}

// TestParkingRefused: spot machines, and those that were not created for it, cannot be
// parked.
func TestParkingRefused(t *testing.T) {
	bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
		s := spec(t, nstance.Spot)
		s.Park = nstance.ParkStopped
		_, err := c.Create(t.Context(), s)
		require.ErrorIs(t, err, nstance.Invalid)
		m := create(t, c, spec(t, nstance.OnDemand))
		require.ErrorIs(t, c.Park(t.Context(), m, nstance.ParkStopped), nstance.Invalid)
		require.ErrorIs(t, c.Park(t.Context(), parkable(t, c), nstance.ParkHibernated), nstance.Invalid)
	})
}
