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

// A vmCalls answers calls for machines.
type vmCalls struct {
	*call
	fleet  *fleet
	checks vmChecks
}

// ordered returns the machines in the order in which they were made.
func (f *fleet) ordered() []*vm {
	var out []*vm
	for _, v := range f.vms {
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b *vm) int { return cmp.Compare(a.serial, b.serial) })
	return out
}

// visible returns the machine of a path, if answers contain it.
func (k vmCalls) visible(name string) (*vm, *Refusal) {
	v := k.fleet.vms[strings.ToLower(name)]
	if v == nil || time.Now().Before(v.visible) {
		return nil, k.notFound("Microsoft.Compute/virtualMachines", name)
	}
	return v, nil
}

func (k vmCalls) put(_ context.Context, _, name string, m armcompute.VirtualMachine, o *armcompute.VirtualMachinesClientBeginCreateOrUpdateOptions) (azfake.PollerResponder[armcompute.VirtualMachinesClientCreateOrUpdateResponse], azfake.ErrorResponder) {
	v, err := k.create(name, m, o)
	if err != nil {
		return answered(0, armcompute.VirtualMachinesClientCreateOrUpdateResponse{}, err)
	}
	return answered(http.StatusCreated, armcompute.VirtualMachinesClientCreateOrUpdateResponse{VirtualMachine: v.show(false)}, nil)
}

// create makes a machine. Changing one that exists is more than this cloud can:
// what Azure refuses of it is refused.
func (k vmCalls) create(name string, m armcompute.VirtualMachine, o *armcompute.VirtualMachinesClientBeginCreateOrUpdateOptions) (*vm, *Refusal) {
	if k.fleet.vms[strings.ToLower(name)] != nil {
		if o != nil && o.IfNoneMatch != nil && *o.IfNoneMatch == "*" {
			return nil, refuse(http.StatusPreconditionFailed, "PreconditionFailed", "The condition '*' set on if-none-match is not satisfied.")
		}
		return nil, refuse(http.StatusConflict, "PropertyChangeNotAllowed", "Changing property 'osProfile.customData' is not allowed.")
	}
	size, err := k.checks.check(name, &m)
	if err != nil {
		return nil, err
	}
	v := &vm{id: k.id("Microsoft.Compute/virtualMachines", name), serial: k.fleet.serial, model: m, size: size, provision: creating, visible: time.Now().Add(k.o.Delays.Visible)}
	k.fleet.serial++
	if v.userData, err = customData(m.Properties.OSProfile); err != nil {
		return nil, err
	}
	if err := k.fleet.claim(v); err != nil {
		return nil, err
	}
	v.adopt(name)
	k.fleet.attach(v)
	k.fleet.vms[strings.ToLower(name)] = v
	v.operation = k.begin()
	k.fleet.launch(v)
	return v, nil
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

func (k vmCalls) get(_ context.Context, _, name string, o *armcompute.VirtualMachinesClientGetOptions) (azfake.Responder[armcompute.VirtualMachinesClientGetResponse], azfake.ErrorResponder) {
	v, err := k.visible(name)
	if err != nil {
		return found(armcompute.VirtualMachinesClientGetResponse{}, err)
	}
	view := o != nil && o.Expand != nil && *o.Expand == armcompute.InstanceViewTypesInstanceView
	return found(armcompute.VirtualMachinesClientGetResponse{VirtualMachine: v.show(view)}, nil)
}

func (k vmCalls) delete(_ context.Context, _, name string, _ *armcompute.VirtualMachinesClientBeginDeleteOptions) (azfake.PollerResponder[armcompute.VirtualMachinesClientDeleteResponse], azfake.ErrorResponder) {
	v := k.fleet.vms[strings.ToLower(name)]
	if v == nil {
		return accepted[armcompute.VirtualMachinesClientDeleteResponse](http.StatusNoContent, nil)
	}
	v.preempt(k.begin())
	k.fleet.remove(v)
	return accepted[armcompute.VirtualMachinesClientDeleteResponse](http.StatusAccepted, nil)
}

func (k vmCalls) list(_ string, o *armcompute.VirtualMachinesClientListOptions) (p azfake.PagerResponder[armcompute.VirtualMachinesClientListResponse]) {
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

func (k vmCalls) listStatuses(o *armcompute.VirtualMachinesClientListAllOptions) (p azfake.PagerResponder[armcompute.VirtualMachinesClientListAllResponse]) {
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
func (k vmCalls) page(view bool) ([]*armcompute.VirtualMachine, *string) {
	var seen []*vm
	for _, v := range k.fleet.ordered() {
		if !time.Now().Before(v.visible) {
			seen = append(seen, v)
		}
	}
	seen, next := cut(k.call, seen, func(v *vm) int { return v.serial })
	out := []*armcompute.VirtualMachine{}
	for _, v := range seen {
		out = append(out, new(v.show(view)))
	}
	return out, next
}
