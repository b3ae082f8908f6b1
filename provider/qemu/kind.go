package qemu

import (
	"context"
	"errors"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/local"
)

// The rate of creates that a host bears: a machine under emulation takes one
// processor for about five seconds until its agent runs.
const (
	createRate  = 1
	createBurst = 4
)

// Kind returns what a composition needs to offer machines under QEMU.
func Kind() provider.Kind {
	return provider.Kind{
		Name: "qemu", Options: &Options{}, Args: &Args{},
		Check: func(s provider.Settings) error {
			_, err := decodeOptions(s)
			return err
		},
		CheckSpec: func(s provider.Settings, spec nstance.MachineSpec) error {
			o, err := decodeOptions(s)
			if err == nil {
				_, err = o.plan(spec)
			}
			return err
		},
		Open: open,
		Spot: true, Park: parkModes(),
		Consistency: 100 * time.Millisecond, MaxUserData: maxUserData, Rate: createRate, Burst: createBurst,
	}
}

func decodeOptions(s provider.Settings) (*Options, error) {
	for field, value := range map[string]string{"region": s.Region, "zone": s.Zone} {
		if value != "" {
			return nil, nstance.FieldError(field, "leave it out", "machines run on this host")
		}
	}
	var o Options
	if err := provider.DecodeOptions(s.Options, &o); err != nil {
		return nil, err
	}
	return &o, o.check()
}

func open(_ context.Context, s provider.Settings) (nstance.Provider, func() error, error) {
	o, err := decodeOptions(s)
	if err != nil {
		return nil, nil, err
	}
	if o.Endpoint == "" {
		c, err := New(o, s.Log)
		if err != nil {
			return nil, nil, err
		}
		return c, c.Close, nil
	}
	remote, err := local.Dial(o.Endpoint)
	if e, ok := errors.AsType[*nstance.Error](err); ok {
		return nil, nil, optionError("endpoint", e.Remedy, "%s", e.Msg)
	}
	if err != nil {
		return nil, nil, err
	}
	return remote, remote.Close, nil
}
