package armtest

import (
	"context"
	"net/http"
	"strings"

	azfake "github.com/Azure/azure-sdk-for-go/sdk/azcore/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
)

// A disk is the one that a machine boots from.
type disk struct {
	name string
	vm   *vm // nil: it is not attached
}

func (k *call) getDisk(_ context.Context, _, name string, _ *armcompute.DisksClientGetOptions) (azfake.Responder[armcompute.DisksClientGetResponse], azfake.ErrorResponder) {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	d := k.c.disks[strings.ToLower(name)]
	if d == nil {
		return found(armcompute.DisksClientGetResponse{}, refuse(http.StatusNotFound, "ResourceNotFound",
			"The Resource 'Microsoft.Compute/disks/%s' under resource group '%s' was not found.", name, k.path["group"]))
	}
	out := armcompute.Disk{Name: new(d.name), Location: new(k.c.o.Location)}
	if d.vm != nil {
		out.ManagedBy, out.Tags = new(d.vm.id), d.vm.model.Tags
	}
	return found(armcompute.DisksClientGetResponse{Disk: out}, nil)
}

func (k *call) deleteDisk(_ context.Context, _, name string, _ *armcompute.DisksClientBeginDeleteOptions) (azfake.PollerResponder[armcompute.DisksClientDeleteResponse], azfake.ErrorResponder) {
	status := http.StatusAccepted
	var err *Refusal
	k.c.update(func() {
		d := k.c.disks[strings.ToLower(name)]
		switch {
		case d == nil:
			status = http.StatusNoContent
		case d.vm != nil:
			err = refuse(http.StatusConflict, "OperationNotAllowed", "Disk %s is attached to VM %s.", d.name, d.vm.id)
		default:
			op := k.begin()
			k.c.after(k.c.o.Network, func() { delete(k.c.disks, strings.ToLower(name)); op.end(opSucceeded, nil) })
		}
	})
	return accepted[armcompute.DisksClientDeleteResponse](status, err)
}

// Left returns the names of machines, network interfaces and disks that are there.
func (c *Cloud) Left() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for name := range c.vms {
		out = append(out, "machine "+name)
	}
	for name := range c.nics {
		out = append(out, "interface "+name)
	}
	for name := range c.disks {
		out = append(out, "disk "+name)
	}
	return out
}
