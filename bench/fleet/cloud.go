package main

import (
	"context"
	"errors"
	"iter"
	"net"
	"net/rpc"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
)

// A cloud is the simulated cloud of this process, which servers call by a socket: it outlives
// them. Its methods are those of package net/rpc.
type cloud struct{ sim *simcloud.Cloud }

// An Answer is what a call returned.
type Answer struct {
	Machines []nstance.Machine
	Code     nstance.Code // of an error
	Text     string
}

func (a *Answer) fail(err error) error {
	if err != nil {
		a.Code, a.Text = nstance.CodeOf(err), err.Error()
	}
	return nil
}

func (a *Answer) err() error {
	if a.Code == "" {
		return nil
	}
	return nstance.Errorf(a.Code, "%s", a.Text)
}

func (a *Answer) machine() (nstance.Machine, error) {
	if err := a.err(); err != nil {
		return nstance.Machine{}, err
	}
	return a.Machines[0], nil
}

// serveCloud serves calls until the listener is closed.
func serveCloud(lis net.Listener, sim *simcloud.Cloud) error {
	s := rpc.NewServer()
	if err := s.RegisterName("Cloud", &cloud{sim}); err != nil {
		return err
	}
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		conn, err := lis.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		calls.Go(func() { s.ServeConn(conn) })
	}
}

func (c *cloud) Create(spec nstance.MachineSpec, a *Answer) error {
	m, err := c.sim.Create(context.Background(), spec)
	a.Machines = []nstance.Machine{m}
	return a.fail(err)
}

func (c *cloud) Get(id nstance.InstanceID, a *Answer) error {
	m, err := c.sim.Get(context.Background(), id)
	a.Machines = []nstance.Machine{m}
	return a.fail(err)
}

func (c *cloud) List(owner nstance.Owner, a *Answer) error {
	for m, err := range c.sim.List(context.Background(), owner) {
		if err != nil {
			return a.fail(err)
		}
		a.Machines = append(a.Machines, m)
	}
	return nil
}

func (c *cloud) Delete(m nstance.Machine, a *Answer) error {
	return a.fail(c.sim.Delete(context.Background(), m))
}

// socketOptions are shard.provider.options.
type socketOptions struct {
	Socket string `json:"socket" doc:"where the cloud answers" required:"true"`
}

// kind is the cloud as a server knows it.
func kind() provider.Kind {
	return provider.Kind{
		Name: "sim", Options: &socketOptions{}, Spot: true,
		Check:     func(s provider.Settings) error { return provider.DecodeOptions(s.Options, &socketOptions{}) },
		CheckSpec: func(_ provider.Settings, spec nstance.MachineSpec) error { return provider.ValidateSpec(spec, 0) },
		Open: func(_ context.Context, s provider.Settings) (nstance.Provider, func() error, error) {
			var o socketOptions
			if err := provider.DecodeOptions(s.Options, &o); err != nil {
				return nil, nil, err
			}
			c, err := rpc.Dial("unix", o.Socket)
			if err != nil {
				return nil, nil, nstance.Errorf(nstance.Unavailable, "%w", err)
			}
			return socket{c}, c.Close, nil
		},
	}
}

// A socket calls the cloud.
type socket struct{ *rpc.Client }

func (s socket) call(ctx context.Context, method string, args any) (*Answer, error) {
	a := &Answer{}
	call := s.Go("Cloud."+method, args, a, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
		if call.Error != nil {
			return nil, nstance.Errorf(nstance.Ambiguous, "%w", call.Error)
		}
		return a, nil
	case <-ctx.Done():
		return nil, nstance.Errorf(nstance.Ambiguous, "%w", context.Cause(ctx))
	}
}

// Create implements nstance.Provider.
func (s socket) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	a, err := s.call(ctx, "Create", spec)
	if err != nil {
		return nstance.Machine{}, err
	}
	return a.machine()
}

// Get implements nstance.Provider.
func (s socket) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	a, err := s.call(ctx, "Get", id)
	if err != nil {
		return nstance.Machine{}, err
	}
	return a.machine()
}

// List implements nstance.Provider.
func (s socket) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		a, err := s.call(ctx, "List", owner)
		if err == nil {
			for _, m := range a.Machines {
				if !yield(m, nil) {
					return
				}
			}
			err = a.err()
		}
		if err != nil {
			yield(nstance.Machine{}, err)
		}
	}
}

// Delete implements nstance.Provider.
func (s socket) Delete(ctx context.Context, m nstance.Machine) error {
	a, err := s.call(ctx, "Delete", m)
	if err != nil {
		return err
	}
	return a.err()
}
