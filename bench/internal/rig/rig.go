// Package rig is shared by the programs under bench: a whole shard server over a
// simulated cloud, on real sockets with mutual TLS, and the distributions.
package rig

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/internal/session"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// Names of the one cluster and shard.
const (
	Cluster = nstance.ClusterID("bench")
	Zone    = nstance.ShardID("s1")
)

const configuration = `{
	"cluster": {"id": "bench"},
	"shard": {
		"id": "s1", "provider": {"kind": "sim"}, "health_interval": "60s", "create_rate": {"per_second": 10000, "burst": 100000},
		"bind": {"http": "127.0.0.1:0", "registration": "127.0.0.1:0", "operator": "127.0.0.1:0", "agent": "127.0.0.1:0"}
	},
	"templates": {"vm": {
		%s
		"kind": "web", "arch": "amd64", "instance_type": "small", "market": {"type": "spot"}, "userdata": {"content": "{{.Nonce}}"},
		"registration_timeout": "24h", "launch_timeout": "24h"
	}},
	"groups": {"default": {"web": {"template": "vm", "size": %d}}}
}`

// Options describe the shard to run. Machines is required.
type Options struct {
	Machines int                                     // of one group
	Store    storage.Store                           // nil: in memory
	Wrap     func(nstance.Provider) nstance.Provider // wraps the cloud; nil: not
	Journal  func(nstance.Event)                     // also called with every event; must not block
	Template func() string                           // more settings of the template, each followed by a comma; nil: none
}

// A Rig is a running server with its cloud.
type Rig struct {
	Server *server.Server
	Cloud  *simcloud.Cloud
	Keys   *keyring.Keys
	Specs  []nstance.MachineSpec // of the first machines

	cancel context.CancelFunc
	ended  chan error
}

// Start returns a rig whose machines all exist and whose agents do not.
func Start(ctx context.Context, o Options) (_ *Rig, err error) {
	if o.Store == nil {
		o.Store = storage.NewMemory()
	}
	started := make(chan nstance.MachineSpec, 4*o.Machines)
	r := &Rig{ended: make(chan error, 1)}
	r.Cloud = simcloud.New(&simcloud.Options{OnStart: func(_ nstance.Machine, spec nstance.MachineSpec) {
		select {
		case started <- spec:
		default: // the reader has ended
		}
	}})
	var p nstance.Provider = r.Cloud
	if o.Wrap != nil {
		p = o.Wrap(p)
	}
	source := func(context.Context) (string, []byte, error) {
		more := ""
		if o.Template != nil {
			more = o.Template()
		}
		return "bench.jsonc", fmt.Appendf(nil, configuration, more, o.Machines), nil
	}
	// stores are filled without a lease
	elector, err := lease.New(o.Store, Zone, &lease.Options{TakeAtOnce: true, TTL: records.MaxLeaseTTL})
	if err != nil {
		return nil, err
	}
	if r.Server, err = server.New(ctx, o.Store, p, source, &server.Options{
		Kinds:   provider.Kinds{simcloud.Kind()},
		Journal: o.Journal, Elector: elector,
	}); err != nil {
		return nil, err
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.cancel = cancel
	go func() { r.ended <- r.Server.Run(run) }() // Stop waits for it
	if err := r.Server.Ready(ctx); err != nil {
		return nil, errors.Join(err, r.Stop())
	}
	if r.Keys, err = keyring.Bootstrap(ctx, vault.New(o.Store, nil), time.Now()); err != nil {
		return nil, errors.Join(err, r.Stop())
	}
	for len(r.Specs) < o.Machines {
		select {
		case spec := <-started:
			r.Specs = append(r.Specs, spec)
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), r.Stop())
		}
	}
	return r, nil
}

// Stop ends the server and the cloud.
func (r *Rig) Stop() error {
	r.cancel()
	err := <-r.ended
	r.Cloud.Close()
	return err
}

// Dial opens a connection. Each n uses another local address, as agents do, because
// registrations are limited by source address.
func (r *Rig) Dial(addr string, n int, cert *tls.Certificate) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(credentials.NewTLS(pki.ClientTLS(r.Keys.Identity.Pool(), cert, Zone, Cluster))),
		grpc.WithContextDialer(From(n)), grpc.WithKeepaliveParams(session.Client()),
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10), grpc.WithDisableServiceConfig(),
	)
}

// From dials from the nth address of 127.0.0.0/16.
func From(n int) func(context.Context, string) (net.Conn, error) {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, byte(1+n/250%250), byte(1+n%250))}}
	return func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
}

// Register turns the nonce in a machine's user data into a certificate.
func (r *Rig) Register(ctx context.Context, n int, spec nstance.MachineSpec) (*tls.Certificate, error) {
	key := pki.NewKey()
	csr, err := pki.NewCSR(key, string(spec.ID))
	if err != nil {
		return nil, err
	}
	conn, err := r.Dial(r.Server.Addresses().Registration, n, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	resp, err := apiv1.NewRegistrationServiceClient(conn).RegisterAgent(ctx, &apiv1.RegisterAgentRequest{Nonce: string(spec.UserData), Csr: csr})
	if err != nil {
		return nil, wire.ErrorOf(err)
	}
	return certificate(key, wire.CredentialOf(resp.GetCredential())), nil
}

func certificate(key ed25519.PrivateKey, c nstance.Credential) *tls.Certificate {
	return &tls.Certificate{Certificate: c.Chain, PrivateKey: key}
}
