package server

import (
	"context"
	"errors"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/files"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/internal/vault"
)

// secretSource returns where secrets for files come from.
func secretSource(s *Server) files.Source {
	if s.own.Shard.Secrets.Source == config.StoreSecrets {
		return storedSecrets{vault.New(s.store, s.opts.Secrets)}
	}
	return s.opts.SecretSource
}

// storedSecrets are the secrets in storage, without the cluster's keys.
type storedSecrets struct{ vault *vault.Vault }

// Get implements files.Source.
func (s storedSecrets) Get(ctx context.Context, name string) ([]byte, error) {
	if err := validate.SecretName("secret", name); err != nil {
		return nil, err
	}
	data, err := s.vault.Get(ctx, name)
	if errors.Is(err, nstance.NotFound) {
		return nil, nstance.Errorf(nstance.NotFound, "there is no secret %s: store it with nstance-admin secret put", name)
	}
	return data, err
}
