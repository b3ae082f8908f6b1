package servercmd

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/local"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server/config"
)

// localOptions are shard.provider.options of kind local.
type localOptions struct {
	Command  []string `json:"command"`  // what a machine runs; default: this program as an agent
	Dir      string   `json:"dir"`      // keeps the machines' folders; default: the system's temporary folder
	Protocol string   `json:"protocol"` // of the metadata services: aws (the default) or gcp
	Endpoint string   `json:"endpoint"` // socket of a local cloud that another process has; instead of the above
}

// simOptions are shard.provider.options of kind sim.
type simOptions struct {
	Seed uint64            `json:"seed"` // of every random choice
	Boot provider.Duration `json:"boot"` // how long a machine takes to start

	Images    []simImage                `json:"images"`         // that can be looked for
	Types     map[string][]nstance.Arch `json:"types"`          // machine types and what they run; default: any, everything
	Subnets   map[string]int            `json:"subnets"`        // their numbers of addresses; default: endless
	Balancers []string                  `json:"load_balancers"` // IDs of the load balancers there are
}

// A simImage is one image of kind sim; of those that fit, the last is the newest.
type simImage struct {
	ID    string       `json:"id"`
	Owner string       `json:"owner"`
	Name  string       `json:"name"`
	Arch  nstance.Arch `json:"arch"`
}

// checkProvider refuses what newProvider would, as far as that shows without
// making anything.
func checkProvider(c config.Provider) error {
	switch c.Kind {
	case "local":
		return optionError(provider.DecodeArgs(c.Options, &localOptions{}))
	case "sim":
		return optionError(provider.DecodeArgs(c.Options, &simOptions{}))
	}
	return c.Shipped()
}

// newProvider returns the provider of that kind and what ends it.
func newProvider(c config.Provider, log *slog.Logger) (p nstance.Provider, end func() error, err error) {
	switch c.Kind {
	case "local":
		p, end, err = newLocal(c, log)
	case "sim":
		p, end, err = newSim(c)
	default:
		err = c.Shipped()
	}
	return p, end, err
}

func newLocal(c config.Provider, log *slog.Logger) (nstance.Provider, func() error, error) {
	var o localOptions
	if err := provider.DecodeArgs(c.Options, &o); err != nil {
		return nil, nil, optionError(err)
	}
	if o.Endpoint != "" {
		return dialLocal(o)
	}
	if len(o.Command) == 0 {
		self, err := os.Executable()
		if err != nil {
			return nil, nil, nstance.Errorf(nstance.Internal, "where is this program: %w", err)
		}
		o.Command = []string{self, "machine"}
	}
	cloud, err := local.New(&local.Options{Command: o.Command, Dir: o.Dir, Protocol: o.Protocol, Stderr: os.Stderr, Log: log})
	if err != nil {
		return nil, nil, err
	}
	return cloud, cloud.Close, nil
}

func dialLocal(o localOptions) (nstance.Provider, func() error, error) {
	if len(o.Command) > 0 || o.Dir != "" || o.Protocol != "" {
		return nil, nil, nstance.FieldError("shard.provider.options.endpoint", "leave out command, dir and protocol",
			"is the cloud of another process, which decides about everything else")
	}
	cloud, err := local.Dial(o.Endpoint)
	if e, ok := errors.AsType[*nstance.Error](err); ok {
		return nil, nil, nstance.FieldError("shard.provider.options.endpoint", e.Remedy, "%s", e.Msg)
	}
	return cloud, cloud.Close, err
}

func newSim(c config.Provider) (nstance.Provider, func() error, error) {
	var o simOptions
	if err := provider.DecodeArgs(c.Options, &o); err != nil {
		return nil, nil, optionError(err)
	}
	with := simcloud.Options{
		Seed: o.Seed, Boot: simcloud.Constant(time.Duration(o.Boot)), Types: o.Types, Subnets: o.Subnets, Balancers: o.Balancers,
	}
	for _, i := range o.Images {
		with.Images = append(with.Images, simcloud.Image{ID: i.ID, Owner: i.Owner, Name: i.Name, Arch: i.Arch})
	}
	cloud := simcloud.New(&with)
	return cloud, func() error { cloud.Close(); return nil }, nil
}

// optionError calls the field by its place in the configuration.
func optionError(err error) error {
	e, ok := errors.AsType[*nstance.Error](err)
	if !ok {
		return err
	}
	c := *e
	c.Field = "shard.provider.options" + strings.TrimPrefix(e.Field, "args")
	return &c
}
