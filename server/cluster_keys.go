package server

import (
	"context"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/vault"
	"github.com/nstance-go/nstance/server/internal/keys"
)

// openKeys reads the cluster's keys, or makes them.
func (s *Server) openKeys(ctx context.Context) (err error) {
	s.keys, err = keys.Open(ctx, vault.New(s.store, s.opts.Secrets), keys.Options{
		Shard: s.own.Shard.ID, Cluster: s.own.Cluster.ID, Interval: s.opts.KeyInterval, Now: s.opts.Now, Log: s.log,
		Changed: func() {
			if t := s.term.Load(); t != nil {
				t.agents.KeysChanged()
				t.operators.KeysChanged(s.keys.Identity.Trusts)
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

// register registers an agent or operator with the present term.
func (s *Server) register(ctx context.Context, req nstance.RegistrationRequest) (nstance.Credential, error) {
	t, err := s.leading()
	if err != nil {
		return nstance.Credential{}, err
	}
	ctx, cancel := t.bound(ctx)
	defer cancel()
	return t.registrar.Register(ctx, req)
}
