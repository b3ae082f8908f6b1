// Package config checks the configuration of a shard for programs that embed
// its server, and opens the provider that it names. The file is JSONC, which is
// JSON with comments and trailing commas; docs/configuration.md has every
// setting. [server.New] takes the file itself and checks it in the same way.
//
// A Config is safe for concurrent use.
//
// [server.New]: https://pkg.go.dev/github.com/nstance-go/nstance/server#New
package config

import (
	"context"
	"log/slog"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/provider"
)

// A Config is a checked configuration. It does not change, and is safe for
// concurrent use. Only Load and Parse make one.
type Config struct {
	checked *config.Config
	kinds   provider.Kinds
}

// Load reads and checks the file at path. It fails with NotFound or Denied when
// the file cannot be read for that reason, else as Parse does.
func Load(path string, kinds ...provider.Kind) (*Config, error) {
	c, err := config.Load(path, kinds...)
	return newConfig(c, kinds, err)
}

// Parse checks a configuration; name is what its errors call it. Its error wraps
// up to 20 of type *nstance.Error, in the order of the file, each with code
// Invalid, the path of the setting in Field, file, line and column in Msg, and
// what to do about it in Remedy. Columns count bytes, from 1.
//
// With kinds, the provider is one of them, and checks its own settings and what
// machines would be made from. Without, what only a provider understands is not
// checked.
func Parse(name string, data []byte, kinds ...provider.Kind) (*Config, error) {
	c, err := config.Parse(name, data, kinds...)
	return newConfig(c, kinds, err)
}

func newConfig(c *config.Config, kinds []provider.Kind, err error) (*Config, error) {
	if err != nil {
		return nil, err
	}
	return &Config{checked: c, kinds: kinds}, nil
}

// Cluster returns the installation that the shard belongs to.
func (c *Config) Cluster() nstance.ClusterID { return c.checked.Cluster.ID }

// Shard returns the shard that the configuration is for.
func (c *Config) Shard() nstance.ShardID { return c.checked.Shard.ID }

// Groups returns the groups, with defaults and templates merged in, sorted by
// key. The caller owns the result.
func (c *Config) Groups() []nstance.Group { return c.checked.Groups() }

// LoadBalancers returns the load balancers that groups may name, sorted by name.
func (c *Config) LoadBalancers() []nstance.LoadBalancer { return c.checked.Balancers() }

// OpenProvider opens the provider, which is of one of the kinds that Load or
// Parse was given, and returns what closes it. A nil log discards. It fails with
// Invalid without such a kind, or when a setting turns out to be wrong.
func (c *Config) OpenProvider(ctx context.Context, log *slog.Logger) (p nstance.Provider, closeProvider func() error, err error) {
	return c.checked.Shard.Provider.Open(ctx, c.kinds, log)
}
