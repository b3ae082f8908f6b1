package server

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/server/config"
	"github.com/nstance-go/nstance/server/internal/groups"
	"github.com/nstance-go/nstance/server/internal/ports"
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

// read returns the configuration at its source.
func (s *Server) read(ctx context.Context) (*config.Config, proposal, error) {
	name, data, err := s.source(ctx)
	if err != nil {
		return nil, proposal{}, err
	}
	conf, err := config.ParseContext(ctx, name, data, s.opts.Kinds...)
	if err != nil {
		return nil, proposal{}, err
	}
	return conf, proposal{Name: name, Digest: conf.Digest(), Data: data, At: s.opts.Now().UTC()}, nil
}

// proposed returns the configuration in force as it was read.
func (s *Server) proposed() proposal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// force puts a configuration in force, with what belongs to this process as it
// was started.
func (s *Server) force(conf *config.Config, p proposal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conf, s.bytes, s.confAt = conf.At(s.own), p, p.At
}

// Refresh reads the configuration again. The leader puts it in force; a server
// that stands by only checks it, and proposes it when it leads. A
// configuration that is refused changes nothing: the one in force stays, and
// the refusal is reported by GetConfigStatus. What needs a restart is refused
// by name. One that would change more than shard.max_change permits is held:
// that fails with Conflict and says how to confirm it. One call works at a time,
// so that the newest configuration stays.
//
// Images are looked for and user data is fetched again too, after it returns.
func (s *Server) Refresh(ctx context.Context) (changed bool, err error) {
	return s.refresh(ctx, "a refresh of this server was requested")
}

// refresh is Refresh, with why for the journal.
func (s *Server) refresh(ctx context.Context, why string) (changed bool, err error) {
	changed, err = s.reread(ctx, why)
	if t := s.term.Load(); err == nil && t != nil {
		t.groups.RefreshLookups()
	}
	return changed, err
}

func (s *Server) reread(ctx context.Context, why string) (changed bool, err error) {
	if err := s.acquireRefresh(ctx); err != nil {
		return false, err
	}
	defer func() { <-s.refreshing }()
	conf, p, err := s.read(ctx)
	if err == nil {
		err = errors.Join(s.permitted(conf), groups.CheckAbilities(conf, provider.AbilitiesOf(s.provider)))
	}
	t := s.term.Load()
	if err == nil && t != nil {
		if changed, err = t.accepts.consider(ctx, conf, p, why); t.granted.Err() != nil {
			return false, ports.ErrTermEnded
		}
	}
	s.setRefused(err)
	if t != nil {
		t.accepts.setRefusal(err, why)
	}
	return changed, err
}

// acquireRefresh waits until no other call considers a configuration.
func (s *Server) acquireRefresh(ctx context.Context) error {
	select {
	case s.refreshing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "configuration not read: %w", ctx.Err())
	}
}

// setRefused records why the latest configuration was refused, and logs that once; nil:
// it was not.
func (s *Server) setRefused(err error) {
	if errors.Is(err, nstance.Conflict) {
		err = nil // held: reported by itself
	}
	s.mu.Lock()
	was := s.refused.err
	s.refused = refusal{}
	if err != nil {
		s.refused = refusal{at: s.opts.Now(), err: err}
	}
	s.mu.Unlock()
	if err != nil && (was == nil || was.Error() != err.Error()) {
		s.log.Error("configuration refused, the one in force stays", "err", err)
	}
}

// confirm lets a held configuration take effect.
func (s *Server) confirm(ctx context.Context, t *term, digest, why string, dryRun bool) error {
	if err := s.acquireRefresh(ctx); err != nil {
		return err
	}
	defer func() { <-s.refreshing }()
	return t.accepts.confirm(ctx, digest, why, dryRun)
}

// permitted refuses a reload that would change what this process is.
func (s *Server) permitted(conf *config.Config) error { return conf.Reloadable(s.own) }
