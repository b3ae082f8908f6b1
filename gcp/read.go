package gcp

import (
	"cmp"
	"context"
	"iter"
	"net/netip"
	"strconv"
	"strings"
	"time"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
)

// zonePath is how the cloud names a zone in its messages.
func (p *Provider) zonePath(zone string) string {
	return "projects/" + p.o.Project + "/zones/" + zone
}

// path is how the cloud names a machine in its messages.
func (p *Provider) path(zone, name string) string { return p.zonePath(zone) + "/instances/" + name }

// handle is the provider ID of a machine: the one that Kubernetes nodes have.
func (p *Provider) handle(zone, name string) string {
	return "gce://" + p.o.Project + "/" + zone + "/" + name
}

// NodeProviderID implements [nstance.NodeNamer]: the provider ID of a machine is in the
// form that Google's cloud controller manager writes, gce://PROJECT/ZONE/NAME
// (getProviderID in providers/gce of kubernetes/cloud-provider-gcp).
func (*Provider) NodeProviderID(m nstance.Machine) string { return m.ProviderID }

// Account implements [nstance.AccountNamer]. It asks the cloud nothing: machines
// have their names in the zones of the project, whatever the credentials are. Several
// zones are several places.
func (p *Provider) Account(context.Context) (string, error) { return p.account(), nil }

func (p *Provider) account() string {
	places := make([]string, len(p.zones))
	for i, zone := range p.zones {
		places[i] = p.zonePath(zone)
	}
	return strings.Join(places, ",")
}

// instance reads one machine of a zone. The SDK takes any object for one, so one that shows another
// name, or none, says nothing.
func (p *Provider) instance(ctx context.Context, zone, name string) (*computepb.Instance, error) {
	if err := before(ctx); err != nil {
		return nil, err
	}
	i, err := p.instances.Get(ctx, &computepb.GetInstanceRequest{Project: p.o.Project, Zone: zone, Instance: name})
	if err == nil && i.GetName() != name {
		return nil, nstance.Errorf(nstance.Unavailable, "the answer is not machine %s: its name is %.64q", name, i.GetName())
	}
	return i, classify(err, p.path(zone, name), false)
}

// Get implements [nstance.Provider]. When the machine is absent or dead, the
// cloud's operations say why, at the price of another call. It is one call when the
// machine was seen before or there is one zone, else one for each zone. Without an answer
// of every zone, or while one is still making the machine and others could too, absence is
// not proved: that is Unavailable.
func (p *Provider) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	if _, err := nstance.ParseInstanceID(string(id)); err != nil {
		return nstance.Machine{}, err
	}
	zone, i, err := p.find(ctx, string(id))
	if nstance.CodeOf(err) == nstance.NotFound {
		h, readErr := p.histories(ctx, p.zones, string(id))
		switch {
		case readErr != nil:
			return nstance.Machine{}, readErr
		case len(p.zones) > 1 && h.starting():
			return nstance.Machine{}, stillStarting(id)
		}
		return nstance.Machine{}, h.lost(id)
	}
	if err != nil {
		return nstance.Machine{}, err
	}
	if i.GetLabels()[labelID] != string(id) {
		return nstance.Machine{}, nstance.Errorf(nstance.Conflict, "machine %s exists without the marks of an instance", id)
	}
	m := p.machine(zone, i)
	if m.Status.Dead() {
		h, err := p.history(ctx, zone, string(id))
		if err != nil {
			return nstance.Machine{}, err
		}
		m.Cause, m.CauseText = h.cause, h.reason
	}
	return m, nil
}

// List implements [nstance.Provider]: one call for 500 machines of a zone, and
// if there are dead spot machines among them, one more for what was reclaimed. All zones
// are listed at once. After the machines of those that answer comes the error of one that
// does not.
func (p *Provider) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		if err := p.list(ctx, owner, func(m nstance.Machine) bool { return yield(m, nil) }); err != nil {
			yield(nstance.Machine{}, err)
		}
	}
}

func (p *Provider) list(ctx context.Context, owner nstance.Owner, yield func(nstance.Machine) bool) error {
	filter, err := filterOf(owner)
	if err != nil {
		return err
	}
	if len(p.zones) == 1 {
		return p.listZone(ctx, p.zone, filter, yield)
	}
	ctx, cancel := context.WithCancel(ctx)
	listed, ended := make(chan nstance.Machine), make(chan error, 1)
	go func() {
		defer close(listed)
		ended <- eachZone(p.zones, func(zone string) error {
			return p.listZone(ctx, zone, filter, func(m nstance.Machine) bool {
				select {
				case listed <- m:
					return true
				case <-ctx.Done():
					return false
				}
			})
		})
	}()
	defer func() { // its goroutines end before it does
		cancel()
		for range listed {
		}
	}()
	for m := range listed {
		p.seen.add(string(m.ID), m.Zone)
		if !yield(m) {
			return nil
		}
	}
	return cmp.Or(<-ended, before(ctx))
}

func (p *Provider) listZone(ctx context.Context, zone, filter string, yield func(nstance.Machine) bool) error {
	client, err := compute.NewInstancesRESTClient(ctx, p.bound(ctx)...)
	if err != nil {
		return err
	}
	it := client.List(ctx, &computepb.ListInstancesRequest{Project: p.o.Project, Zone: zone, Filter: proto.String(filter)})
	var reclaimed map[uint64]bool
	var causeErr error
	err = eachPage(ctx, "instances", it.InternalFetch, func() any { return it.Response }, func(page []*computepb.Instance) bool {
		for _, i := range page {
			if i.GetLabels()[labelID] != i.GetName() {
				continue // a manual copy of one of our machines: its labels were copied, its name was not
			}
			m := p.machine(zone, i)
			if m.Status.Dead() && m.Market == nstance.Spot {
				if reclaimed == nil {
					if reclaimed, causeErr = p.reclaimed(ctx, zone); causeErr != nil {
						return false
					}
				}
				if reclaimed[i.GetId()] {
					m.Cause = nstance.LossReclaimed
				}
			}
			if !yield(m) {
				return false
			}
		}
		return true
	})
	if causeErr != nil {
		return causeErr
	}
	return err
}

// statuses are the cloud's words for what a machine does. A machine that is
// PENDING_STOP still runs; REPAIRING, and every word that is not here, decides
// nothing.
var statuses = map[string]nstance.MachineStatus{
	"PENDING":        nstance.StatusPending,
	"PROVISIONING":   nstance.StatusPending,
	"STAGING":        nstance.StatusPending,
	"RUNNING":        nstance.StatusRunning,
	"PENDING_STOP":   nstance.StatusRunning,
	"STOPPING":       nstance.StatusStopping,
	"DEPROVISIONING": nstance.StatusStopping,
	"SUSPENDING":     nstance.StatusStopping,
	"STOPPED":        nstance.StatusStopped,
	"TERMINATED":     nstance.StatusStopped,
	"SUSPENDED":      nstance.StatusStopped,
}

// machine returns what the cloud shows of a machine in a zone.
func (p *Provider) machine(zone string, i *computepb.Instance) nstance.Machine {
	labels := i.GetLabels()
	epoch, _ := strconv.ParseUint(labels[labelEpoch], 10, 64) // 0: older than any term
	m := nstance.Machine{
		ID: nstance.InstanceID(labels[labelID]), ProviderID: p.handle(zone, i.GetName()), Owner: ownerOf(labels),
		Group: nstance.GroupID(labels[labelGroup]), CreatedAt: createdAt(labels), Epoch: epoch, Status: statuses[i.GetStatus()],
		InstanceType: lastPart(i.GetMachineType()), Zone: zone, Market: marketOf(i.GetScheduling()),
		ReclaimWarning: warningOf(i.GetScheduling()),
	}
	if m.Status == "" {
		m.Status = nstance.StatusUnknown
	}
	m.Addresses = addressesOf(i)
	return m
}

// addressesOf returns the internal addresses of a machine, then its public ones, each in the
// order of its interfaces. Alias ranges are not among them.
func addressesOf(i *computepb.Instance) []netip.Addr {
	var internal, external []netip.Addr
	for _, n := range i.GetNetworkInterfaces() {
		internal = appendAddress(internal, n.GetNetworkIP())
		internal = appendAddress(internal, n.GetIpv6Address())
		for _, a := range n.GetAccessConfigs() {
			external = appendAddress(external, a.GetNatIP())
		}
		for _, a := range n.GetIpv6AccessConfigs() {
			external = appendAddress(external, a.GetExternalIpv6())
		}
	}
	return append(internal, external...)
}

func marketOf(s *computepb.Scheduling) nstance.MarketType {
	if s.GetPreemptible() || strings.EqualFold(s.GetProvisioningModel(), "SPOT") {
		return nstance.Spot
	}
	return nstance.OnDemand
}

// warningOf returns how long before the signal to power off the metadata service
// announces a preemption. What follows the signal, up to 30 s, is not counted.
func warningOf(s *computepb.Scheduling) time.Duration {
	return time.Duration(s.GetPreemptionNoticeDuration().GetSeconds()) * time.Second
}

func appendAddress(all []netip.Addr, text string) []netip.Addr {
	if a, err := netip.ParseAddr(text); err == nil {
		return append(all, a)
	}
	return all
}
