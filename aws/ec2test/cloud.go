package ec2test

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/testcloud"
)

var (
	_ testcloud.Cloud = (*Cloud)(nil)
	_ http.Handler    = (*Cloud)(nil)
)

// A Cloud is one account in one region. It is an http.Handler for its API, and
// safe for concurrent use.
type Cloud struct {
	o  *Options
	mu sync.Mutex // guards the options' delays and all parts

	fleet    *fleet
	launcher *launcher
	spot     *spotMarket
	scores   *placementScores
	queues   *messageQueues
	bus      *eventBus
	shifts   shifts
	gateway  *gateway
}

// New returns a cloud without machines. Close it.
func New(o *Options) *Cloud {
	c := &Cloud{o: &Options{}}
	if o != nil {
		*c.o = *o
	}
	c.o.setDefaults()
	timers, network := testcloud.NewTimers(&c.mu), newNetwork(c.o)
	c.spot, c.scores, c.queues = newSpotMarket(c.o), &placementScores{o: c.o, byZone: map[string]int{}}, newMessageQueues(c.o, &c.mu)
	c.bus = &eventBus{o: c.o, queues: c.queues}
	c.fleet = &fleet{o: c.o, mu: &c.mu, timers: timers, network: network, spot: c.spot, machines: map[string]*machine{}}
	c.launcher = &launcher{o: c.o, fleet: c.fleet, tokens: &clientTokens{o: c.o, timers: timers, uses: map[tokenKey]*tokenUse{}}}
	balancer := &balancer{o: c.o, timers: timers, fleet: c.fleet, groups: map[string]map[target]*registration{}}
	c.fleet.ended = balancer.remove
	inventory := &inventory{o: c.o, network: network}
	c.gateway = &gateway{o: c.o, mu: &c.mu, shifts: &c.shifts, actions: c.actions(inventory, network, balancer), jsonActions: c.jsonActions(inventory)}
	return c
}

// Close ends all machines and waits for them.
func (c *Cloud) Close() error {
	c.mu.Lock()
	if !c.fleet.closed {
		close(c.queues.closing)
	}
	c.fleet.close()
	c.mu.Unlock()
	c.fleet.timers.Wait()
	c.fleet.running.Wait()
	return nil
}

// withMachine calls fn with the machine of that handle, under the lock.
func (c *Cloud) withMachine(handle string, fn func(m *machine) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.fleet.machines[handle]
	if m == nil || m.state == terminated {
		return nstance.Errorf(nstance.NotFound, "no machine %s", handle)
	}
	return fn(m)
}

// Machines returns every machine that is not terminated.
func (c *Cloud) Machines() []testcloud.Machine {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []testcloud.Machine
	for _, m := range c.fleet.machines {
		if m.state == terminated {
			continue
		}
		out = append(out, testcloud.Machine{
			ID: m.instanceID(c.o), Handle: m.id, Zone: m.zone, Type: m.kind.Name, Spot: m.spot != nil, Status: m.state.status(),
		})
	}
	return out
}

// Reclaim interrupts a spot machine: its metadata service and EventBridge announce
// it, as Options say, and when the notice is over the machine is terminated with
// Server.SpotInstanceTermination. AWS gives two minutes.
func (c *Cloud) Reclaim(handle string, notice time.Duration) error {
	return c.withMachine(handle, func(m *machine) error {
		if m.spot == nil {
			return nstance.Errorf(nstance.Invalid, "%s is not spot capacity", handle)
		}
		if m.guest != nil && !c.o.NoMetadataNotices {
			m.guest.Announce(m.spot.behavior, time.Now().Add(notice))
		}
		c.bus.publishWarning(m)
		c.fleet.reclaim(m, notice)
		return nil
	})
}

// Fail ends a machine as a broken host does.
func (c *Cloud) Fail(handle string) error {
	return c.withMachine(handle, func(m *machine) error {
		c.fleet.fail(m, internalError)
		return nil
	})
}

// SetDelays changes how long the cloud takes for what is asked of it from now on.
func (c *Cloud) SetDelays(d testcloud.Delays) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.o.Delays = d
}

// FailNextBoots has the next machines that are accepted end while they are
// pending, one for each reason.
func (c *Cloud) FailNextBoots(reasons ...StateReason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.launcher.bootFailures = append(c.launcher.bootFailures, reasons...)
}

// newID returns an ID in EC2's long format: a prefix and 17 hexadecimal digits.
func newID(prefix string) string {
	var b [9]byte
	_, _ = rand.Read(b[:])
	return prefix + "-0" + hex.EncodeToString(b[:])[:16]
}

func newRequestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func itoa(n int) string { return strconv.Itoa(n) }
