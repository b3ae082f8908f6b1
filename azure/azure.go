// Package azure is a provider of Azure virtual machines, through Azure Resource
// Manager.
//
// A machine is three resources of one resource group, all with the instance ID as
// their name: a network interface, which is made first, a virtual machine, and its
// disk. The interface and the disk are deleted with the machine, and Delete looks
// for both by name until they are gone. Whatever else it has is its parts: the first
// interface names them, is made before them, and is deleted after them.
//
// The interface has a write of its own, since the names of interfaces that Azure
// makes out of networkProfile.networkInterfaceConfigurations are Azure's choice
// (the API description's own example shows another name than the one requested):
// what a failed create leaves behind could not be found again.
//
// A [Provider] is safe for concurrent use.
package azure

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// Consistency is how long Azure may not know its own new machine.
const Consistency = 30 * time.Second

// What Azure permits of creates in a subscription and a region: 500 a minute, and
// 1,500 at once ("Troubleshooting API throttling errors", Microsoft.Compute).
const (
	createRate  = 500.0 / 60
	createBurst = 1500
)

// A Provider makes machines in one resource group and one location. It is safe for
// concurrent use; New makes one.
type Provider struct {
	o        Options
	log      *slog.Logger
	http     policy.Transporter
	vms      *armcompute.VirtualMachinesClient
	disks    *armcompute.DisksClient
	sizes    *armcompute.ResourceSKUsClient
	images   *armcompute.GalleryImagesClient
	versions *armcompute.GalleryImageVersionsClient
	nics     *armnetwork.InterfacesClient
	publics  *armnetwork.PublicIPAddressesClient
	networks *armnetwork.VirtualNetworksClient
	subnets  *armnetwork.SubnetsClient
	pools    *armnetwork.LoadBalancerBackendAddressPoolsClient

	created seenIDs
	asked   changesAsked
	writers writers
	types   typeCache
}

var _ nstance.Provider = (*Provider)(nil)

// New returns a provider. It asks Azure nothing. Fails with Invalid for options
// that are missing or wrong, Denied when there are no credentials.
func New(o Options) (*Provider, error) {
	o, err := o.resolve()
	if err != nil {
		return nil, err
	}
	cred, err := o.credential()
	if err != nil {
		return nil, err
	}
	client, err := o.client()
	if err != nil {
		return nil, err
	}
	p := &Provider{o: o, log: o.Log, http: client.Transport, types: typeCache{turn: make(chan struct{}, 1)}}
	if err := p.connect(cred, client); err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "azure: %w", err)
	}
	return p, nil
}

func (p *Provider) connect(cred azcore.TokenCredential, o *arm.ClientOptions) error {
	compute, err := armcompute.NewClientFactory(p.o.Subscription, cred, o)
	if err != nil {
		return err
	}
	network, err := armnetwork.NewClientFactory(p.o.Subscription, cred, o)
	if err != nil {
		return err
	}
	p.vms, p.disks = compute.NewVirtualMachinesClient(), compute.NewDisksClient()
	p.sizes, p.images, p.versions = compute.NewResourceSKUsClient(), compute.NewGalleryImagesClient(), compute.NewGalleryImageVersionsClient()
	p.nics, p.networks, p.subnets = network.NewInterfacesClient(), network.NewVirtualNetworksClient(), network.NewSubnetsClient()
	p.pools, p.publics = network.NewLoadBalancerBackendAddressPoolsClient(), network.NewPublicIPAddressesClient()
	return nil
}

// Kind returns what a composition needs to offer this provider.
func Kind() provider.Kind {
	return provider.Kind{
		Name:    "azure",
		Options: &Options{}, Args: &Args{},
		Check: func(s provider.Settings) error {
			_, err := settings(s)
			return err
		},
		CheckSpec: func(s provider.Settings, spec nstance.MachineSpec) error {
			o, err := settings(s)
			if err != nil {
				return err
			}
			_, err = o.request(spec)
			return err
		},
		Open: func(_ context.Context, s provider.Settings) (nstance.Provider, func() error, error) {
			o, err := settings(s)
			if err != nil {
				return nil, nil, err
			}
			p, err := New(o)
			if err != nil {
				return nil, nil, err
			}
			return p, func() error { return nil }, nil
		},
		Images:      true,
		Balancers:   true,
		Address:     true,
		Spot:        true,
		Park:        parkModes(),
		Consistency: Consistency,
		MaxUserData: maxUserData,
		SampleImage: "Canonical:ubuntu-24_04-lts:server:latest",
		Rate:        createRate,
		Burst:       createBurst,
	}
}

// settings returns the checked options of a configuration.
func settings(s provider.Settings) (Options, error) {
	var o Options
	if err := provider.DecodeOptions(s.Options, &o); err != nil {
		return o, err
	}
	if o.Location == "" {
		o.Location = s.Region
	}
	o.Zone, o.Log = s.Zone, s.Log
	return o.resolve()
}

// seenIDs remembers which machines Azure has known: a PUT of a name that was
// deleted makes a new machine, so that such a name is never put again. It is safe
// for concurrent use.
type seenIDs struct {
	mu    sync.Mutex
	at    map[nstance.InstanceID]time.Time
	order []nstance.InstanceID
}

// maxSeen bounds the memory.
const maxSeen = 100_000

func (s *seenIDs) add(id nstance.InstanceID, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at = map[nstance.InstanceID]time.Time{}
	}
	if _, ok := s.at[id]; ok {
		return
	}
	s.at[id] = now
	s.order = append(s.order, id)
	if len(s.order) > maxSeen {
		delete(s.at, s.order[0])
		s.order = s.order[1:]
	}
}

// since returns when id was first known, or the zero time.
func (s *seenIDs) since(id nstance.InstanceID) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at[id]
}
