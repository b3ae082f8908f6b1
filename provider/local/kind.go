package local

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/validate"
	"github.com/nstance-go/nstance/provider"
)

// kindOptions are shard.provider.options of kind local.
type kindOptions struct {
	Command  []string `json:"command" doc:"the program that a machine runs, and its arguments" default:"this program as an agent"`
	Dir      string   `json:"dir" doc:"where the machines' folders are made" default:"the system's temporary folder"`
	Protocol string   `json:"protocol" doc:"protocol of the metadata services" default:"aws" enum:"aws|gcp|azure"`
	Endpoint string   `json:"endpoint" doc:"socket of a local cloud that another process serves; excludes the other options"`
}

// Kind returns this provider for a table of kinds. command is the default of
// options.command.
func Kind(command ...string) provider.Kind {
	return provider.Kind{
		Name: "local", Options: &kindOptions{}, Args: &args{}, Spot: true, Park: parkModes(), FreeTypes: true,
		Consistency: 100 * time.Millisecond, MaxUserData: maxUserData,
		Check: func(s provider.Settings) error {
			_, err := decodeOptions(s, command)
			return err
		},
		CheckSpec: func(_ provider.Settings, spec nstance.MachineSpec) error {
			_, err := checkSpec(spec)
			return err
		},
		Open: func(_ context.Context, s provider.Settings) (nstance.Provider, func() error, error) {
			return open(s, command)
		},
	}
}

// decodeOptions returns the options, with command if they name none.
func decodeOptions(s provider.Settings, command []string) (o kindOptions, err error) {
	if err := provider.DecodeOptions(s.Options, &o); err != nil {
		return o, err
	}
	switch {
	case o.Endpoint != "" && (len(o.Command) > 0 || o.Dir != "" || o.Protocol != ""):
		return o, nstance.FieldError("options.endpoint", "leave out command, dir and protocol", "is the cloud of another process, which has its own command, dir and protocol")
	case o.Endpoint == "" && len(o.Command) == 0 && len(command) == 0:
		return o, nstance.FieldError("options.command", "name the program that a machine runs", "is missing")
	}
	if p := cmp.Or(o.Protocol, imds.AWS); !slices.Contains(protocols, p) {
		return o, nstance.FieldError("options.protocol", "use aws, gcp or azure", "%.64q is not known", p)
	}
	if len(o.Command) == 0 {
		o.Command = command
	}
	return o, nil
}

func open(s provider.Settings, command []string) (nstance.Provider, func() error, error) {
	o, err := decodeOptions(s, command)
	if err != nil {
		return nil, nil, err
	}
	if o.Endpoint != "" {
		remote, err := Dial(o.Endpoint)
		if e, ok := errors.AsType[*nstance.Error](err); ok {
			return nil, nil, nstance.FieldError("options.endpoint", e.Remedy, "%s", e.Msg)
		}
		if err != nil {
			return nil, nil, err
		}
		return remote, remote.Close, nil
	}
	cloud, err := New(&Options{Command: o.Command, Dir: o.Dir, Protocol: o.Protocol, Stderr: os.Stderr, Log: s.Log})
	if err != nil {
		return nil, nil, err
	}
	return cloud, cloud.Close, nil
}

// checkSpec refuses what Create refuses offline, and returns the arguments.
func checkSpec(spec nstance.MachineSpec) (a args, err error) {
	if err := provider.ValidateSpec(spec, maxUserData); err != nil {
		return a, err
	}
	if err := provider.DecodeArgs(spec.Args, &a); err != nil {
		return a, err
	}
	return a, errors.Join(
		validate.Setting("args.boot_delay", time.Duration(a.BootDelay), time.Hour),
		validate.Setting("args.wake_delay", time.Duration(a.WakeDelay), time.Hour),
	)
}

// protocols are the protocols of metadata services.
var protocols = []string{imds.AWS, imds.GCP, imds.Azure}
