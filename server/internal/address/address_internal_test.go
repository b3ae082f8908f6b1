package address

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/provider/simcloud"
)

const leaderAddress = "10.0.0.100"

// A keeping is a keeper at work, over a simulated cloud, in virtual time.
type keeping struct {
	*Keeper
	cloud  *simcloud.Cloud
	over   error      // what Check returns
	better bool       // a standby has never failed
	ended  chan error // what Run returned
	began  time.Time
	gone   time.Duration // from began until Run returned

	mu     sync.Mutex
	failed int
	alarms []string
}

// keep has a keeper of machine a at work.
func keep(t *testing.T, cloud *simcloud.Cloud, change func(*keeping)) *keeping {
	k := &keeping{cloud: cloud, ended: make(chan error, 1), began: time.Now()}
	k.Keeper = New(cloud.At("a").(nstance.AddressMover), Options{
		Address: leaderAddress, TTL: 6 * time.Second, Timeout: func() time.Duration { return 30 * time.Second }, Log: slog.New(slog.DiscardHandler),
		Check: func() error { return k.over }, Relief: func() bool { return k.better },
		Failed: func() { k.mu.Lock(); k.failed++; k.mu.Unlock() },
		Alarm:  func(reason string, _ error) { k.mu.Lock(); k.alarms = append(k.alarms, reason); k.mu.Unlock() },
	})
	if change != nil {
		change(k)
	}
	go func() { err := k.Run(t.Context()); k.gone = time.Since(k.began); k.ended <- err }()
	return k
}

func (k *keeping) calls(op simcloud.Op) (n int) {
	for _, c := range k.cloud.Calls() {
		if c.Op == op {
			n++
		}
	}
	return n
}

func (k *keeping) here() bool {
	here, err := k.cloud.At("a").(nstance.AddressMover).HoldsAddress(context.Background(), leaderAddress)
	return here && err == nil
}

// addressTest runs one promise with a cloud, in virtual time.
func addressTest(t *testing.T, name string, f func(t *testing.T, c *simcloud.Cloud)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := simcloud.New(nil)
			defer c.Close()
			f(t, c)
		})
	})
}

// wait lets time pass, and everything that is due then happen.
func wait(t *testing.T, d time.Duration) {
	sleep.For(t.Context(), d)
	synctest.Wait()
}

func TestAddressKeeper(t *testing.T) {
	addressTest(t, "takes the address, and looks every ttl", func(t *testing.T, c *simcloud.Cloud) {
		k := keep(t, c, nil)
		wait(t, time.Minute+time.Second)
		require.Equal(t, 1, k.calls(simcloud.OpTakeAddress))
		require.Equal(t, 1+10, k.calls("holds_address"))
		require.True(t, k.here())
		require.Empty(t, k.alarms)
		require.Empty(t, k.Problems())
	})
	addressTest(t, "takes it again when it has moved, within a ttl", func(t *testing.T, c *simcloud.Cloud) {
		k := keep(t, c, nil)
		wait(t, 20*time.Second)
		require.NoError(t, c.At("b").(nstance.AddressMover).TakeAddress(t.Context(), leaderAddress)) // a deposed leader, late
		wait(t, 6*time.Second)
		require.True(t, k.here())
		require.Len(t, k.alarms, 1)
		require.Zero(t, k.failed)
	})
	addressTest(t, "does nothing about what it cannot read, and says so", func(t *testing.T, c *simcloud.Cloud) {
		k := keep(t, c, nil)
		wait(t, time.Second)
		c.Inject(simcloud.Fault{Op: "holds_address", Times: -1})
		wait(t, time.Minute)
		require.Equal(t, 1, k.calls(simcloud.OpTakeAddress))
		require.Len(t, k.Problems(), 1)
		require.Zero(t, k.failed)
		c.ClearFaults()
		wait(t, 10*time.Second)
		require.Empty(t, k.Problems())
	})
	addressTest(t, "tries again with backoff, alarms once, and is well when it has it", func(t *testing.T, c *simcloud.Cloud) {
		c.Inject(simcloud.Fault{Op: simcloud.OpTakeAddress, Times: -1, Code: nstance.Denied})
		k := keep(t, c, nil)
		wait(t, time.Minute)
		require.Equal(t, 14, k.calls(simcloud.OpTakeAddress), "at 0, 0.25, 0.75, 1.75, 3.75, 7.75, and every 6 s")
		require.Len(t, k.alarms, 1)
		require.Contains(t, k.Problems()[0], "injected fault")
		require.Equal(t, 14, k.failed)
		c.ClearFaults()
		wait(t, 6*time.Second)
		require.True(t, k.here())
		require.Empty(t, k.Problems())
	})
	addressTest(t, "gives up for a standby that has never failed, after a ttl", func(t *testing.T, c *simcloud.Cloud) {
		c.Inject(simcloud.Fault{Op: simcloud.OpTakeAddress, Times: -1, Code: nstance.Denied})
		k := keep(t, c, func(k *keeping) { k.better = true })
		err := <-k.ended
		require.ErrorIs(t, err, nstance.Denied)
		require.ErrorContains(t, err, leaderAddress)
		require.Equal(t, 7750*time.Millisecond, k.gone)
		require.Len(t, k.alarms, 2)
	})
	addressTest(t, "gives up after three attempts, however long each takes", func(t *testing.T, c *simcloud.Cloud) {
		c.Inject(simcloud.Fault{Op: simcloud.OpTakeAddress, Times: -1})
		k := keep(t, c, func(k *keeping) { k.better = true; k.TTL = time.Millisecond })
		require.Error(t, <-k.ended)
		require.Equal(t, 3, k.calls(simcloud.OpTakeAddress))
	})
	addressTest(t, "counts an accepted move that is not carried out as a failure", func(t *testing.T, c *simcloud.Cloud) {
		k := keep(t, c, func(k *keeping) { k.better = true; k.mover = forgetful{c.At("a").(nstance.AddressMover)} })
		err := <-k.ended
		require.ErrorContains(t, err, "the address is not here after 6s")
		require.Equal(t, 3, k.failed)
	})
	addressTest(t, "waits for a slow cloud without alarm", func(t *testing.T, c *simcloud.Cloud) {
		c.Inject(simcloud.Fault{Op: simcloud.OpTakeAddress, Delay: 3 * time.Second})
		k := keep(t, c, func(k *keeping) { k.mover = accepting{c.At("a").(nstance.AddressMover)} })
		wait(t, 7*time.Second)
		require.True(t, k.here())
		require.Empty(t, k.alarms)
	})
	addressTest(t, "takes nothing once the term is over", func(t *testing.T, c *simcloud.Cloud) {
		k := keep(t, c, func(k *keeping) { k.over = nstance.Unavailable })
		wait(t, time.Minute)
		require.Zero(t, k.calls(simcloud.OpTakeAddress))
	})
}

// forgetful accepts every move and carries out none.
type forgetful struct{ nstance.AddressMover }

func (forgetful) TakeAddress(context.Context, string) error { return nil }

// accepting calls accepted what has no answer.
type accepting struct{ nstance.AddressMover }

func (a accepting) TakeAddress(ctx context.Context, address string) error {
	_ = a.AddressMover.TakeAddress(ctx, address)
	return nil
}
