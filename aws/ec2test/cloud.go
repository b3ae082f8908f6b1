package ec2test

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/netip"
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
	o Options

	mu           sync.Mutex
	closed       bool
	machines     map[string]*machine
	interfaces   map[string]*netInterface
	spotRequests map[string]*spotRequest
	priceHistory []priceChange
	scores       map[string]int // by zone
	scored       []string       // configurations that were asked about
	tokens       map[tokenKey]*tokenUse
	targets      map[string]map[target]*registration // by target group
	taken        map[string]map[netip.Addr]string    // interfaces, by subnet and address
	nextFree     map[string]netip.Addr               // where the search in a subnet goes on
	shifts       shifts
	bootFailures []StateReason
	queues       map[string]*queue // by name
	closing      chan struct{}     // closed with the cloud
	timers       *testcloud.Timers
	running      sync.WaitGroup // of what starts and ends guests
}

// New returns a cloud without machines. Close it.
func New(o *Options) *Cloud {
	c := &Cloud{
		machines: map[string]*machine{}, interfaces: map[string]*netInterface{}, spotRequests: map[string]*spotRequest{},
		tokens: map[tokenKey]*tokenUse{}, targets: map[string]map[target]*registration{}, taken: map[string]map[netip.Addr]string{}, nextFree: map[string]netip.Addr{},
		queues: map[string]*queue{}, closing: make(chan struct{}),
	}
	c.timers = testcloud.NewTimers(&c.mu)
	if o != nil {
		c.o = *o
	}
	c.o.setDefaults()
	c.priceHistory = c.firstPrices()
	for _, name := range c.o.Catalog.Queues {
		c.queues[name] = newQueue()
	}
	return c
}

// Close ends all machines and waits for them.
func (c *Cloud) Close() error {
	c.mu.Lock()
	if !c.closed {
		close(c.closing)
	}
	c.closed = true
	c.timers.Stop()
	for _, m := range c.machines {
		c.killGuest(m)
	}
	c.mu.Unlock()
	c.timers.Wait()
	c.running.Wait()
	return nil
}

// Machines returns every machine that is not terminated.
func (c *Cloud) Machines() []testcloud.Machine {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []testcloud.Machine
	for _, m := range c.machines {
		if m.state == terminated {
			continue
		}
		out = append(out, testcloud.Machine{
			ID: c.instanceID(m), Handle: m.id, Zone: m.zone, Type: m.kind.Name, Spot: m.spot != nil, Status: m.state.status(),
		})
	}
	return out
}

func (c *Cloud) instanceID(m *machine) nstance.InstanceID {
	if c.o.IDTag == "" {
		return ""
	}
	return nstance.InstanceID(m.tags[c.o.IDTag])
}

// Reclaim interrupts a spot machine: its metadata service and EventBridge announce
// it, as Options say, and when the notice is over the machine is terminated with
// Server.SpotInstanceTermination. AWS gives two minutes.
func (c *Cloud) Reclaim(handle string, notice time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := c.living(handle)
	if err != nil {
		return err
	}
	if m.spot == nil {
		return nstance.Errorf(nstance.Invalid, "%s is not spot capacity", handle)
	}
	if m.guest != nil && !c.o.NoMetadataNotices {
		m.guest.Announce(m.spot.behavior, time.Now().Add(notice))
	}
	c.publishWarning(m)
	m.spot.setStatus("marked-for-termination", "Your Spot Instance is marked for termination.")
	c.timers.After(notice, func() {
		if m.state == terminated || m.state == shuttingDown {
			return
		}
		m.spot.close("instance-terminated-by-price", "Your instance was terminated because there is no available Spot capacity.")
		c.terminate(m, spotTermination)
	})
	return nil
}

// Fail ends a machine as a broken host does.
func (c *Cloud) Fail(handle string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, err := c.living(handle)
	if err != nil {
		return err
	}
	c.terminate(m, internalError)
	c.setTerminated(m)
	return nil
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
	c.bootFailures = append(c.bootFailures, reasons...)
}

// living returns the machine with that handle. It needs c.mu.
func (c *Cloud) living(handle string) (*machine, error) {
	m := c.machines[handle]
	if m == nil || m.state == terminated {
		return nil, nstance.Errorf(nstance.NotFound, "no machine %s", handle)
	}
	return m, nil
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
