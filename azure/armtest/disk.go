package armtest

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"

	azfake "github.com/Azure/azure-sdk-for-go/sdk/azcore/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
)

// A disk is one that was made with a machine, or before it. The cloud's lock guards it.
type disk struct {
	name  string
	vm    *vm              // nil: it is not attached
	model *armcompute.Disk // nil: it was made with a machine
	state string           // of its last operation; empty: it was made with a machine
}

// A diskSet is the disks of the subscription.
type diskSet struct{ byName map[string]*disk }

// A diskCalls answers calls for disks.
type diskCalls struct {
	*call
	disks *diskSet
}

func (k diskCalls) get(_ context.Context, _, name string, _ *armcompute.DisksClientGetOptions) (azfake.Responder[armcompute.DisksClientGetResponse], azfake.ErrorResponder) {
	d := k.disks.byName[strings.ToLower(name)]
	if d == nil {
		return found(armcompute.DisksClientGetResponse{}, k.notFound("Microsoft.Compute/disks", name))
	}
	return found(armcompute.DisksClientGetResponse{Disk: d.show(k.id("Microsoft.Compute/disks", name), k.o.Location)}, nil)
}

func (d *disk) show(id, location string) armcompute.Disk {
	out := armcompute.Disk{ID: &id, Name: new(d.name), Location: &location, Properties: &armcompute.DiskProperties{}}
	if d.model != nil {
		out.Tags, out.SKU, out.Zones = d.model.Tags, d.model.SKU, d.model.Zones
		*out.Properties = *d.model.Properties
	}
	out.Properties.ProvisioningState = new(cmp.Or(d.state, succeeded))
	if d.vm != nil {
		out.ManagedBy = new(d.vm.id)
		if d.model == nil {
			out.Tags = d.vm.model.Tags
		}
	}
	return out
}

func (k diskCalls) put(_ context.Context, _, name string, m armcompute.Disk, _ *armcompute.DisksClientBeginCreateOrUpdateOptions) (azfake.PollerResponder[armcompute.DisksClientCreateOrUpdateResponse], azfake.ErrorResponder) {
	if err := k.check(name, &m); err != nil {
		return answered(0, armcompute.DisksClientCreateOrUpdateResponse{}, err)
	}
	d := &disk{name: name, model: &m}
	k.disks.byName[strings.ToLower(name)] = d
	k.beginPut(&d.state)
	return answered(http.StatusOK, armcompute.DisksClientCreateOrUpdateResponse{Disk: d.show(k.id("Microsoft.Compute/disks", name), k.o.Location)}, nil)
}

// check refuses what Azure refuses of an empty disk ("Azure managed disk types").
func (k diskCalls) check(name string, m *armcompute.Disk) *Refusal {
	p, old := m.Properties, k.disks.byName[strings.ToLower(name)]
	switch {
	case m.Location == nil || !strings.EqualFold(*m.Location, k.o.Location):
		return refuse(http.StatusBadRequest, "LocationRequired", "The location property is required for this definition.")
	case old != nil && old.state != failed:
		return refuse(http.StatusConflict, "PropertyChangeNotAllowed", "Changing property 'creationData' is not allowed.")
	case p == nil || p.CreationData == nil || deref(p.CreationData.CreateOption) != armcompute.DiskCreateOptionEmpty:
		return badParameter("creationData", "This cloud makes empty disks only.")
	case m.SKU == nil || m.SKU.Name == nil || p.DiskSizeGB == nil:
		return badParameter("diskSizeGB", "Required parameter is missing (null).")
	case len(m.Zones) > 1:
		return badParameter("zones", "A disk is in one zone.")
	}
	if p.Encryption != nil && p.Encryption.DiskEncryptionSetID != nil {
		if err := k.checkKey(*p.Encryption.DiskEncryptionSetID); err != nil {
			return err
		}
	}
	for _, check := range []*Refusal{checkTags(m.Tags), k.checkKind(string(*m.SKU.Name), *p.DiskSizeGB, m.Zones), checkSpeed(m)} {
		if check != nil {
			return check
		}
	}
	return nil
}

// checkKind refuses kinds of storage that there are not, and sizes and zones that do not fit
// them.
func (k diskCalls) checkKind(kind string, size int32, zones []*string) *Refusal {
	limit := int32(32767)
	switch kind {
	case "", "Standard_LRS", "StandardSSD_LRS", "StandardSSD_ZRS", "Premium_LRS", "Premium_ZRS":
	case "PremiumV2_LRS", "UltraSSD_LRS":
		limit = 65536
		if len(zones) == 0 && !k.o.NoZones {
			return badParameter("zones", "A disk of type %s needs a zone in this location.", kind)
		}
	default:
		return badParameter("sku.name", "%s is no type of disks.", kind)
	}
	if size < 1 || size > limit {
		return badParameter("diskSizeGB", "The value %d is out of range: 1 to %d.", size, limit)
	}
	return nil
}

// checkSpeed: PremiumV2_LRS has 3,000 operations a second and 125 MB/s at least, up to
// 500 operations for each GiB and 1 MB/s for each four operations; UltraSSD_LRS up to 1,000
// operations for each GiB, and 0.25 MB/s for each operation ("Azure managed disk types").
func checkSpeed(m *armcompute.Disk) *Refusal {
	p, size := m.Properties, int64(*m.Properties.DiskSizeGB)
	ops, rate := deref(p.DiskIOPSReadWrite), deref(p.DiskMBpsReadWrite)
	low, high, slow, fast := int64(3000), max(3000, min(80_000, 500*size)), int64(125), int64(2000)
	switch string(*m.SKU.Name) {
	case "PremiumV2_LRS":
	case "UltraSSD_LRS":
		low, high, slow, fast = 100, min(400_000, 1000*size), 1, 10_000
	default:
		if ops != 0 || rate != 0 {
			return badParameter("diskIOPSReadWrite", "It can be set only for disks of type UltraSSD_LRS and PremiumV2_LRS.")
		}
		return nil
	}
	switch {
	case ops != 0 && (ops < low || ops > high):
		return badParameter("diskIOPSReadWrite", "The value %d is out of range: %d to %d.", ops, low, high)
	case rate != 0 && (rate < slow || rate > min(fast, max(slow, max(ops, low)/4))):
		return badParameter("diskMBpsReadWrite", "The value %d is out of range.", rate)
	}
	return nil
}

// checkDataDisks refuses what Azure refuses of the data disks of a new machine.
func (k diskCalls) checkDataDisks(m *armcompute.VirtualMachine) *Refusal {
	luns, names := map[int32]bool{}, map[string]bool{}
	for _, d := range m.Properties.StorageProfile.DataDisks {
		name := strings.ToLower(deref(d.Name))
		switch {
		case d.Lun == nil || *d.Lun < 0 || *d.Lun > 63 || luns[*d.Lun]:
			return badParameter("dataDisk.lun", "The LUN is missing, out of range or used twice.")
		case name == "" || names[name]:
			return refuse(http.StatusConflict, "AttachDiskWhileBeingDetached", "The disk %s is there twice.", deref(d.Name))
		}
		luns[*d.Lun], names[name] = true, true
		kind, size, err := k.checkDataDisk(m, d)
		if err != nil {
			return err
		}
		if err := checkFit(m, d, kind, size); err != nil {
			return err
		}
	}
	return nil
}

// checkDataDisk refuses how a disk is to come to be, and returns its kind and its size.
func (k diskCalls) checkDataDisk(m *armcompute.VirtualMachine, d *armcompute.DataDisk) (string, int32, *Refusal) {
	old := k.disks.byName[strings.ToLower(deref(d.Name))]
	switch deref(d.CreateOption) {
	case armcompute.DiskCreateOptionTypesEmpty:
		kind := ""
		if d.ManagedDisk != nil {
			kind = string(deref(d.ManagedDisk.StorageAccountType))
		}
		if old != nil {
			return "", 0, refuse(http.StatusConflict, "ConflictingUserInput", "Disk %s already exists.", deref(d.Name))
		}
		return kind, deref(d.DiskSizeGB), k.checkKind(kind, deref(d.DiskSizeGB), m.Zones)
	case armcompute.DiskCreateOptionTypesAttach:
	default:
		return "", 0, badParameter("dataDisk.createOption", "This cloud has Empty and Attach.")
	}
	switch {
	case d.ManagedDisk == nil || d.ManagedDisk.ID == nil:
		return "", 0, badParameter("dataDisk.managedDisk.id", "Required parameter is missing (null).")
	case old == nil || !strings.HasSuffix(strings.ToLower(*d.ManagedDisk.ID), "/providers/microsoft.compute/disks/"+strings.ToLower(old.name)):
		return "", 0, refuse(http.StatusNotFound, "NotFound", "Disk %s is not found.", *d.ManagedDisk.ID)
	case old.state != "" && old.state != succeeded:
		return "", 0, refuse(http.StatusConflict, "OperationNotAllowed", "Disk %s is not in Succeeded state.", old.name)
	case old.vm != nil:
		return "", 0, refuse(http.StatusConflict, "AttachDiskWhileBeingDetached", "Disk %s is attached to VM %s.", old.name, old.vm.id)
	case d.DiskSizeGB != nil || d.ManagedDisk.StorageAccountType != nil && *d.ManagedDisk.StorageAccountType != armcompute.StorageAccountTypes(*old.model.SKU.Name):
		return "", 0, refuse(http.StatusConflict, "PropertyChangeNotAllowed", "Changing property 'dataDisk' is not allowed.")
	case len(old.model.Zones) > 0 && !sameZones(old.model.Zones, m.Zones):
		return "", 0, refuse(http.StatusBadRequest, "BadRequest", "Disk %s cannot be attached to the VM because it is not in zone %v.", old.name, m.Zones)
	}
	return string(*old.model.SKU.Name), *old.model.Properties.DiskSizeGB, nil
}

func sameZones(a, b []*string) bool {
	return slices.EqualFunc(a, b, func(a, b *string) bool { return *a == *b })
}

// checkFit refuses a disk that the machine cannot have: "Using Azure Ultra Disks", "Deploy a
// Premium SSD v2 managed disk", "Azure premium storage: design for high performance".
func checkFit(m *armcompute.VirtualMachine, d *armcompute.DataDisk, kind string, size int32) *Refusal {
	p := m.Properties
	fast := kind == "UltraSSD_LRS" || kind == "PremiumV2_LRS"
	cached := d.Caching != nil && *d.Caching != armcompute.CachingTypesNone
	switch {
	case (fast || strings.HasPrefix(kind, "Premium_")) && !premium(string(*p.HardwareProfile.VMSize)):
		return badParameter("dataDisk.managedDisk.storageAccountType", "Requested operation cannot be performed because the VM size %s does not support the storage account type %s of disk '%s'.",
			*p.HardwareProfile.VMSize, kind, deref(d.Name))
	case fast && (cached || d.Caching == nil):
		return badParameter("dataDisk.caching", "Disk caching is not supported for disks of type %s.", kind)
	case size >= 4096 && (cached || d.Caching == nil):
		return badParameter("dataDisk.caching", "Disk caching is not supported for disks of 4096 GB and more.")
	case kind == "UltraSSD_LRS" && (p.AdditionalCapabilities == nil || !deref(p.AdditionalCapabilities.UltraSSDEnabled)):
		return badParameter("dataDisk.managedDisk.storageAccountType", "StorageAccountType UltraSSD_LRS can be used only when additionalCapabilities.ultraSSDEnabled is set.")
	}
	return nil
}

// attach binds the disks of a new machine, and makes those that are not there.
func (s *diskSet) attach(v *vm) {
	p := v.model.Properties.StorageProfile
	if p.OSDisk.DiffDiskSettings == nil {
		s.byName[strings.ToLower(*p.OSDisk.Name)] = &disk{name: *p.OSDisk.Name, vm: v}
	}
	for _, d := range p.DataDisks {
		if old := s.byName[strings.ToLower(*d.Name)]; old != nil {
			old.vm = v
			continue
		}
		s.byName[strings.ToLower(*d.Name)] = &disk{name: *d.Name, vm: v}
	}
}

// detach frees them, or deletes them as their delete options say.
func (s *diskSet) detach(v *vm, keep bool) {
	p := v.model.Properties.StorageProfile
	drop := func(name *string, option *armcompute.DiskDeleteOptionTypes) {
		held := s.byName[strings.ToLower(deref(name))]
		if held == nil {
			return
		}
		held.vm = nil
		if !keep && deref(option) == armcompute.DiskDeleteOptionTypesDelete {
			delete(s.byName, strings.ToLower(held.name))
		}
	}
	drop(p.OSDisk.Name, p.OSDisk.DeleteOption)
	for _, d := range p.DataDisks {
		drop(d.Name, d.DeleteOption)
	}
}

func (k diskCalls) delete(_ context.Context, _, name string, _ *armcompute.DisksClientBeginDeleteOptions) (azfake.PollerResponder[armcompute.DisksClientDeleteResponse], azfake.ErrorResponder) {
	d := k.disks.byName[strings.ToLower(name)]
	switch {
	case d == nil:
		return accepted[armcompute.DisksClientDeleteResponse](http.StatusNoContent, nil)
	case d.vm != nil:
		return accepted[armcompute.DisksClientDeleteResponse](0, refuse(http.StatusConflict, "OperationNotAllowed", "Disk %s is attached to VM %s.", d.name, d.vm.id))
	}
	d.state = deleting
	k.beginNetwork(func() { delete(k.disks.byName, strings.ToLower(name)) })
	return accepted[armcompute.DisksClientDeleteResponse](http.StatusAccepted, nil)
}
