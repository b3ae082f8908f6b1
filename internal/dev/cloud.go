package dev

import (
	"context"
	"errors"
	"iter"
	"net"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/local"
)

// A cloud is where the machines of single-machine mode are.
type cloud interface {
	// configure adds to the configuration of a server what belongs to the cloud:
	// the provider and what templates need of it. n is the server's number;
	// shared says that it is a process of its own.
	configure(conf configFile, n int, shared bool)

	// open returns the provider of a server in this process.
	open(ctx context.Context) (nstance.Provider, error)

	// kinds are the kinds of provider that the configuration may name.
	kinds() provider.Kinds

	// serve lets servers in other processes in until ctx ends.
	serve(ctx context.Context) error

	// interrupt has machines taken back, with notice.
	interrupt(ids []nstance.InstanceID) error

	// affected returns which of the members are taken back when that one is: it,
	// and where hosts are taken back those on the same host.
	affected(id nstance.InstanceID, members []nstance.InstanceID) []nstance.InstanceID

	// announce is interrupt with the time that is left, for Interrupt of the API.
	announce(id nstance.InstanceID, action string, after time.Duration) error

	// hasAddress reports whether an address moves with the leader.
	hasAddress() bool

	// holder returns where that address is.
	holder(ctx context.Context) (Holder, error)

	// drains returns how often the machine has begun to be emptied.
	drains(id nstance.InstanceID) int

	// wakeTime returns how long the provider took to wake the machine the last time.
	wakeTime(id nstance.InstanceID) (time.Duration, error)

	// crash ends the machine at once, without notice.
	crash(id nstance.InstanceID) error

	// machines returns every machine of the owner that is not gone.
	machines(ctx context.Context, owner nstance.Owner) ([]nstance.Machine, error)

	// front is the gate before of what other processes ask for.
	front() *gate

	// close ends all machines.
	close() error
}

// newCloud makes the cloud that the options ask for.
func newCloud(ctx context.Context, o *Options, h *home) (cloud, error) {
	if o.Cloud != nil {
		return newTestCloud(ctx, o, h)
	}
	if o.QEMU != nil {
		return newQEMUCloud(ctx, o, h)
	}
	return newLocalCloud(ctx, o, h)
}

// A configFile is a configuration under construction.
type configFile struct {
	top, shard, template object
	words                *strings.Replacer // fills in the release and the servers' addresses, in user data
}

// A localCloud is provider local.
type localCloud struct {
	*local.Cloud
	command  []string // what a machine runs
	endpoint string   // for other processes
	socket   net.Listener
	gate     *gate
	home     *home
}

// newLocalCloud makes the cloud. Where servers are processes of their own, its
// socket is there before any server is.
func newLocalCloud(ctx context.Context, o *Options, h *home) (_ *localCloud, err error) {
	c := &localCloud{command: o.Machine, endpoint: h.socket(), gate: newGate(), home: h}
	if c.Cloud, err = local.New(&local.Options{Command: o.Machine, Dir: h.machinesDir(), Protocol: o.Protocol, Stderr: h.machines, Log: o.Log}); err != nil {
		return nil, err
	}
	if o.paired() {
		if c.socket, err = local.Listen(ctx, c.endpoint); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

func (c *localCloud) configure(conf configFile, _ int, shared bool) {
	localSettings(conf, c.endpoint, shared)
}

func localSettings(conf configFile, endpoint string, shared bool) {
	at := object{"kind": "local"}
	if shared {
		at["options"] = object{"endpoint": endpoint}
	}
	conf.shard["provider"] = at
	conf.template["instance_type"] = "process"
}

func (c *localCloud) open(context.Context) (nstance.Provider, error) { return c.Cloud, nil }

func (c *localCloud) kinds() provider.Kinds { return provider.Kinds{local.Kind(c.command...)} }

func (c *localCloud) serve(ctx context.Context) error {
	return local.Serve(ctx, c.socket, gated{c.Cloud, c.gate})
}

func (c *localCloud) interrupt(ids []nstance.InstanceID) error {
	return each(ids, func(id nstance.InstanceID) error { return c.Interrupt(id, "terminate", noticeAhead) })
}

// each calls act for every machine, until one fails.
func each(ids []nstance.InstanceID, act func(id nstance.InstanceID) error) error {
	for _, id := range ids {
		if err := act(id); err != nil {
			return err
		}
	}
	return nil
}

func (c *localCloud) affected(id nstance.InstanceID, _ []nstance.InstanceID) []nstance.InstanceID {
	return []nstance.InstanceID{id}
}

func (c *localCloud) announce(id nstance.InstanceID, action string, after time.Duration) error {
	return c.Interrupt(id, action, after)
}

func (c *localCloud) hasAddress() bool { return false }

func (c *localCloud) holder(context.Context) (Holder, error) { return Holder{}, errNoAddress }

// errNoWakeTime is what clouds return that scenario bridge does not know.
var errNoWakeTime = nstance.Errorf(nstance.NotFound, "how long machines take to wake is not known here")

// errNoAddress is what clouds without a leader address return.
var errNoAddress = nstance.Errorf(nstance.NotFound, "no leader address moves here")

func (c *localCloud) drains(id nstance.InstanceID) int { return c.home.drains(id) }

func (c *localCloud) wakeTime(id nstance.InstanceID) (time.Duration, error) { return c.WakeTime(id) }

func (c *localCloud) crash(id nstance.InstanceID) error { return c.Kill(id) }

func (c *localCloud) machines(ctx context.Context, owner nstance.Owner) ([]nstance.Machine, error) {
	return collect(c.List(ctx, owner))
}

// collect returns all machines of a listing.
func collect(listed iter.Seq2[nstance.Machine, error]) (all []nstance.Machine, err error) {
	for m, err := range listed {
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

func (c *localCloud) front() *gate { return c.gate }

func (c *localCloud) close() error {
	if c.socket != nil {
		_ = c.socket.Close() // for the case that it was never served
	}
	return c.Close()
}
