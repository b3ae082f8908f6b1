package config

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

const providerPath = "shard.provider"

// Kind returns what is known of the provider offline; ok is false where the
// configuration was parsed without kinds.
func (c *Config) Kind() (k provider.Kind, ok bool) {
	if c.kind == nil {
		return provider.Kind{Name: c.Shard.Provider.Kind}, false
	}
	return *c.kind, true
}

// Settings returns what a provider is opened with.
func (p Provider) Settings(log *slog.Logger) provider.Settings {
	return provider.Settings{Region: p.Region, Zone: p.Zone, Options: p.Options, Log: log}
}

// Open opens the provider, which is one of kinds, and returns what closes it.
// Fails with Invalid when there is no such kind or a setting is wrong.
func (p Provider) Open(ctx context.Context, kinds provider.Kinds, log *slog.Logger) (nstance.Provider, func() error, error) {
	if err := kinds.Validate(); err != nil {
		return nil, nil, err
	}
	kind, err := kinds.Find(p.Kind)
	if err != nil {
		return nil, nil, err
	}
	opened, end, err := kind.Open(ctx, p.Settings(log))
	if e, ok := errors.AsType[*nstance.Error](err); ok && e.Code == nstance.Invalid {
		return nil, nil, nstance.FieldError(settingPath(e.Field), e.Remedy, "%s", e.Msg)
	}
	return opened, end, err
}

// settingPath returns where the configuration has what a provider calls field.
func settingPath(field string) string {
	field = strings.TrimPrefix(field, providerPath+".")
	switch first, rest, _ := strings.Cut(field, "."); first {
	case "":
		return providerPath
	case "args": // options that were decoded as arguments are
		return strings.TrimSuffix(providerPath+".options."+rest, ".")
	case "kind", "region", "zone", "options":
		return providerPath + "." + field
	}
	return providerPath + ".options." + field
}

// provider checks what the file says of the cloud.
func (d *decoder) provider(c *Config) {
	p := c.Shard.Provider
	if len(d.kinds) == 0 {
		return
	}
	kind, err := d.kinds.Find(p.Kind)
	if err != nil {
		d.fromProvider(err, settingPath)
		return
	}
	c.kind = &kind
	rate := &c.Shard.CreateRate
	if _, given := d.at["shard.create_rate.per_second"]; !given && kind.Rate > 0 {
		rate.PerSecond = kind.Rate
	}
	if _, given := d.at["shard.create_rate.burst"]; !given && kind.Burst > 0 {
		rate.Burst = kind.Burst
	}
	if c.Shard.LeaderAddress != "" && !kind.Address {
		d.wrong("shard.leader_address", "leave it out, and give clients the addresses of all servers", "provider %s has no addresses that move", kind.Name)
	}
	d.fromProvider(kind.Check(p.Settings(nil)), settingPath)
}

// fromProvider takes note of what a provider found wrong with a field, which is
// at path in the file. It passes over what is not about the file.
func (d *decoder) fromProvider(err error, path func(field string) string) {
	if e, ok := errors.AsType[*nstance.Error](err); ok && e.Code == nstance.Invalid {
		d.wrong(path(e.Field), e.Remedy, "%s", e.Msg)
	}
}
