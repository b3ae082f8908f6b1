package azure

import (
	"context"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"github.com/nstance-go/nstance"
)

// Delete implements [nstance.Provider]. NotFound means that the machine, its
// interface, its disk and its parts are gone: Azure deletes most of them with the machine,
// unless its create has failed.
func (p *Provider) Delete(ctx context.Context, m nstance.Machine) error {
	name := string(m.ID)
	if m.ProviderID != "" {
		var ok bool
		if name, ok = p.o.nameOf(m.ProviderID); !ok {
			return nstance.Errorf(nstance.Conflict, "%s is not in resource group %s", m.ProviderID, p.o.ResourceGroup)
		}
	}
	repeats := p.asked.repeats(name, "delete")
	vm, err := p.read(ctx, name, repeats)
	if err == nil {
		err = p.deleteVM(ctx, name, vm, m)
		if err == nil && repeats {
			err = failedBefore(vm)
		}
		return err
	}
	if !isGone(err) {
		return deleteError(err)
	}
	for _, step := range []func(context.Context, string, nstance.Machine) (bool, error){p.deleteNIC, p.deleteDisk} {
		if left, err := step(ctx, name, m); left || err != nil {
			return err
		}
	}
	p.asked.forget(name)
	return nstance.Errorf(nstance.NotFound, "no machine %s", m.ID)
}

// deleteVM sends one delete: Azure permits four a minute of a machine.
func (p *Provider) deleteVM(ctx context.Context, name string, vm *armcompute.VirtualMachine, m nstance.Machine) error {
	if err := checkMarks("machine "+name, vm.Tags, m); err != nil {
		return err
	}
	if vm.Properties != nil && strings.EqualFold(deref(vm.Properties.ProvisioningState), "deleting") {
		return nil
	}
	_, err := p.vms.BeginDelete(ctx, p.o.ResourceGroup, name, &armcompute.VirtualMachinesClientBeginDeleteOptions{ForceDeletion: new(true)})
	if err != nil && !isGone(err) {
		return deleteError(err)
	}
	return nil
}

// deleteNIC deletes an interface that was left behind, after the parts that it names, and
// reports whether there was one. Azure reserves it for three minutes after a failed create.
func (p *Provider) deleteNIC(ctx context.Context, name string, m nstance.Machine) (bool, error) {
	nic, err := p.nics.Get(ctx, p.o.ResourceGroup, name, nil)
	if err != nil {
		return false, unlessGone(err)
	}
	if err := checkMarks("network interface "+name, nic.Tags, m); err != nil {
		return true, err
	}
	if left, err := p.deleteParts(ctx, name, &nic.Interface, m); left || err != nil {
		return true, err
	}
	if nic.Properties != nil && deref(nic.Properties.ProvisioningState) == armnetwork.ProvisioningStateDeleting {
		return true, nil
	}
	_, err = p.nics.BeginDelete(ctx, p.o.ResourceGroup, name, nil)
	return true, unlessGone(err)
}

func (p *Provider) deleteDisk(ctx context.Context, name string, m nstance.Machine) (bool, error) {
	disk, err := p.disks.Get(ctx, p.o.ResourceGroup, name, nil)
	if err != nil {
		return false, unlessGone(err)
	}
	if readMarks(disk.Tags)[tagID] != "" { // a disk has those of its machine, or none of ours
		if err := checkMarks("disk "+name, disk.Tags, m); err != nil {
			return true, err
		}
	}
	if disk.Properties != nil && strings.EqualFold(deref(disk.Properties.ProvisioningState), "deleting") {
		return true, nil
	}
	_, err = p.disks.BeginDelete(ctx, p.o.ResourceGroup, name, nil)
	return true, unlessGone(err)
}

func unlessGone(err error) error {
	if err == nil || isGone(err) {
		return nil
	}
	return deleteError(err)
}

// checkMarks refuses a resource that is not m's.
func checkMarks(what string, tags map[string]*string, m nstance.Machine) error {
	got := readMarks(tags)
	if got[tagID] != string(m.ID) || got.owner() != m.Owner {
		return nstance.Errorf(nstance.Conflict, "%s is marked as %.64q of %+v", what, got[tagID], got.owner())
	}
	return nil
}
