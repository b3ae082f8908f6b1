// Package shardtest runs shard servers over simulated clouds or others, on real
// sockets with mutual TLS, for tests of what calls them.
package shardtest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/operatorapi"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// ID of the cluster that all shards are of.
const ID = nstance.ClusterID("c1")

// configuration of a shard: a group of the given size, an empty one, and templates that
// groups can be made from. Machines of template joining have bootstrap data.
const configuration = `{
	"cluster": {"id": "c1"},
	"shard": {
		"id": %q, "provider": {"kind": "sim"}, "shutdown_timeout": "1s", "create_rate": {"per_second": 1000, "burst": 1000},
		"bind": {"http": "127.0.0.1:0", "registration": %q, "operator": %q, "agent": %q}
	},
	"templates": {"vm": {
		"kind": "nde", "arch": "amd64", "instance_type": "small", "userdata": {"content": "{{.Nonce}}"},
		"market": {"type": "spot"}, "registration_timeout": "24h", "launch_timeout": "24h"
	}, "joining": {
		"kind": "nde", "arch": "amd64", "instance_type": "small", "userdata": {"content": "{{.Nonce}}\n{{.BootstrapData}}"},
		"market": {"type": "spot"}, "registration_timeout": "24h", "launch_timeout": "24h"
	}},
	"groups": {"default": {"web": {"template": "vm", "size": %d, "drain_timeout": %q}, "joined": {"template": "joining", "size": 0}}}
}`

// A Cluster is some shards over one store.
type Cluster struct {
	testing.TB
	Store        storage.Store
	DrainTimeout time.Duration // of group web; read by Start
}

// New returns a cluster without shards.
func New(t testing.TB) *Cluster {
	t.TempDir() // so that it is removed after the agents in it have ended
	return &Cluster{t, storage.NewMemory(), time.Minute}
}

// A Shard is a server that leads its shard, with its cloud. On each machine runs a
// real agent.
type Shard struct {
	cluster  *Cluster
	name     nstance.ShardID
	config   func() []byte
	kind     provider.Kind
	provider nstance.Provider
	Cloud    *simcloud.Cloud // nil: another one

	server  *server.Server
	addrs   server.Addresses // the same after a restart
	cancel  context.CancelFunc
	ended   chan error
	started chan nstance.MachineSpec
	agents  sync.WaitGroup

	mu   sync.Mutex
	stop map[nstance.InstanceID]context.CancelFunc // of agents
}

func (c *Cluster) newShard(name nstance.ShardID, kind provider.Kind) *Shard {
	const free = "127.0.0.1:0"
	return &Shard{
		cluster: c, name: name, kind: kind, addrs: server.Addresses{Registration: free, Operator: free, Agent: free},
		started: make(chan nstance.MachineSpec, 1000), stop: map[nstance.InstanceID]context.CancelFunc{},
	}
}

// Start starts a shard whose group web has the given size. It is stopped when the
// test ends.
func (c *Cluster) Start(name nstance.ShardID, size int) *Shard {
	c.Helper()
	s := c.newShard(name, simcloud.Kind())
	s.config = func() []byte {
		return fmt.Appendf(nil, configuration, s.name, s.addrs.Registration, s.addrs.Operator, s.addrs.Agent, size, c.DrainTimeout.String())
	}
	s.Cloud = simcloud.New(&simcloud.Options{
		OnStart: func(_ nstance.Machine, spec nstance.MachineSpec) { s.started <- spec },
		OnStop:  func(m nstance.Machine) { s.stopAgent(m.ID) },
	})
	s.provider = s.Cloud
	s.run()
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.Context()))
	s.agents.Go(func() { s.startAgents(ctx) })
	c.Cleanup(func() {
		cancel()
		s.agents.Wait()
		s.Stop()
		s.Cloud.Close()
	})
	return s
}

// A Place is a cloud that is not simulated by this package, as the configuration of a shard has it.
type Place struct {
	Kind  provider.Kind
	Shard map[string]any // of the configuration, but for its ID and where it listens
	Rest  map[string]any // of the configuration, but for the cluster
}

// StartIn starts a shard whose machines are in that place, and opens its provider as a
// server's program does. It is stopped when the test ends. Agents are started by StartAgent.
func (c *Cluster) StartIn(name nstance.ShardID, p *Place) *Shard {
	c.Helper()
	s := c.newShard(name, p.Kind)
	s.config = func() []byte { return s.configIn(p) }
	conf, err := config.ParseContext(c.Context(), configName, s.config(), p.Kind)
	require.NoError(c, err)
	var end func() error
	s.provider, end, err = conf.Shard.Provider.Open(c.Context(), provider.Kinds{p.Kind}, nil)
	require.NoError(c, err)
	c.Cleanup(func() { require.NoError(c, end()) })
	s.run()
	c.Cleanup(s.Stop)
	return s
}

func (s *Shard) configIn(p *Place) []byte {
	top, shard := maps.Clone(p.Rest), maps.Clone(p.Shard)
	shard["id"] = s.name
	shard["bind"] = map[string]any{"http": "127.0.0.1:0", "registration": s.addrs.Registration, "operator": s.addrs.Operator, "agent": s.addrs.Agent}
	top["cluster"], top["shard"] = map[string]any{"id": ID}, shard
	text, err := json.Marshal(top)
	require.NoError(s.cluster, err)
	return text
}

// configName is what errors call the configuration.
const configName = "shard.jsonc"

// startAgents starts an agent on every machine that begins to run.
func (s *Shard) startAgents(ctx context.Context) {
	for {
		select {
		case spec := <-s.started:
			s.startAgent(ctx, spec)
		case <-ctx.Done():
			return
		}
	}
}

func (s *Shard) startAgent(ctx context.Context, spec nstance.MachineSpec) {
	a, err := s.newAgent(spec.UserData, agent.Options{InstanceID: spec.ID, Detector: s.Cloud.Detector(spec.ID)})
	if !assert.NoError(s.cluster, err) {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.stop[spec.ID] = cancel
	s.mu.Unlock()
	s.agents.Go(func() {
		defer cancel()
		assert.NoError(s.cluster, a.Run(ctx))
	})
}

// newAgent returns the agent of a machine. What o does not say is as the machine has it.
func (s *Shard) newAgent(userData []byte, o agent.Options) (*agent.Agent, error) {
	dir := s.cluster.TempDir()
	nonce, _, _ := bytes.Cut(userData, []byte("\n"))
	for name, data := range map[string][]byte{"nonce.jwt": nonce, "ca.crt": s.cluster.Keys().Identity.CertPEM()} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return nil, err
		}
	}
	o.IdentityDir, o.KeysDir, o.RecvDir = dir, filepath.Join(dir, "keys"), filepath.Join(dir, "recv")
	o.RegistrationAddrs, o.AgentAddrs = []string{s.addrs.Registration}, []string{s.addrs.Agent}
	return agent.New(&o)
}

// StartAgent starts the agent of a machine in a place, with the options that are the
// machine's own. The function that it returns ends the agent.
func (s *Shard) StartAgent(userData []byte, o agent.Options) (stop func(), err error) {
	a, err := s.newAgent(userData, o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.cluster.Context()))
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(s.cluster, a.Run(ctx)) })
	return func() {
		cancel()
		running.Wait()
	}, nil
}

func (s *Shard) stopAgent(id nstance.InstanceID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stop := s.stop[id]; stop != nil {
		stop()
	}
}

// run starts the server. After a restart others may have taken its ports for a while.
func (s *Shard) run() {
	s.cluster.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		err := s.tryRun()
		if err == nil {
			return
		}
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(deadline) || !sleep.For(s.cluster.Context(), 100*time.Millisecond) {
			require.NoError(s.cluster, err)
			return
		}
	}
}

func (s *Shard) tryRun() error {
	t := s.cluster
	elector, err := lease.New(t.Store, s.name, &lease.Options{TakeAtOnce: true})
	require.NoError(t, err)
	text := s.config()
	source := func(context.Context) (string, []byte, error) { return configName, text, nil }
	s.server, err = server.New(t.Context(), t.Store, s.provider, source, &server.Options{Kinds: provider.Kinds{s.kind}, Elector: elector})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	ready, over := context.WithCancelCause(t.Context())
	defer over(nil)
	go func() { // Stop waits for it
		err := s.server.Run(ctx)
		over(cmp.Or(err, errEnded))
		ended <- err
	}()
	if err := s.server.Ready(ready); err != nil {
		cancel()
		<-ended //nolint:errcheck // it is the cause of ready
		return cmp.Or(context.Cause(ready), err)
	}
	s.cancel, s.ended, s.addrs = cancel, ended, s.server.Addresses()
	return nil
}

var errEnded = errors.New("the server has ended")

// Stop ends the server. Its machines stay.
func (s *Shard) Stop() {
	if s.cancel == nil {
		return
	}
	s.cancel()
	s.cancel = nil
	require.NoError(s.cluster, <-s.ended)
}

// Restart starts the server again, at the same address.
func (s *Shard) Restart() {
	s.cluster.Helper()
	s.Stop()
	s.run()
}

// Damage makes the record of an instance of group web unreadable. The server must be stopped.
func (s *Shard) Damage(id nstance.InstanceID) {
	t := s.cluster
	t.Helper()
	key := layout.InstanceKey(s.name, nstance.DefaultTenant, "web", id)
	obj, err := t.Store.Get(t.Context(), key)
	require.NoError(t, err)
	_, err = t.Store.PutIfMatch(t.Context(), key, []byte("damaged"), obj.Version)
	require.NoError(t, err)
}

// Name of the shard.
func (s *Shard) Name() nstance.ShardID { return s.name }

// Operator is where the operators' API is, host:port.
func (s *Shard) Operator() string { return s.addrs.Operator }

// Registration is where clients register, host:port.
func (s *Shard) Registration() string { return s.addrs.Registration }

// Keys returns the cluster's authorities. A shard must have been started. Machines that begin to
// run when the test ends need them too.
func (c *Cluster) Keys() *keyring.Keys {
	keys, err := keyring.Bootstrap(context.WithoutCancel(c.Context()), vault.New(c.Store, nil), time.Now())
	require.NoError(c, err)
	return keys
}

// OperatorNonce mints a nonce for an operator of the default tenant.
func (c *Cluster) OperatorNonce() string {
	nonce, err := c.Keys().Nonces.Mint("", keyring.Claims{
		Kind: nstance.RoleOperator, Subject: string(ID), Cluster: ID, Tenant: nstance.DefaultTenant, JTI: rand.Text(),
		NotBefore: time.Now().Add(-time.Hour), Expiry: time.Now().Add(time.Hour),
	})
	require.NoError(c, err)
	return nonce
}

// RegisterOperator registers an operator at a shard, for all of them.
func (s *Shard) RegisterOperator() (ed25519.PrivateKey, nstance.Credential) {
	t := s.cluster
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.Registration(),
		grpc.WithTransportCredentials(credentials.NewTLS(pki.ClientTLS(t.Keys().Identity.Pool(), nil, s.name, ID))))
	require.NoError(t, err)
	defer conn.Close()
	key := pki.NewKey()
	csr, err := pki.NewCSR(key, "operator")
	require.NoError(t, err)
	req := &apiv1.RegisterOperatorRequest{Nonce: t.OperatorNonce(), Csr: csr}
	for {
		resp, err := apiv1.NewRegistrationServiceClient(conn).RegisterOperator(t.Context(), req)
		if status.Code(err) == codes.Unavailable && sleep.For(t.Context(), 10*time.Millisecond) {
			continue // it does not lead yet
		}
		require.NoError(t, err)
		return key, wire.CredentialOf(resp.GetCredential())
	}
}

// Delete requests that an instance is deleted, without a drain, as an operator does.
func (s *Shard) Delete(id nstance.InstanceID) {
	s.cluster.Helper()
	s.call(func(ctx context.Context, api apiv1.OperatorServiceClient) error {
		_, err := api.DeleteInstance(ctx, &apiv1.DeleteInstanceRequest{Id: string(id), NoDrain: true})
		return err
	})
}

// Resume has a group try again what the cloud has refused, as an operator does.
func (s *Shard) Resume(group nstance.GroupID) {
	s.cluster.Helper()
	s.call(func(ctx context.Context, api apiv1.OperatorServiceClient) error {
		_, err := api.ResumeGroup(ctx, &apiv1.ResumeGroupRequest{Group: string(group)})
		return err
	})
}

// SetWarmPool changes the warm pool of a group that is not in the configuration, for its
// owner.
func (s *Shard) SetWarmPool(group nstance.GroupID, pool *apiv1.WarmPool) {
	s.cluster.Helper()
	s.call(func(ctx context.Context, api apiv1.OperatorServiceClient) error {
		resp, err := api.ListGroups(ctx, &apiv1.ListGroupsRequest{})
		req := &apiv1.UpdateGroupRequest{Group: string(group), WarmPool: pool}
		for _, g := range resp.GetGroups() {
			if g.GetGroup() == req.GetGroup() {
				req.Owner = g.GetOwner()
			}
		}
		if err == nil {
			_, err = api.UpdateGroup(ctx, req)
		}
		return err
	})
}

// Instances returns the instances of a shard, as its API has them.
func (s *Shard) Instances() (out []*apiv1.Instance) {
	s.cluster.Helper()
	s.call(func(ctx context.Context, api apiv1.OperatorServiceClient) error {
		resp, err := api.ListInstances(ctx, &apiv1.ListInstancesRequest{})
		out = resp.GetInstances()
		return err
	})
	return out
}

// Ended reports whether the shard says that an instance has ended: its machine is gone.
func (s *Shard) Ended(id nstance.InstanceID) bool {
	return nstance.State(s.instance(id).GetState()) == nstance.Deleted
}

// Drains reports whether an instance is drained.
func (s *Shard) Drains(id nstance.InstanceID) bool { return s.instance(id).GetDrain() != nil }

// Executor returns what drains an instance; empty: nothing drains it.
func (s *Shard) Executor(id nstance.InstanceID) nstance.Executor {
	return nstance.Executor(s.instance(id).GetDrain().GetExecutor())
}

func (s *Shard) instance(id nstance.InstanceID) (out *apiv1.Instance) {
	s.cluster.Helper()
	s.call(func(ctx context.Context, api apiv1.OperatorServiceClient) error {
		resp, err := api.GetInstance(ctx, &apiv1.GetInstanceRequest{Id: string(id)})
		out = resp.GetInstance()
		return err
	})
	return out
}

// call calls the operators' API as an operator.
func (s *Shard) call(do func(context.Context, apiv1.OperatorServiceClient) error) {
	t := s.cluster
	t.Helper()
	key, cred := s.RegisterOperator()
	certs, err := pki.ParseCertificates(pki.MarshalCertificates(cred.Chain...))
	require.NoError(t, err)
	pair, err := pki.Pair(key, certs...)
	require.NoError(t, err)
	conn, err := operatorapi.Dial(s.Operator(), pki.ClientTLS(t.Keys().Identity.Pool(), pair, s.name, ID))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, do(t.Context(), apiv1.NewOperatorServiceClient(conn)))
}
