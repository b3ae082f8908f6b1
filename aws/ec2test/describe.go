package ec2test

import (
	"slices"
	"strings"
)

type describeInput struct {
	listInput
	InstanceIds []string `q:"InstanceId"`
}

type describeOutput struct {
	Reservations []*reservation `xml:"reservationSet>item"`
	NextToken    string         `xml:"nextToken,omitempty"`
}

var machineFilters = []string{
	"architecture", "availability-zone", "client-token", "hypervisor", "image-id", "instance-id", "instance-lifecycle", "instance-state-code",
	"instance-state-name", "instance-type", "instance.group-id", "ip-address", "key-name", "network-interface.network-interface-id",
	"network-interface.subnet-id", "network-interface.addresses.private-ip-address", "owner-id", "private-dns-name", "private-ip-address",
	"reservation-id", "spot-instance-request-id", "state-reason-code", "subnet-id", "tag-key", "vpc-id",
}

func (f *fleet) describeInstances(on call, in *describeInput) (*describeOutput, error) {
	if err := checkFilters(in.Filters, machineFilters); err != nil {
		return nil, err
	}
	if len(in.InstanceIds) > 0 && (in.MaxResults != nil || in.NextToken != "") {
		return nil, badCombination("The parameter instancesSet cannot be used with the parameter maxResults")
	}
	machines, err := f.named(on, in.InstanceIds)
	if err != nil {
		return nil, err
	}
	if len(in.InstanceIds) == 0 {
		for _, m := range f.machines {
			if f.visible(m, on.now) {
				machines = append(machines, m)
			}
		}
	}
	var ids []string
	for _, m := range machines {
		if fits(in.Filters, m.filterable(f.o), m.tags) {
			ids = append(ids, m.id)
		}
	}
	ids, next, err := f.o.page(in.pageInput, ids, minPage, maxPage)
	if err != nil {
		return nil, err
	}
	machines = machines[:0]
	for _, id := range ids {
		machines = append(machines, f.machines[id])
	}
	return &describeOutput{f.reservations(machines, byTag(in.Filters) || !f.o.NoTagsUnasked), next}, nil
}

// reservations puts machines together that were launched together.
func (f *fleet) reservations(machines []*machine, tags bool) []*reservation {
	var out []*reservation
	together := map[string]*reservation{}
	for _, m := range machines {
		r := together[m.reservation]
		if r == nil {
			r = &reservation{ID: m.reservation, Owner: f.o.Account}
			together[m.reservation] = r
			out = append(out, r)
		}
		r.Machines = append(r.Machines, m.item(f.o, tags))
	}
	return out
}

// named returns the machines with these IDs, or refuses the call if one of them
// is not known.
func (f *fleet) named(on call, ids []string) ([]*machine, error) {
	var machines []*machine
	var unknown []string
	for _, id := range ids {
		if !strings.HasPrefix(id, "i-") || len(id) != len("i-0123456789abcdef0") && len(id) != len("i-01234567") {
			return nil, refuse("InvalidInstanceID.Malformed", `Invalid id: "%s" (expecting "i-...")`, id)
		}
		m := f.machines[id]
		if m == nil || !f.visible(m, on.now) {
			unknown = append(unknown, id)
			continue
		}
		if !slices.Contains(machines, m) {
			machines = append(machines, m)
		}
	}
	if len(unknown) > 0 {
		return nil, unknownMachines(unknown...)
	}
	return machines, nil
}

func unknownMachines(ids ...string) error {
	if len(ids) == 1 {
		return refuse("InvalidInstanceID.NotFound", "The instance ID '%s' does not exist", ids[0])
	}
	return refuse("InvalidInstanceID.NotFound", "The instance IDs '%s' do not exist", strings.Join(ids, ", "))
}

func (m *machine) filterable(o *Options) filterable {
	has := filterable{
		"architecture": {m.image.Arch}, "availability-zone": {m.zone}, "client-token": {m.launch.ClientToken}, "hypervisor": {"xen"},
		"image-id": {m.image.ID}, "instance-id": {m.id}, "instance-state-code": {itoa(int(m.state))}, "instance-state-name": {m.state.String()},
		"instance-type": {m.kind.Name}, "key-name": {m.launch.KeyName}, "owner-id": {o.Account}, "reservation-id": {m.reservation},
	}
	if m.spot != nil {
		has["instance-lifecycle"], has["spot-instance-request-id"] = []string{"spot"}, []string{m.spot.id}
	}
	if m.reason != nil {
		has["state-reason-code"] = []string{m.reason.Code}
	}
	for n, i := range m.interfaces {
		if n == 0 {
			has["subnet-id"], has["vpc-id"], has["instance.group-id"] = []string{i.subnet.ID}, []string{o.Catalog.VPC}, i.groups
			has["private-ip-address"], has["private-dns-name"] = []string{i.addresses[0].String()}, []string{privateName(i.addresses[0], o.Region)}
		}
		has.add("network-interface.network-interface-id", i.id)
		has.add("network-interface.subnet-id", i.subnet.ID)
		for _, a := range i.addresses {
			has.add("network-interface.addresses.private-ip-address", a.String())
		}
	}
	return has
}

func (f filterable) add(name, value string) { f[name] = append(f[name], value) }
