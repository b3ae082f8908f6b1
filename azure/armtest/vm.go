package armtest

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	azfake "github.com/Azure/azure-sdk-for-go/sdk/azcore/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// A vm is one virtual machine. The cloud's lock guards it.
type vm struct {
	id        string
	serial    int
	model     armcompute.VirtualMachine // as it was put, without what is never shown
	userData  []byte                    // decoded customData
	size      Size
	provision string // state of the last operation
	power     string // "" until it is known
	failure   failure
	visible   time.Time
	life      int // grows whenever it is started
	operation *operation
	guest     testcloud.Guest
	held      bool // takes up capacity
	gone      bool
	printed   []byte // serial console
	hibernate bool   // deallocated with its memory
}

// A failure is why a create failed after it had been accepted.
type failure struct{ code, message string }

// The provisioning states and power states ("States and billing status of Azure
// Virtual Machines").
const (
	creating  = "Creating"
	updating  = "Updating"
	succeeded = "Succeeded"
	failed    = "Failed"
	deleting  = "Deleting"

	powerStarting     = "starting"
	powerRunning      = "running"
	powerStopped      = "stopped"
	powerDeallocating = "deallocating"
	powerDeallocated  = "deallocated"
)

func (v *vm) spot() bool {
	p := v.model.Properties.Priority
	return p != nil && *p != armcompute.VirtualMachinePriorityTypesRegular
}

func (v *vm) tag(name string) string {
	for key, value := range v.model.Tags {
		if strings.EqualFold(key, name) && value != nil {
			return *value
		}
	}
	return ""
}

func (v *vm) zone() string {
	if len(v.model.Zones) == 0 {
		return ""
	}
	return *v.model.Zones[0]
}

func (v *vm) shape() testcloud.Shape {
	return testcloud.Shape{Type: v.size.Name, Zone: v.zone(), Spot: v.spot()}
}

func (v *vm) status() nstance.MachineStatus {
	switch {
	case v.provision == deleting:
		return nstance.StatusDeleting
	case v.provision == failed:
		return nstance.StatusFailed
	case v.power == powerRunning:
		return nstance.StatusRunning
	case v.power == powerStopped, v.power == powerDeallocated:
		return nstance.StatusStopped
	case v.power == powerDeallocating:
		return nstance.StatusStopping
	}
	return nstance.StatusPending
}

// ordered returns the machines in the order in which they were made. It needs the
// lock.
func (c *Cloud) ordered() []*vm {
	var out []*vm
	for _, v := range c.vms {
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b *vm) int { return cmp.Compare(a.serial, b.serial) })
	return out
}

// visibleVM returns the machine of a path, if answers contain it.
func (k *call) visibleVM(name string) (*vm, *Refusal) {
	v := k.c.vms[strings.ToLower(name)]
	if v == nil || time.Now().Before(v.visible) {
		return nil, refuse(http.StatusNotFound, "ResourceNotFound",
			"The Resource 'Microsoft.Compute/virtualMachines/%s' under resource group '%s' was not found.", name, k.path["group"])
	}
	return v, nil
}

func (k *call) putVM(_ context.Context, _, name string, m armcompute.VirtualMachine, o *armcompute.VirtualMachinesClientBeginCreateOrUpdateOptions) (azfake.PollerResponder[armcompute.VirtualMachinesClientCreateOrUpdateResponse], azfake.ErrorResponder) {
	var out armcompute.VirtualMachine
	var err *Refusal
	k.c.update(func() {
		var v *vm
		if v, err = k.createVM(name, m, o); err == nil {
			out = v.show(false)
		}
	})
	return answered(http.StatusCreated, armcompute.VirtualMachinesClientCreateOrUpdateResponse{VirtualMachine: out}, err)
}

// createVM makes a machine. Changing one that exists is more than this cloud can:
// what Azure refuses of it is refused. It needs the lock.
func (k *call) createVM(name string, m armcompute.VirtualMachine, o *armcompute.VirtualMachinesClientBeginCreateOrUpdateOptions) (*vm, *Refusal) {
	c := k.c
	if c.vms[strings.ToLower(name)] != nil {
		if o != nil && o.IfNoneMatch != nil && *o.IfNoneMatch == "*" {
			return nil, refuse(http.StatusPreconditionFailed, "PreconditionFailed", "The condition '*' set on if-none-match is not satisfied.")
		}
		return nil, refuse(http.StatusConflict, "PropertyChangeNotAllowed", "Changing property 'osProfile.customData' is not allowed.")
	}
	size, err := k.checkVM(name, &m)
	if err != nil {
		return nil, err
	}
	v := &vm{id: k.vmID(name), serial: c.serial, model: m, size: size, provision: creating, visible: time.Now().Add(c.o.Delays.Visible)}
	c.serial++
	if v.userData, err = customData(m.Properties.OSProfile); err != nil {
		return nil, err
	}
	if err := c.claim(v); err != nil {
		return nil, err
	}
	v.adopt(name)
	c.attach(v)
	c.vms[strings.ToLower(name)] = v
	v.operation = k.begin()
	c.launch(v)
	return v, nil
}

func (k *call) vmID(name string) string {
	return fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/Microsoft.Compute/virtualMachines/%s", k.c.o.Subscription, k.path["group"], name)
}

// adopt fills in what Azure adds to the model, and drops what it never shows.
func (v *vm) adopt(name string) {
	p := v.model.Properties
	v.model.ID, v.model.Name, v.model.Type = new(v.id), new(name), new("Microsoft.Compute/virtualMachines")
	p.VMID, p.TimeCreated = new(newUUID()), new(time.Now().UTC())
	p.OSProfile.CustomData, p.OSProfile.AdminPassword = nil, nil
	if disk := p.StorageProfile.OSDisk; disk.Name == nil {
		disk.Name = new(name + "_OsDisk_1_" + strings.ToLower(rand.Text()))
	}
}

func newUUID() string {
	b := make([]byte, 16)
	rand.Read(b) // never fails, see crypto/rand
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func customData(p *armcompute.OSProfile) ([]byte, *Refusal) {
	if p.CustomData == nil {
		return nil, nil
	}
	b, err := base64.StdEncoding.DecodeString(*p.CustomData)
	if err != nil {
		return nil, badParameter("customData", "Custom data in OSProfile must be in Base64 encoding.")
	}
	if len(b) > 65535 {
		return nil, badParameter("customData", "Custom data in OSProfile must not exceed 65535 bytes.")
	}
	return b, nil
}

// show returns the machine as answers do: the instance view only on request.
func (v *vm) show(view bool) armcompute.VirtualMachine {
	out, p := v.model, *v.model.Properties
	p.ProvisioningState = new(v.provision)
	if view {
		p.InstanceView = v.view()
	}
	out.Properties = &p
	return out
}

func (v *vm) view() *armcompute.VirtualMachineInstanceView {
	code := "ProvisioningState/" + strings.ToLower(v.provision)
	if v.provision == failed {
		code += "/" + v.failure.code
	}
	out := &armcompute.VirtualMachineInstanceView{Statuses: []*armcompute.InstanceViewStatus{
		{Code: &code, Message: new(v.failure.message), Time: new(time.Now().UTC())},
	}}
	if v.power != "" {
		out.Statuses = append(out.Statuses, &armcompute.InstanceViewStatus{Code: new("PowerState/" + v.power)})
	}
	return out
}

func (k *call) getVM(_ context.Context, _, name string, o *armcompute.VirtualMachinesClientGetOptions) (azfake.Responder[armcompute.VirtualMachinesClientGetResponse], azfake.ErrorResponder) {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	v, err := k.visibleVM(name)
	if err != nil {
		return found(armcompute.VirtualMachinesClientGetResponse{}, err)
	}
	view := o != nil && o.Expand != nil && *o.Expand == armcompute.InstanceViewTypesInstanceView
	return found(armcompute.VirtualMachinesClientGetResponse{VirtualMachine: v.show(view)}, nil)
}

func (k *call) deleteVM(_ context.Context, _, name string, _ *armcompute.VirtualMachinesClientBeginDeleteOptions) (azfake.PollerResponder[armcompute.VirtualMachinesClientDeleteResponse], azfake.ErrorResponder) {
	status := http.StatusNoContent
	k.c.update(func() {
		if v := k.c.vms[strings.ToLower(name)]; v != nil {
			status = http.StatusAccepted
			v.operation.end(opCanceled, &Detail{"OperationPreempted", "The operation has been preempted by a more recent operation."})
			v.operation = k.begin()
			k.c.remove(v)
		}
	})
	return accepted[armcompute.VirtualMachinesClientDeleteResponse](status, nil)
}

func (k *call) listVMs(_ string, o *armcompute.VirtualMachinesClientListOptions) (p azfake.PagerResponder[armcompute.VirtualMachinesClientListResponse]) {
	if o != nil && o.Expand != nil && o.Filter == nil {
		p.AddError(badParameter("$expand", "The expand needs a filter of a scale set."))
		return p
	}
	if o != nil && o.Filter != nil && !strings.Contains(*o.Filter, "virtualMachineScaleSet/id") {
		p.AddError(badParameter("$filter", "The filter is not supported."))
		return p
	}
	page, next := k.page(false)
	out := armcompute.VirtualMachinesClientListResponse{VirtualMachineListResult: armcompute.VirtualMachineListResult{Value: page, NextLink: next}}
	p.AddPage(http.StatusOK, out, nil)
	return p
}

func (k *call) listStatuses(o *armcompute.VirtualMachinesClientListAllOptions) (p azfake.PagerResponder[armcompute.VirtualMachinesClientListAllResponse]) {
	only := o != nil && o.StatusOnly != nil && *o.StatusOnly == "true"
	page, next := k.page(only)
	if only {
		for i, m := range page { // run time status, and what names the machine
			page[i] = &armcompute.VirtualMachine{ID: new(strings.ToUpper(*m.ID)), Name: m.Name, Type: m.Type, Location: m.Location,
				Properties: &armcompute.VirtualMachineProperties{VMID: m.Properties.VMID, ProvisioningState: m.Properties.ProvisioningState, InstanceView: m.Properties.InstanceView}}
		}
	}
	out := armcompute.VirtualMachinesClientListAllResponse{VirtualMachineListResult: armcompute.VirtualMachineListResult{Value: page, NextLink: next}}
	p.AddPage(http.StatusOK, out, nil)
	return p
}

// page returns one page of machines, and where the next one is.
func (k *call) page(view bool) ([]*armcompute.VirtualMachine, *string) {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	var seen []*vm
	for _, v := range k.c.ordered() {
		if !time.Now().Before(v.visible) {
			seen = append(seen, v)
		}
	}
	seen, next := cut(k, seen, func(v *vm) int { return v.serial })
	out := []*armcompute.VirtualMachine{}
	for _, v := range seen {
		out = append(out, new(v.show(view)))
	}
	return out, next
}
