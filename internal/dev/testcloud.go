package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/local"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// A Cloud is a cloud's test server for single-machine mode: it speaks the cloud's
// own protocol, the servers use the cloud's real provider against it, and its
// machines are real agents with the cloud's own metadata service.
type Cloud struct {
	// Kind is the provider.
	Kind provider.Kind

	// Protocol of the machines' metadata services.
	Protocol string

	// New returns the cloud, whose machines h runs.
	New func(h testcloud.Hypervisor) (TestServer, error)

	// Env is what the provider finds in its environment: credentials that the
	// cloud accepts.
	Env map[string]string

	// Prepare makes what must be there before the first server, such as the
	// machines that servers run on. Nil: nothing.
	Prepare func(ctx context.Context, api API) error

	// Maintain begins maintenance of the hosts of machines, which the cloud announces
	// for every machine there. Nil: the cloud takes spot machines back, each alone.
	Maintain func(machines []testcloud.Machine) error

	// Holder returns where the leader address is, by the cloud's API. Fails with
	// Unavailable when no server has it. Nil: there is no such address.
	Holder func(ctx context.Context, api API) (Holder, error)

	// Consistency is how long the cloud may not know its own new machine, instead
	// of what the real one takes.
	Consistency time.Duration

	// Configure adds what a server's configuration says of the cloud to the
	// objects of the file itself, its shard and its template. n is the number of
	// the server.
	Configure func(file, shard, template map[string]any, api API, n int)

	// TLS has the API served over TLS, as clouds do whose clients insist on it.
	TLS bool

	// Creates says which requests ask for a machine.
	Creates func(r *http.Request, body []byte) bool
}

// An API is where a test cloud's API is.
type API struct {
	Endpoint string // base URL
	CAFile   string // with the certificate of the API, if that is served over TLS
	Dir      string // for files of credentials
}

// A Holder has the leader address.
type Holder struct {
	Address string
	Server  int    // number of the server
	At      string // network interface or machine of that server, as the cloud names it
}

// A TestServer is a test cloud with its API.
type TestServer interface {
	testcloud.Cloud
	http.Handler
}

// A testCloud is a cloud's test server on a socket of its own.
type testCloud struct {
	Cloud
	o      *Options
	home   *home
	guests *guests
	server TestServer
	http   *http.Server
	served chan struct{} // closed when the socket is
	api    API
	ends   func() error // of the provider in this process; nil: there is none
}

func newTestCloud(ctx context.Context, o *Options, h *home) (*testCloud, error) {
	o.Server = append(slices.Clone(o.Server), "--consistency", o.Cloud.Consistency.String())
	c := &testCloud{Cloud: *o.Cloud, o: o, home: h, guests: &guests{gate: newGate()}, served: make(chan struct{})}
	c.Kind.Consistency = c.Consistency
	var err error
	if c.guests.local, err = local.New(&local.Options{Command: o.Machine, Dir: h.machinesDir(), Protocol: c.Protocol, Stderr: h.machines, Log: o.Log}); err != nil {
		return nil, err
	}
	if c.server, err = c.New(c.guests); err != nil {
		return nil, errors.Join(err, c.guests.local.Close())
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", anyPort)
	if err != nil {
		return nil, errors.Join(nstance.Errorf(nstance.Unavailable, "%w", err), c.server.Close(), c.guests.local.Close())
	}
	c.api = API{Endpoint: "http://" + l.Addr().String(), Dir: h.dir}
	if c.TLS {
		if l, err = c.encrypt(l); err != nil {
			return nil, errors.Join(err, c.server.Close(), c.guests.local.Close())
		}
	}
	c.http = &http.Server{
		Handler: c.guests.gate.before(c.server, c.Creates), ReadHeaderTimeout: 10 * time.Second,
		ErrorLog: log.New(io.Discard, "", 0), // a server that dies in the middle of a call is expected
	}
	go func() { // waited for by close
		defer close(c.served)
		_ = c.http.Serve(l) // always ErrServerClosed
	}()
	if c.Prepare != nil {
		if err := c.Prepare(ctx, c.api); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	return c, nil
}

func (c *testCloud) configure(conf configFile, n int, _ bool) {
	c.Configure(conf.top, conf.shard, conf.template, c.api, n)
	at, ok := conf.shard["provider"].(object)
	if !ok {
		at = object{}
	}
	at = maps.Clone(at)
	at["kind"] = c.Kind.Name
	conf.shard["provider"] = at
}

func (c *testCloud) open(ctx context.Context) (nstance.Provider, error) {
	text, err := configuration(c.o, c, alone(anyPort), 1)
	if err != nil {
		return nil, err
	}
	conf, err := config.ParseContext(ctx, "configuration", text, c.Kind)
	if err != nil {
		return nil, err
	}
	p, end, err := conf.Shard.Provider.Open(ctx, c.kinds(), c.o.Log)
	c.ends = end
	return p, err
}

func (c *testCloud) kinds() provider.Kinds { return provider.Kinds{c.Kind} }

// serve does nothing: the cloud is a server of its own already.
func (c *testCloud) serve(context.Context) error { return nil }

func (c *testCloud) interrupt(ids []nstance.InstanceID) error {
	if c.Maintain == nil {
		return each(ids, func(id nstance.InstanceID) error { return c.announce(id, "", noticeAhead) })
	}
	var machines []testcloud.Machine
	for _, id := range ids {
		m, err := c.machine(id)
		if err != nil {
			return err
		}
		machines = append(machines, m)
	}
	return c.Maintain(machines)
}

func (c *testCloud) affected(id nstance.InstanceID, members []nstance.InstanceID) []nstance.InstanceID {
	m, err := c.machine(id)
	if c.Maintain == nil || err != nil {
		return []nstance.InstanceID{id}
	}
	var out []nstance.InstanceID
	for _, member := range members {
		if other, err := c.machine(member); err == nil && other.Zone == m.Zone {
			out = append(out, member)
		}
	}
	return out
}

func (c *testCloud) announce(id nstance.InstanceID, _ string, after time.Duration) error {
	m, err := c.machine(id)
	switch {
	case err != nil:
		return err
	case c.Maintain != nil:
		return c.Maintain([]testcloud.Machine{m})
	}
	return c.server.Reclaim(m.Handle, after)
}

func (c *testCloud) hasAddress() bool { return c.Holder != nil }

func (c *testCloud) holder(ctx context.Context) (Holder, error) { return c.Holder(ctx, c.api) }

func (c *testCloud) drains(id nstance.InstanceID) int { return c.home.drains(id) }

func (c *testCloud) wakeTime(nstance.InstanceID) (time.Duration, error) { return 0, errNoWakeTime }

func (c *testCloud) crash(id nstance.InstanceID) error {
	m, err := c.machine(id)
	if err != nil {
		return err
	}
	return c.server.Fail(m.Handle)
}

// machine returns the machine of an instance.
func (c *testCloud) machine(id nstance.InstanceID) (testcloud.Machine, error) {
	for _, m := range c.server.Machines() {
		if m.ID == id && !m.Status.Dead() {
			return m, nil
		}
	}
	return testcloud.Machine{}, nstance.Errorf(nstance.NotFound, "no machine %s", id)
}

func (c *testCloud) machines(context.Context, nstance.Owner) ([]nstance.Machine, error) {
	var out []nstance.Machine
	for _, m := range c.server.Machines() {
		if m.ID == "" {
			continue // a server's own
		}
		out = append(out, nstance.Machine{ID: m.ID, ProviderID: m.Handle, Status: m.Status})
	}
	return out, nil
}

func (c *testCloud) front() *gate { return c.guests.gate }

func (c *testCloud) close() error {
	var err error
	if c.ends != nil {
		err = c.ends()
	}
	err = errors.Join(err, c.http.Close())
	<-c.served
	return errors.Join(err, c.server.Close(), c.guests.local.Close())
}

// guests are the machines of a test cloud: processes with a metadata service, as
// provider local has them.
type guests struct {
	local *local.Cloud
	gate  *gate
}

// launchLimit bounds the start of a process, and destroyLimit its end.
const (
	launchLimit  = 30 * time.Second
	destroyLimit = 30 * time.Second
)

// Start implements testcloud.Hypervisor.
func (g *guests) Start(b testcloud.Boot) (testcloud.Guest, error) {
	if b.ID == "" {
		return idle{}, nil // a machine that servers run on: they are processes of this one
	}
	ctx, cancel := context.WithTimeout(context.Background(), launchLimit)
	defer cancel()
	g.gate.asked(b.ID)
	g.gate.made(b.ID, b.Handle)
	spec := nstance.MachineSpec{
		ID: b.ID, UserData: b.UserData, InstanceType: b.Type, Token: string(b.ID),
		Owner: nstance.Owner{Installation: "dev", Cluster: clusterID, Shard: shardID, Tenant: nstance.DefaultTenant},
	}
	if b.Spot {
		spec.Market = nstance.Spot
	}
	// A metadata service says the name alone where a handle is a path.
	if err := g.local.Launch(ctx, spec, local.Launch{Handle: path.Base(b.Handle), Zone: b.Zone, Exited: b.Exited}); err != nil {
		return nil, fmt.Errorf("machine %s: %w", b.Handle, err)
	}
	return guest{g.local, b.ID}, nil
}

// idle is a machine that nothing runs in.
type idle struct{}

func (idle) Announce(string, time.Time) {}
func (idle) Withdraw()                  {}
func (idle) Kill()                      {}

// A guest is one machine of a test cloud.
type guest struct {
	local *local.Cloud
	id    nstance.InstanceID
}

// Announce implements testcloud.Guest. A machine that has ended hears nothing.
func (g guest) Announce(action string, at time.Time) { _ = g.local.Announce(g.id, action, at) }

// Withdraw implements testcloud.Guest.
func (g guest) Withdraw() { _ = g.local.Withdraw(g.id) }

// Kill implements testcloud.Guest.
func (g guest) Kill() {
	ctx, cancel := context.WithTimeout(context.Background(), destroyLimit)
	defer cancel()
	_ = g.local.Destroy(ctx, g.id) // what a SIGKILL does not end, the end of this process does
}
