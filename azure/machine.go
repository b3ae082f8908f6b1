package azure

import (
	"cmp"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"github.com/nstance-go/nstance"
)

// handle returns the ARM ID of a machine, in one spelling: Azure's own differs in
// case from answer to answer.
func (o Options) handle(name string) string {
	return "/subscriptions/" + o.Subscription + "/resourceGroups/" + o.ResourceGroup + "/providers/Microsoft.Compute/virtualMachines/" + name
}

// NodeProviderID implements [nstance.NodeNamer]: azure:// and the ARM ID, with the names
// of subscription and resource group in lower case, as cloud-provider-azure writes it
// for machines outside of scale sets, whatever case Azure answers in
// (ConvertResourceGroupNameToLower in pkg/provider/azure_wrap.go,
// getLocalInstanceProviderID in azure_instances_v1.go).
func (p *Provider) NodeProviderID(m nstance.Machine) string {
	name, ok := p.o.nameOf(m.ProviderID)
	if !ok {
		return ""
	}
	lower := Options{Subscription: strings.ToLower(p.o.Subscription), ResourceGroup: strings.ToLower(p.o.ResourceGroup)}
	return "azure://" + lower.handle(name)
}

// nameOf returns the name in a handle of this resource group.
func (o Options) nameOf(handle string) (string, bool) {
	prefix := o.handle("")
	if len(handle) <= len(prefix) || !strings.EqualFold(handle[:len(prefix)], prefix) || strings.Contains(handle[len(prefix):], "/") {
		return "", false
	}
	return handle[len(prefix):], true
}

// machine returns what Azure says of a machine.
func (p *Provider) machine(vm *armcompute.VirtualMachine) nstance.Machine {
	m := readMarks(vm.Tags).machine()
	name := deref(vm.Name)
	if strings.EqualFold(name, string(m.ID)) { // in whatever case this answer has it
		name = string(m.ID)
	}
	m.ProviderID, m.Market, m.Status = p.o.handle(name), nstance.OnDemand, nstance.StatusUnknown
	m.Zone = zoneOf(vm.Zones)
	properties := vm.Properties
	if properties == nil {
		return m
	}
	if properties.HardwareProfile != nil {
		m.InstanceType = string(deref(properties.HardwareProfile.VMSize))
	}
	if priority := deref(properties.Priority); priority == armcompute.VirtualMachinePriorityTypesSpot || priority == armcompute.VirtualMachinePriorityTypesLow {
		m.Market = nstance.Spot
	}
	m.Status, m.Cause = statusOf(deref(properties.ProvisioningState), viewOf(properties.InstanceView), m.Market)
	if m.Status.Dead() {
		m.CauseText = viewOf(properties.InstanceView).words
	}
	return m
}

// A view is what the statuses of an instance view say.
type view struct {
	known   bool
	power   string // such as running; empty: not said
	failure string // error code of the last operation
	words   string // its message
}

func viewOf(v *armcompute.VirtualMachineInstanceView) view {
	if v == nil {
		return view{}
	}
	out := view{known: true}
	for _, s := range v.Statuses {
		code := deref(s.Code)
		if power, ok := cutFold(code, "PowerState/"); ok {
			out.power = strings.ToLower(power)
		}
		if failure, ok := cutFold(code, "ProvisioningState/failed"); ok {
			out.failed(strings.Trim(failure, "/"), deref(s.Message))
		}
	}
	return out
}

// failed records a failure of the last operation. Of several, a cause that says more than that
// the machine cannot be made counts, and all are quoted.
func (v *view) failed(code, message string) {
	if v.failure == "" || lossOf(v.failure) == nstance.LossInvalid {
		v.failure = cmp.Or(code, v.failure)
	}
	v.words = strings.Trim(v.words+"; "+strings.Trim(code+": "+message, ": "), "; ")
}

func cutFold(s, prefix string) (string, bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return "", false
	}
	return s[len(prefix):], true
}

// statusOf derives a machine's status. The provisioning state is that of the last
// operation and says nothing of whether the machine runs: that is the power state,
// which only the instance view has ("States and billing status of Azure Virtual
// Machines"). There is no state for evicted machines: they are spot capacity that
// was deallocated.
func statusOf(provisioning string, v view, market nstance.MarketType) (nstance.MachineStatus, nstance.LossCause) {
	switch strings.ToLower(provisioning) {
	case "deleting":
		return nstance.StatusDeleting, ""
	case "creating":
		return nstance.StatusPending, ""
	}
	switch v.power {
	case "running":
		return nstance.StatusRunning, ""
	case "starting":
		return nstance.StatusPending, ""
	case "stopping":
		return nstance.StatusStopping, nstance.LossGuest
	case "stopped":
		return nstance.StatusStopped, nstance.LossGuest
	case "deallocating":
		return nstance.StatusStopping, deallocation(v, market)
	case "deallocated":
		return nstance.StatusStopped, deallocation(v, market)
	}
	if v.known && strings.EqualFold(provisioning, "failed") {
		return nstance.StatusFailed, lossOf(v.failure)
	}
	return nstance.StatusUnknown, ""
}

// deallocation says why a machine was deallocated: this system parks no spot
// capacity, and a start that failed leaves its code.
func deallocation(v view, market nstance.MarketType) nstance.LossCause {
	switch {
	case market == nstance.Spot:
		return nstance.LossReclaimed
	case v.failure != "":
		return lossOf(v.failure)
	}
	return nstance.LossRequested
}

// zoneOf returns the zone of a resource; "": it has none.
func zoneOf(zones []*string) string {
	if len(zones) == 0 {
		return ""
	}
	return deref(zones[0])
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
