package gcp

import (
	"context"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// consistency is how long the cloud may not show a machine that it has accepted.
const consistency = 30 * time.Second

// Kind returns the provider as a composition offers it, under the name gcp.
//
// The rate leaves more than half of the project's quota to other calls: it is
// 1,500 calls that change something in a minute ("Compute Engine rate quotas"),
// and what a minute has not used is gone with it.
func Kind() provider.Kind {
	return provider.Kind{
		Name: "gcp", Options: &Options{}, Args: &Args{}, BalancerArgs: &BalancerArgs{},
		Check: func(s provider.Settings) error {
			_, err := decode(s)
			return err
		},
		CheckSpec: func(s provider.Settings, spec nstance.MachineSpec) error {
			o, err := decode(s)
			if err == nil {
				_, err = o.request(s.Zone, spec)
			}
			return err
		},
		Open: func(ctx context.Context, s provider.Settings) (nstance.Provider, func() error, error) {
			o, err := decode(s)
			if err != nil {
				return nil, nil, err
			}
			p, err := New(ctx, s.Zone, o)
			if err != nil {
				return nil, nil, err
			}
			return p, func() error { return nil }, nil
		},
		Images: true, Balancers: true, Address: true, Spot: true,
		Park:        []nstance.ParkMode{nstance.ParkStopped, nstance.ParkHibernated},
		Consistency: consistency, MaxUserData: maxUserData, SampleImage: "projects/debian-cloud/global/images/debian-12",
		Rate: 10, Burst: 200,
	}
}

// decode reads and checks settings.
func decode(s provider.Settings) (*Options, error) {
	o := &Options{Log: s.Log}
	if err := provider.DecodeArgs(s.Options, o); err != nil {
		return nil, err
	}
	if err := o.check(s.Zone); err != nil {
		return nil, err
	}
	if region := zonePattern.FindStringSubmatch(s.Zone)[1]; s.Region != "" && s.Region != region {
		return nil, nstance.FieldError("shard.provider.region", "write "+region+", or nothing", "zone %s is not in region %.64q", s.Zone, s.Region)
	}
	return o, nil
}
