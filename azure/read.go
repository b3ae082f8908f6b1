package azure

import (
	"context"
	"iter"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"github.com/nstance-go/nstance"
)

// Account implements [nstance.AccountNamer]. It asks Azure nothing: machines have
// their names in the resource group, whatever the credentials are. Azure compares
// these names without regard to case.
func (p *Provider) Account(context.Context) (string, error) {
	return strings.ToLower("subscriptions/" + p.o.Subscription + "/resourceGroups/" + p.o.ResourceGroup), nil
}

// Get implements [nstance.Provider].
func (p *Provider) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	vm, err := p.read(ctx, string(id), true)
	if err != nil {
		return nstance.Machine{}, readError(err)
	}
	m := p.machine(vm)
	if m.ID != id { // its tags were changed, or a stranger has this name: it is no proof of absence
		return nstance.Machine{}, nstance.Errorf(nstance.Conflict, "the virtual machine named %s is not marked as this instance", id)
	}
	p.created.add(id, time.Now())
	return m, nil
}

// read returns a machine, with its instance view if view.
func (p *Provider) read(ctx context.Context, name string, view bool) (*armcompute.VirtualMachine, error) {
	var o *armcompute.VirtualMachinesClientGetOptions
	if view {
		o = &armcompute.VirtualMachinesClientGetOptions{Expand: new(armcompute.InstanceViewTypesInstanceView)}
	}
	got, err := p.vms.Get(ctx, p.o.ResourceGroup, name, o)
	if err != nil {
		return nil, err
	}
	return &got.VirtualMachine, nil
}

// List implements [nstance.Provider]: the machines of the resource group, which
// Azure cannot filter by tags, with the power states of the subscription's, since
// that list has none.
func (p *Provider) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		var views map[string]*armcompute.VirtualMachineInstanceView
		pager, last := p.vms.NewListPager(p.o.ResourceGroup, nil), ""
		for pager.More() {
			page, err := pager.NextPage(ctx)
			if err == nil {
				err = checkPage(page.Value, deref(page.NextLink), last)
			}
			if err != nil {
				yield(nstance.Machine{}, readError(err))
				return
			}
			last = deref(page.NextLink)
			for _, vm := range page.Value {
				if !owner.Owns(readMarks(vm.Tags).owner()) || !strings.EqualFold(readMarks(vm.Tags)[tagID], deref(vm.Name)) {
					continue // of another owner, or a copy of one of our machines: it has the tags, and another name
				}
				if views == nil {
					views = p.powerStates(ctx)
				}
				if vm.Properties != nil {
					vm.Properties.InstanceView = views[viewKey(vm)]
				}
				if !yield(p.machine(vm), nil) {
					return
				}
			}
		}
	}
}

// checkPage fails when a page is none of a whole list: Azure writes an empty list too, and goes
// on with another page.
func checkPage[T any](list []*T, next, last string) error {
	switch {
	case list == nil:
		return nstance.Errorf(nstance.Unavailable, "azure: the answer is no list")
	case next != "" && next == last:
		return nstance.Errorf(nstance.Unavailable, "azure: the list goes on with the same page")
	}
	return nil
}

// viewKey is what the same machine has in both lists: its name may be another
// machine's by the time of the second.
func viewKey(vm *armcompute.VirtualMachine) string {
	if vm.Properties == nil {
		return ""
	}
	return strings.ToLower(deref(vm.ID) + " " + deref(vm.Properties.VMID))
}

// powerStates returns the instance views of the machines in the subscription. What
// cannot be read is missing: then the status of a machine is not known, which
// decides nothing.
func (p *Provider) powerStates(ctx context.Context) map[string]*armcompute.VirtualMachineInstanceView {
	views := map[string]*armcompute.VirtualMachineInstanceView{}
	pager, last := p.vms.NewListAllPager(&armcompute.VirtualMachinesClientListAllOptions{StatusOnly: new("true")}), ""
	for pager.More() {
		page, err := pager.NextPage(ctx)
		if err == nil {
			err = checkPage(page.Value, deref(page.NextLink), last)
		}
		if err != nil {
			p.log.Warn("power states cannot be read", "err", readError(err))
			return views
		}
		last = deref(page.NextLink)
		for _, vm := range page.Value {
			if vm.Properties != nil && vm.Properties.InstanceView != nil {
				views[viewKey(vm)] = vm.Properties.InstanceView
			}
		}
	}
	return views
}
