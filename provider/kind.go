package provider

import (
	"context"
	"encoding/json"
	"log/slog"
	"reflect"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/nearest"
	"github.com/nstance-go/nstance/internal/validate"
)

// A Kind describes one kind of provider to a composition: its settings, how to
// check them offline, and how to open it. Each provider's package has a function
// Kind; a program that embeds the server can add kinds of its own.
type Kind struct {
	// Name is the value of shard.provider.kind.
	Name string

	// Options and Args are pointers to zero values of the structs that options
	// and args are decoded into. BalancerArgs is the same for
	// load_balancers.<name>.args. Nil: there are none. Their fields describe
	// themselves by tags, which DecodeOptions and DecodeArgs enforce:
	//
	//	json      name
	//	doc       what it means, in one sentence; required
	//	default   what is used where it is absent
	//	required  "true": it must be given
	//	enum      permitted words, separated by |
	//	min, max  of numbers
	Options, Args, BalancerArgs any

	// Check refuses settings that Open would refuse, as far as that can be
	// checked offline. Nil: options are decoded as DecodeOptions does, and no more
	// is checked.
	Check func(Settings) error

	// CheckSpec refuses specs that Create would refuse, as far as that can be
	// checked offline. Values that only a running shard has, such as addresses,
	// are samples. Nil: args are decoded as DecodeArgs does.
	CheckSpec func(Settings, nstance.MachineSpec) error

	// Open returns the provider and the function that closes it. It makes no
	// call that could fail for a missing permission.
	Open func(context.Context, Settings) (p nstance.Provider, end func() error, err error)

	// The abilities of the provider, known offline.
	Images, Balancers, Address, Spot bool
	Prices                           bool // of spot machines
	Hosts                            bool // it chooses the hosts of machines, and heeds MachineSpec.HostLimit
	Park                             []nstance.ParkMode

	// FreeTypes says that the provider ignores instance types: any name is valid.
	FreeTypes bool

	// Consistency is how long the cloud may answer NotFound about a new machine.
	Consistency time.Duration

	// MaxUserData in bytes; 0 means no limit.
	MaxUserData int

	// SampleImage is an image ID in the cloud's spelling, for checks of specs
	// whose image is found by name. Empty: any text is valid.
	SampleImage string

	// Rate and Burst are the cloud's default limits of creates in an account, and
	// the default of shard.create_rate. 0: the default of [Options].
	Rate  float64
	Burst int
}

// Settings are the provider's part of a configuration.
type Settings struct {
	Region  string
	Zone    string
	Options json.RawMessage // canonical JSON, or nil
	Log     *slog.Logger    // nil discards
}

// CheckBalancer refuses args of a load balancer that do not fit BalancerArgs.
// The error names them args.
func (k Kind) CheckBalancer(args json.RawMessage) error {
	return decodeArgs(args, newLike(k.BalancerArgs), nil)
}

// newLike returns a pointer to a zero value of the struct that p points to; nil: of
// a struct without fields.
func newLike(p any) reflect.Value {
	if p == nil {
		return reflect.New(reflect.TypeFor[struct{}]())
	}
	return reflect.New(reflect.TypeOf(p).Elem())
}

// withChecks returns k with the checks that stand for absent ones.
func (k Kind) withChecks() Kind {
	if k.Check == nil {
		k.Check = func(s Settings) error { return decodeOptions(s.Options, newLike(k.Options)) }
	}
	if k.CheckSpec == nil {
		k.CheckSpec = func(_ Settings, spec nstance.MachineSpec) error {
			return decodeArgs(spec.Args, newLike(k.Args), nil)
		}
	}
	return k
}

// validate refuses what would be found only when the kind is used.
func (k Kind) validate() error {
	path := "kinds." + k.Name
	if k.Open == nil {
		return nstance.FieldError(path+".open", "set the function that opens the provider", "is nil")
	}
	if err := validate.Setting(path+".consistency", k.Consistency, time.Hour); err != nil {
		return err
	}
	for _, part := range []struct {
		name string
		like any
	}{{"options", k.Options}, {"args", k.Args}, {"balancer_args", k.BalancerArgs}} {
		if part.like == nil {
			continue
		}
		at, t := path+"."+part.name, reflect.TypeOf(part.like)
		if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
			return nstance.FieldError(at, "use a pointer to a zero value of a struct", "%s is not a pointer to a struct", t)
		}
		if err := checkDocs(t, at, map[reflect.Type]bool{}); err != nil {
			return err
		}
	}
	return nil
}

// Kinds are the kinds of provider that one program is linked with.
type Kinds []Kind

// Find returns the kind of that name, with Check and CheckSpec set. Fails with
// Invalid when there is none; the error names the field as a configuration does.
func (k Kinds) Find(name string) (Kind, error) {
	var names []string
	for _, kind := range k {
		if kind.Name == name {
			return kind.withChecks(), nil
		}
		names = append(names, kind.Name)
	}
	return Kind{}, nstance.FieldError("shard.provider.kind", nearest.Remedy(name, names), "this program has no provider %.64q", name)
}

// Validate returns nil, or an Invalid error: each kind has a name of its own, by
// the rules of names, and Open; Options, Args and BalancerArgs point to structs
// whose fields each have a tag doc.
func (k Kinds) Validate() error {
	names := map[string]bool{}
	for _, kind := range k {
		if err := validate.Name("kinds", kind.Name); err != nil {
			return err
		}
		if names[kind.Name] {
			return nstance.FieldError("kinds", "give one of them another name", "two are called %s", kind.Name)
		}
		names[kind.Name] = true
		if err := kind.validate(); err != nil {
			return err
		}
	}
	return nil
}
