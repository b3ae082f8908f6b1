package server

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/bounded"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/storage"
)

// A Source fetches the shard's configuration: its name for error messages and
// its bytes.
type Source func(ctx context.Context) (name string, data []byte, err error)

// FileSource reads the configuration from a local file.
func FileSource(path string) Source {
	return func(context.Context) (string, []byte, error) {
		data, err := os.ReadFile(path)
		if err != nil {
			return path, nil, config.FileError(err)
		}
		return path, data, nil
	}
}

// StoreSource reads the configuration of a shard from storage.
func StoreSource(store storage.Store, shard nstance.ShardID) Source {
	key := layout.ConfigKey(shard)
	store = bounded.Store(store)
	return func(ctx context.Context) (string, []byte, error) {
		obj, err := store.Get(ctx, key)
		if errors.Is(err, nstance.NotFound) {
			err = &nstance.Error{
				Code: nstance.NotFound, Msg: fmt.Sprintf("there is no configuration of shard %s in storage, %s", shard, key),
				Remedy: "put it there: nstance-admin config put FILE --storage URL; or name a file", Err: err,
			}
		}
		return key, obj.Data, err
	}
}

// bounded returns a source that ends with its context after a limit of time.
func (s Source) bounded() Source {
	return func(ctx context.Context) (string, []byte, error) {
		ctx, cancel := context.WithTimeout(ctx, bounded.Limit)
		defer cancel()
		return s(ctx)
	}
}

// Refresh reads the configuration again. The leader puts it in force; a standby only
// checks it, and proposes it when it leads. A configuration that is refused changes
// nothing: the one in force stays, and the refusal is reported by GetConfigStatus. What
// needs a restart is refused by name. One that would change more than shard.max_change
// permits is held: that fails with Conflict and says how to confirm it. One call works
// at a time, so that the newest configuration stays.
//
// Images are looked for and user data is fetched again too, after it returns.
func (s *Server) Refresh(ctx context.Context) (changed bool, err error) {
	if t := s.term.Load(); t != nil {
		return t.config.Refresh(ctx, "a refresh of this server was requested")
	}
	return false, s.config.CheckSource(ctx)
}
