package simcloud

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// maxUserData bounds user data where a configuration names the cloud: what AWS
// accepts.
const maxUserData = 16 << 10

// kindOptions are shard.provider.options of kind sim.
type kindOptions struct {
	Seed      uint64                    `json:"seed" doc:"of every random choice" default:"0"`
	Boot      provider.Duration         `json:"boot" doc:"how long a machine takes to start" default:"0s"`
	Images    []kindImage               `json:"images" doc:"images that can be looked up; the last match is the newest"`
	Types     map[string][]nstance.Arch `json:"types" doc:"machine types and the architectures that each runs" default:"any type runs everything"`
	Prices    map[string]float64        `json:"prices" doc:"what a spot machine of a type costs for an hour" default:"not known"`
	Subnets   map[string]int            `json:"subnets" doc:"numbers of addresses by subnet" default:"unlimited"`
	Balancers []string                  `json:"load_balancers" doc:"IDs of the load balancers"`
}

// kindImage is one image of kind sim.
type kindImage struct {
	ID    string       `json:"id" doc:"its ID" required:"true"`
	Owner string       `json:"owner" doc:"its publisher"`
	Name  string       `json:"name" doc:"its name"`
	Arch  nstance.Arch `json:"arch" doc:"its architecture" enum:"amd64|arm64"`
}

// Kind returns this provider for a table of kinds.
func Kind() provider.Kind {
	return provider.Kind{
		Name: "sim", Options: &kindOptions{}, Args: &args{}, Images: true, Balancers: true, Address: true, Spot: true, Prices: true, Park: parkModes(),
		Consistency: 100 * time.Millisecond, MaxUserData: maxUserData,
		Check: func(s provider.Settings) error {
			return provider.DecodeOptions(s.Options, &kindOptions{})
		},
		CheckSpec: func(_ provider.Settings, spec nstance.MachineSpec) error {
			_, err := checkSpec(spec)
			return err
		},
		Open: open,
	}
}

func open(_ context.Context, s provider.Settings) (nstance.Provider, func() error, error) {
	var o kindOptions
	if err := provider.DecodeOptions(s.Options, &o); err != nil {
		return nil, nil, err
	}
	with := Options{Seed: o.Seed, Boot: Delay{Min: time.Duration(o.Boot)}, Types: o.Types, Subnets: o.Subnets, Balancers: o.Balancers}
	with.Prices = map[Pool]float64{}
	for typ, perHour := range o.Prices {
		with.Prices[Pool{typ, defaultZone, nstance.Spot}] = perHour
	}
	for _, i := range o.Images {
		with.Images = append(with.Images, Image{ID: i.ID, Owner: i.Owner, Name: i.Name, Arch: i.Arch})
	}
	cloud := New(&with)
	return cloud.At(""), func() error { cloud.Close(); return nil }, nil
}

// checkSpec makes the checks of Create that do not depend on the cloud's state, and
// returns the arguments.
func checkSpec(spec nstance.MachineSpec) (a args, err error) {
	if err := provider.ValidateSpec(spec, 0); err != nil {
		return a, err
	}
	return a, provider.DecodeArgs(spec.Args, &a)
}
