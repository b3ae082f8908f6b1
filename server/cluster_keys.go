package server

import (
	"context"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/server/internal/keys"
	"github.com/nstance-go/nstance/server/internal/ports"
)

// openKeys reads the cluster's keys, or makes them.
func (s *Server) openKeys(ctx context.Context) (err error) {
	s.keys, err = keys.Open(ctx, vault.New(s.store, s.opts.Secrets), keys.Options{
		Shard: s.own.Shard.ID, Cluster: s.own.Cluster.ID, Location: s.location, Interval: s.opts.KeyInterval, Now: s.opts.Now, Log: s.log,
		Changed: func() {
			if t := s.term.Load(); t != nil {
				t.agents.KeysChanged()
				t.operators.KeysChanged(s.keys.Identity.Trusts)
				s.endUntrusted()
			}
		},
		Tend: func(ctx context.Context) {
			if t := s.term.Load(); t != nil {
				t.tendKeys(ctx)
			}
		},
	})
	return err
}

// endUntrusted ends the connections with certificates whose authority is gone.
func (s *Server) endUntrusted() {
	for _, id := range s.gate.Identities(nstance.RoleAgent, nstance.RoleOperator, nstance.RoleAdmin, nstance.RoleServer) {
		if !s.keys.Identity.Trusts(id.Issuer) {
			s.gate.End(id, ports.ErrUntrusted)
		}
	}
}

// register registers an agent or operator with the present term.
func (s *Server) register(ctx context.Context, req nstance.RegistrationRequest) (nstance.Credential, error) {
	t, err := s.leading()
	if err != nil {
		return nstance.Credential{}, err
	}
	ctx, cancel, err := t.work(ctx)
	if err != nil {
		return nstance.Credential{}, err
	}
	defer cancel()
	return t.registrar.Register(ctx, req)
}
