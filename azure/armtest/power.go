package armtest

import (
	"context"
	"net/http"
	"strings"

	azfake "github.com/Azure/azure-sdk-for-go/sdk/azcore/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
)

func (k vmCalls) deallocate(_ context.Context, _, name string, o *armcompute.VirtualMachinesClientBeginDeallocateOptions) (azfake.PollerResponder[armcompute.VirtualMachinesClientDeallocateResponse], azfake.ErrorResponder) {
	v, err := k.visible(name)
	hibernate := o != nil && deref(o.Hibernate)
	if err == nil {
		err = v.checkDeallocate(hibernate)
	}
	switch {
	case err != nil:
	case v.power == powerDeallocated, v.power == powerDeallocating:
		k.begin().end(opSucceeded, nil)
	default:
		v.preempt(k.begin())
		v.hibernate = hibernate
		k.fleet.park(v)
	}
	return accepted[armcompute.VirtualMachinesClientDeallocateResponse](http.StatusAccepted, err)
}

// preempt makes op the machine's operation: it ends the one before.
func (v *vm) preempt(op *operation) {
	v.operation.end(opCanceled, &Detail{"OperationPreempted", "The operation has been preempted by a more recent operation."})
	v.operation = op
}

// checkDeallocate: "Hibernation for Azure virtual machines", "Ephemeral OS disks".
func (v *vm) checkDeallocate(hibernate bool) *Refusal {
	p := v.model.Properties
	can := p.AdditionalCapabilities != nil && deref(p.AdditionalCapabilities.HibernationEnabled)
	switch {
	case v.provision == deleting:
		return refuse(http.StatusConflict, "OperationNotAllowed", "The operation cannot be performed: VM %s is marked for deletion.", *v.model.Name)
	case hibernate && !can:
		return refuse(http.StatusConflict, "OperationNotAllowed", "Hibernation is not enabled on VM %s.", *v.model.Name)
	case hibernate && v.power != powerRunning && v.power != powerDeallocating && v.power != powerDeallocated:
		return refuse(http.StatusConflict, "VMNotRunning", "VM %s is not running.", *v.model.Name)
	case p.StorageProfile.OSDisk.DiffDiskSettings != nil:
		return refuse(http.StatusConflict, "OperationNotAllowed", "This operation is not supported for VMs with an ephemeral OS disk.")
	}
	return nil
}

func (k vmCalls) start(_ context.Context, _, name string, _ *armcompute.VirtualMachinesClientBeginStartOptions) (azfake.PollerResponder[armcompute.VirtualMachinesClientStartResponse], azfake.ErrorResponder) {
	v, err := k.visible(name)
	switch {
	case err != nil:
	case v.provision == deleting:
		err = refuse(http.StatusConflict, "OperationNotAllowed", "The operation cannot be performed: VM %s is marked for deletion.", name)
	case v.power == powerRunning, v.power == powerStarting, v.provision == creating:
		k.begin().end(opSucceeded, nil)
	default:
		err = k.restart(v)
	}
	return accepted[armcompute.VirtualMachinesClientStartResponse](http.StatusAccepted, err)
}

func (k vmCalls) restart(v *vm) *Refusal {
	if v.power != powerStopped || !v.held {
		v.held = false
		if err := k.fleet.claim(v); err != nil {
			return err
		}
	}
	v.preempt(k.begin())
	v.provision, v.power, v.hibernate = updating, powerStarting, false
	k.fleet.launch(v)
	return nil
}

// Print adds to what a machine has printed to its serial console.
func (c *Cloud) Print(handle, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v := c.fleet.byHandle(handle); v != nil {
		v.printed = append(v.printed, text...)
	}
}

// consolePath is where a link to a console leads: to storage, without a token.
const consolePath = "/bootdiagnostics/"

func (k vmCalls) console(_ context.Context, _, name string, _ *armcompute.VirtualMachinesClientRetrieveBootDiagnosticsDataOptions) (azfake.Responder[armcompute.VirtualMachinesClientRetrieveBootDiagnosticsDataResponse], azfake.ErrorResponder) {
	v, err := k.visible(name)
	if err != nil {
		return found(armcompute.VirtualMachinesClientRetrieveBootDiagnosticsDataResponse{}, err)
	}
	d := v.model.Properties.DiagnosticsProfile
	if d == nil || d.BootDiagnostics == nil || !deref(d.BootDiagnostics.Enabled) {
		return found(armcompute.VirtualMachinesClientRetrieveBootDiagnosticsDataResponse{},
			refuse(http.StatusConflict, "OperationNotAllowed", "Boot diagnostics is not enabled on VM %s.", name))
	}
	link := k.base() + consolePath + *v.model.Properties.VMID + "/serialconsole.log?sig=secret&se=soon"
	return found(armcompute.VirtualMachinesClientRetrieveBootDiagnosticsDataResponse{RetrieveBootDiagnosticsDataResult: armcompute.RetrieveBootDiagnosticsDataResult{SerialConsoleLogBlobURI: &link}}, nil)
}

// serveConsole answers for the storage of consoles, which has no tokens: a blob is
// there once something was printed.
func (c *Cloud) serveConsole(w http.ResponseWriter, r *http.Request, id string) {
	id, _, _ = strings.Cut(id, "/")
	if r.URL.Query().Get("sig") != "secret" || r.Header.Get("Authorization") != "" {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.fleet.vms {
		if *v.model.Properties.VMID == id && len(v.printed) > 0 {
			w.Write(v.printed) //nolint:errcheck // the client left
			return
		}
	}
	w.WriteHeader(http.StatusNotFound)
}
