package server

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/server/config"
	"github.com/nstance-go/nstance/storage"
)

// FileSource reads the configuration from a local file.
func FileSource(path string) Source {
	return func(context.Context) (string, []byte, error) {
		data, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return path, nil, nstance.Errorf(nstance.NotFound, "configuration: %w", err)
		case errors.Is(err, fs.ErrPermission):
			return path, nil, nstance.Errorf(nstance.Denied, "configuration: %w", err)
		case err != nil:
			return path, nil, nstance.Errorf(nstance.Unavailable, "configuration: %w", err)
		}
		return path, data, nil
	}
}

// StoreSource reads the configuration of a shard from storage.
func StoreSource(store storage.Store, shard nstance.ShardID) Source {
	key := storage.ConfigKey(shard)
	return func(ctx context.Context) (string, []byte, error) {
		obj, err := store.Get(ctx, key)
		return key, obj.Data, err
	}
}

func (s *Server) readConfig(ctx context.Context) (*config.Config, error) {
	name, data, err := s.source(ctx)
	if err != nil {
		return nil, err
	}
	return config.Parse(name, data)
}

// Refresh reads the configuration again and puts it in force. A configuration
// that is refused changes nothing: the one in force stays, and the refusal is
// reported by GetConfigStatus. What needs a restart is refused by name. One
// call works at a time, so that the newest configuration stays.
func (s *Server) Refresh(ctx context.Context) (changed bool, err error) {
	select {
	case s.refreshing <- struct{}{}:
		defer func() { <-s.refreshing }()
	case <-ctx.Done():
		return false, nstance.Errorf(nstance.Unavailable, "configuration not read: %w", ctx.Err())
	}
	conf, err := s.readConfig(ctx)
	if err == nil {
		err = s.permitted(conf)
	}
	s.mu.Lock()
	s.refused = refusal{}
	if err != nil {
		s.refused = refusal{at: s.opts.Now(), err: err}
		s.mu.Unlock()
		s.log.Error("configuration refused, the one in force stays", "err", err)
		return false, err
	}
	changed = conf.Digest() != s.conf.Digest()
	s.conf, s.confAt = conf, s.opts.Now()
	s.mu.Unlock()
	if t := s.term.Load(); t != nil && changed {
		t.groups.publish()
	}
	return changed, nil
}

// permitted refuses a reload that would change what this process is.
func (s *Server) permitted(conf *config.Config) error {
	now := s.config()
	for _, f := range []struct {
		field     string
		was, will any
	}{
		{"cluster.id", now.Cluster.ID, conf.Cluster.ID},
		{"shard.id", now.Shard.ID, conf.Shard.ID},
		{"shard.provider.kind", now.Shard.Provider.Kind, conf.Shard.Provider.Kind},
		{"shard.provider.region", now.Shard.Provider.Region, conf.Shard.Provider.Region},
		{"shard.provider.zone", now.Shard.Provider.Zone, conf.Shard.Provider.Zone},
		{"shard.provider.options", string(now.Shard.Provider.Options), string(conf.Shard.Provider.Options)},
		{"shard.bind", now.Shard.Bind, conf.Shard.Bind},
		{"shard.health_interval", now.Shard.HealthInterval, conf.Shard.HealthInterval},
		{"shard.create_rate", now.Shard.CreateRate, conf.Shard.CreateRate},
		{"shard.election", now.Shard.Election, conf.Shard.Election},
	} {
		if f.was != f.will {
			return nstance.FieldError(f.field, "restart the server, or put the old value back", "cannot change from %v to %v while the server runs", f.was, f.will)
		}
	}
	return nil
}
