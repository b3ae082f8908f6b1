package provider

import (
	"context"
	"encoding/json"
	"log/slog"
	"reflect"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/nearest"
)

// A Kind is one kind of provider, as a composition offers it: what a
// configuration may say of it, checked without asking the cloud, and how it is
// opened. Each provider's package has a function Kind that returns its own; a
// program that embeds the server adds more of its own names the same way.
type Kind struct {
	// Name is what shard.provider.kind says.
	Name string

	// Options and Args are pointers to zero values of the structs that options
	// and args are decoded into, for [ArgTable] and [ArgSchema]. BalancerArgs is
	// the same for load_balancers.<name>.args; nil: there are none.
	Options, Args, BalancerArgs any

	// Check refuses settings that Open would refuse, as far as that shows
	// offline.
	Check func(Settings) error

	// CheckSpec refuses what Create would refuse, as far as that shows offline.
	// What only a running shard knows, such as addresses, is filled in with
	// samples.
	CheckSpec func(Settings, nstance.MachineSpec) error

	// Open returns the provider and what closes it. It asks no question that a
	// missing permission could fail.
	Open func(context.Context, Settings) (p nstance.Provider, end func() error, err error)

	// What the provider can do beside its own methods, known offline.
	Images, Balancers, Address, Spot bool
	Park                             []nstance.ParkMode

	// FreeTypes says that instance types choose nothing: any name will do.
	FreeTypes bool

	// Consistency is how long the cloud may not know its own new machine.
	Consistency time.Duration

	// MaxUserData in bytes; 0 means no limit.
	MaxUserData int

	// SampleImage is the ID of an image as the cloud spells it, for checks of
	// specs whose image is looked for by name. Empty: any text will do.
	SampleImage string

	// Rate and Burst are what the cloud permits of creates in an account that
	// has asked for nothing more; the default of shard.create_rate. 0: the
	// default of [Options].
	Rate  float64
	Burst int
}

// Settings are what a configuration says of its provider.
type Settings struct {
	Region  string
	Zone    string
	Options json.RawMessage // canonical JSON, or nil
	Log     *slog.Logger    // nil discards
}

// CheckBalancer refuses args of a load balancer that do not fit BalancerArgs.
// The error names them args.
func (k Kind) CheckBalancer(args json.RawMessage) error {
	t := reflect.TypeFor[struct{}]()
	if k.BalancerArgs != nil {
		t = reflect.TypeOf(k.BalancerArgs).Elem()
	}
	return decodeArgs(args, reflect.New(t), nil)
}

// Kinds are the kinds of provider that one program is linked with.
type Kinds []Kind

// Find returns the kind of that name. Fails with Invalid when there is none; the
// error names the field as a configuration does.
func (k Kinds) Find(name string) (Kind, error) {
	var names []string
	for _, kind := range k {
		if kind.Name == name {
			return kind, nil
		}
		names = append(names, kind.Name)
	}
	return Kind{}, nstance.FieldError("shard.provider.kind", nearest.Remedy(name, names), "this program has no provider %.64q", name)
}

// Validate returns nil, or an Invalid error: each kind has a name of its own, by
// the rules of names.
func (k Kinds) Validate() error {
	names := map[string]bool{}
	for _, kind := range k {
		if err := nstance.ValidateName("kinds", kind.Name); err != nil {
			return err
		}
		if names[kind.Name] {
			return nstance.FieldError("kinds", "give one of them another name", "two are called %s", kind.Name)
		}
		names[kind.Name] = true
	}
	return nil
}
