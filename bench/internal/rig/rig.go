// Package rig is shared by the programs under bench: a whole shard server over a
// simulated cloud, on real sockets with mutual TLS, and the distributions.
package rig

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/records"
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
	"tenants": {"loud": {"templates": ["vm"]}},
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
	*Client
	Specs []nstance.MachineSpec // of the first machines

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
	addrs := r.Server.Addresses()
	r.Client = &Client{Registration: addrs.Registration, Agent: addrs.Agent, Roots: r.Keys.Identity.Pool()}
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

// Operator registers an operator of a tenant and opens a connection for it.
func (r *Rig) Operator(ctx context.Context, n int, tenant nstance.TenantID) (*grpc.ClientConn, error) {
	cert, err := r.RegisterOperator(ctx, n, nstance.RoleOperator, tenant)
	if err != nil {
		return nil, err
	}
	return r.Dial(r.Server.Addresses().Operator, n, cert)
}

// RegisterOperator registers an operator or administrator.
func (r *Rig) RegisterOperator(ctx context.Context, n int, role nstance.Role, tenant nstance.TenantID) (*tls.Certificate, error) {
	now := time.Now()
	nonce, err := r.Keys.Nonces.Mint("", keyring.Claims{
		Kind: role, Subject: string(Cluster), Cluster: Cluster, Tenant: tenant, JTI: rand.Text(), NotBefore: now.Add(-time.Hour), Expiry: now.Add(time.Hour),
	})
	if err != nil {
		return nil, err
	}
	key := pki.NewKey()
	csr, err := pki.NewCSR(key, string(Cluster))
	if err != nil {
		return nil, err
	}
	open, err := r.Dial(r.Server.Addresses().Registration, n, nil)
	if err != nil {
		return nil, err
	}
	defer open.Close()
	resp, err := apiv1.NewRegistrationServiceClient(open).RegisterOperator(ctx, &apiv1.RegisterOperatorRequest{Nonce: nonce, Csr: csr})
	if err != nil {
		return nil, wire.ErrorOf(err)
	}
	return certificate(key, wire.CredentialOf(resp.GetCredential())), nil
}

// Revoke revokes an operator.
func (r *Rig) Revoke(ctx context.Context, operator *tls.Certificate) error {
	leaf, err := x509.ParseCertificate(operator.Certificate[0])
	if err != nil {
		return err
	}
	id, err := pki.IdentityOf(leaf)
	if err != nil {
		return err
	}
	cert, err := r.RegisterOperator(ctx, 0, nstance.RoleAdmin, nstance.DefaultTenant)
	if err != nil {
		return err
	}
	conn, err := r.Dial(r.Server.Addresses().Operator, 0, cert)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = apiv1.NewOperatorServiceClient(conn).RevokeOperator(ctx, &apiv1.RevokeOperatorRequest{Id: id.Subject, Tenant: string(id.Tenant), Reason: "a benchmark"})
	return wire.ErrorOf(err)
}
