package simcloud_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
)

func TestMachineEnds(t *testing.T) {
	t.Run("start and stop are called in order, for every way to end", func(t *testing.T) {
		var log []string
		o := &simcloud.Options{
			OnStart: func(m nstance.Machine, s nstance.MachineSpec) { log = append(log, "start "+string(s.UserData)) },
			OnStop:  func(m nstance.Machine) { log = append(log, "stop "+string(m.Status)) },
		}
		bubble(t, o, func(t *testing.T, c *simcloud.Cloud) {
			for name, end := range map[string]func(m nstance.Machine) error{
				"delete":  func(m nstance.Machine) error { return c.Delete(t.Context(), m) },
				"kill":    func(m nstance.Machine) error { return c.Kill(m.ID) },
				"reclaim": func(m nstance.Machine) error { return c.Reclaim(m.ID, 0) },
			} {
				log = nil
				s := spec(t, nstance.Spot)
				s.UserData = []byte(name)
				m := create(t, c, s)
				pass(time.Second)
				require.NoError(t, end(m))
				pass(time.Second)
				require.Equal(t, []string{"start " + name, "stop deleting"}, log)
				require.EqualValues(t, "gone", status(t, c, m.ID))
			}
			log = nil
			m := create(t, c, spec(t, ""))
			pass(time.Second)
			require.NoError(t, c.Stop(m.ID, nstance.StatusStopped))
			pass(time.Second)
			require.Equal(t, []string{"start ", "stop stopped"}, log)
			require.Equal(t, nstance.StatusStopped, status(t, c, m.ID))
			require.ErrorIs(t, c.Stop(m.ID, nstance.StatusStopped), nstance.Conflict)
			require.ErrorIs(t, c.Stop(m.ID, nstance.StatusRunning), nstance.Invalid)
		})
	})
	t.Run("a machine deleted while it boots never starts", func(t *testing.T) {
		var starts, stops int
		o := &simcloud.Options{
			Boot:    simcloud.Delay{Min: time.Minute},
			OnStart: func(nstance.Machine, nstance.MachineSpec) { starts++ },
			OnStop:  func(nstance.Machine) { stops++ },
		}
		bubble(t, o, func(t *testing.T, c *simcloud.Cloud) {
			require.NoError(t, c.Delete(t.Context(), create(t, c, spec(t, ""))))
			pass(time.Hour)
			require.Zero(t, starts+stops)
		})
	})
	t.Run("close stops every machine, and ends every call", func(t *testing.T) {
		var stops int
		o := &simcloud.Options{OnStop: func(nstance.Machine) { stops++ }, Latency: simcloud.Delay{Min: time.Hour}}
		bubble(t, o, func(t *testing.T, c *simcloud.Cloud) {
			for range 3 {
				create(t, c, spec(t, ""))
			}
			synctest.Wait()
			hung := make(chan error, 1)
			go func() { _, err := c.Create(t.Context(), spec(t, "")); hung <- err }()
			synctest.Wait()
			c.Close()
			require.Equal(t, 3, stops)
			require.ErrorIs(t, <-hung, nstance.Unavailable)
			_, err := c.Get(t.Context(), spec(t, "").ID)
			require.ErrorIs(t, err, nstance.Unavailable)
			c.Close()
			require.Equal(t, 3, stops)
		})
	})
}

func TestReclaim(t *testing.T) {
	watch := func(t *testing.T, c *simcloud.Cloud, id nstance.InstanceID) <-chan nstance.Notice {
		ch := make(chan nstance.Notice, 16)
		go func() {
			for n, err := range c.Detector(id).Watch(t.Context()) {
				if err == nil {
					ch <- n
				}
			}
		}()
		return ch
	}
	t.Run("is announced to the machine's detector, then executed", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
			m, bystander := create(t, c, spec(t, nstance.Spot)), create(t, c, spec(t, nstance.Spot))
			notices, none := watch(t, c, m.ID), watch(t, c, bystander.ID)
			spot, err := c.Detector(m.ID).Interruptible(t.Context())
			require.NoError(t, err)
			require.True(t, spot)
			require.NoError(t, c.Reclaim(m.ID, 2*time.Minute))
			n := <-notices
			require.Equal(t, nstance.Reclaim, n.Kind)
			require.Equal(t, 2*time.Minute, n.Deadline.Sub(n.DetectedAt))
			pass(2*time.Minute - time.Second)
			require.Equal(t, nstance.StatusRunning, status(t, c, m.ID))
			pass(time.Second)
			require.EqualValues(t, "gone", status(t, c, m.ID))
			require.Equal(t, nstance.StatusRunning, status(t, c, bystander.ID))
			require.Empty(t, none)
		})
	})
	t.Run("can be withdrawn, under the same event ID", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
			m := create(t, c, spec(t, nstance.Spot))
			notices := watch(t, c, m.ID)
			require.ErrorIs(t, c.Withdraw(m.ID), nstance.NotFound)
			require.NoError(t, c.Reclaim(m.ID, time.Minute))
			first := <-notices
			require.NoError(t, c.Withdraw(m.ID))
			second := <-notices
			require.True(t, second.Cancelled)
			require.Equal(t, first.EventID, second.EventID)
			pass(time.Hour)
			require.Equal(t, nstance.StatusRunning, status(t, c, m.ID))
			require.NoError(t, c.Reclaim(m.ID, time.Minute))
			require.NotEqual(t, first.EventID, (<-notices).EventID)
		})
	})
	t.Run("announced again, it happens at the new time", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
			m := create(t, c, spec(t, nstance.Spot))
			require.NoError(t, c.Reclaim(m.ID, time.Minute))
			require.NoError(t, c.Reclaim(m.ID, time.Hour))
			pass(30 * time.Minute)
			require.Equal(t, nstance.StatusRunning, status(t, c, m.ID))
			pass(30 * time.Minute)
			require.EqualValues(t, "gone", status(t, c, m.ID))
		})
	})
	t.Run("a later watch yields notices in force", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
			m := create(t, c, spec(t, nstance.Spot))
			require.NoError(t, c.Reclaim(m.ID, time.Hour))
			require.Equal(t, nstance.Reclaim, (<-watch(t, c, m.ID)).Kind)
		})
	})
	t.Run("a watch after the withdrawal yields nothing", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
			m := create(t, c, spec(t, nstance.Spot))
			require.NoError(t, c.Reclaim(m.ID, time.Hour))
			require.NoError(t, c.Withdraw(m.ID))
			notices := watch(t, c, m.ID)
			synctest.Wait()
			require.Empty(t, notices)
		})
	})
	t.Run("on-demand machines are not reclaimed", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
			m := create(t, c, spec(t, ""))
			require.ErrorIs(t, c.Reclaim(m.ID, time.Hour), nstance.Invalid)
			require.ErrorIs(t, c.Reclaim(spec(t, "").ID, time.Hour), nstance.NotFound)
		})
	})
}

func TestLosses(t *testing.T) {
	t.Run("a lost machine is deleted, and its cause remains readable", func(t *testing.T) {
		o := &simcloud.Options{Boot: simcloud.Delay{Min: time.Minute}, Shutdown: simcloud.Delay{Min: time.Minute}}
		bubble(t, o, func(t *testing.T, c *simcloud.Cloud) {
			m := create(t, c, spec(t, ""))
			require.NoError(t, c.Terminate(m.ID, nstance.LossHost))
			got, err := c.Get(t.Context(), m.ID)
			require.NoError(t, err)
			require.Equal(t, nstance.StatusDeleting, got.Status)
			require.Equal(t, nstance.LossHost, got.Cause)
			require.ErrorIs(t, c.Terminate(m.ID, nstance.LossHost), nstance.Conflict)
			pass(2 * time.Minute)
			_, err = c.Get(t.Context(), m.ID)
			require.ErrorIs(t, err, nstance.NotFound)
			require.Equal(t, nstance.LossHost, nstance.LossCauseOf(err))
			require.ErrorIs(t, c.Terminate(m.ID, nstance.LossHost), nstance.NotFound)
		})
	})
	t.Run("a machine that is powered off from inside stays", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
			m := create(t, c, spec(t, ""))
			require.NoError(t, c.Terminate(m.ID, nstance.LossGuest))
			pass(time.Hour)
			require.Equal(t, nstance.StatusStopped, status(t, c, m.ID))
		})
	})
	t.Run("reclaims and deletes have their causes, and a kill has none", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, c *simcloud.Cloud) {
			for cause, end := range map[nstance.LossCause]func(m nstance.Machine) error{
				nstance.LossReclaimed: func(m nstance.Machine) error { return c.Reclaim(m.ID, 0) },
				nstance.LossRequested: func(m nstance.Machine) error { return c.Delete(t.Context(), m) },
				"":                    func(m nstance.Machine) error { return c.Kill(m.ID) },
			} {
				m := create(t, c, spec(t, nstance.Spot))
				require.NoError(t, end(m))
				pass(time.Second)
				_, err := c.Get(t.Context(), m.ID)
				require.ErrorIs(t, err, nstance.NotFound)
				require.Equal(t, cause, nstance.LossCauseOf(err))
			}
		})
	})
	t.Run("n machines of a pool are accepted and never start", func(t *testing.T) {
		starts := 0
		o := &simcloud.Options{OnStart: func(nstance.Machine, nstance.MachineSpec) { starts++ }}
		bubble(t, o, func(t *testing.T, c *simcloud.Cloud) {
			pool := simcloud.Pool{Market: nstance.Spot}
			c.FailStarts(pool, nstance.LossCapacity, 2)
			for range 4 {
				create(t, c, spec(t, nstance.Spot))
				create(t, c, spec(t, nstance.OnDemand))
			}
			pass(time.Second)
			require.Equal(t, 6, starts)
			c.FailStarts(pool, nstance.LossCapacity, 2)
			c.FailStarts(pool, "", 0)
			create(t, c, spec(t, nstance.Spot))
			pass(time.Second)
			require.Equal(t, 7, starts)
		})
	})
}

// TestReclaimPool: machines of one pool are reclaimed together, and no others.
func TestReclaimPool(t *testing.T) {
	o := &simcloud.Options{Zones: map[string]string{"a": "zone-1", "b": "zone-2"}}
	bubble(t, o, func(t *testing.T, c *simcloud.Cloud) {
		pools := map[nstance.InstanceID]string{}
		for _, subnet := range []string{"a", "b"} {
			for _, market := range []nstance.MarketType{nstance.Spot, nstance.OnDemand} {
				for range 5 {
					s := spec(t, market)
					s.Subnet = subnet
					pools[create(t, c, s).ID] = subnet + "/" + string(market)
				}
			}
		}
		zone := simcloud.Pool{Zone: "zone-1"}
		for _, fraction := range []float64{-0.1, 1.1, math.NaN()} {
			_, err := c.ReclaimPool(zone, fraction, time.Minute)
			require.ErrorIs(t, err, nstance.Invalid)
		}
		none, err := c.ReclaimPool(zone, 0, time.Minute)
		require.NoError(t, err)
		require.Empty(t, none)
		some, err := c.ReclaimPool(zone, 0.5, time.Minute)
		require.NoError(t, err)
		require.Len(t, some, 3, "rounded up")
		rest, err := c.ReclaimPool(zone, 1, 2*time.Minute)
		require.NoError(t, err)
		require.Len(t, rest, 2, "those that were announced before stay as they were")
		for _, id := range append(some, rest...) {
			require.Equal(t, "a/spot", pools[id])
		}
		pass(time.Minute)
		require.Len(t, c.Machines(), 17)
		pass(time.Minute)
		require.Len(t, c.Machines(), 15)
	})
}
