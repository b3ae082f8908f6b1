package azure

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"github.com/nstance-go/nstance"
)

// DataDisk describes an empty disk beside the one that a machine boots from. Its place in
// the list is its LUN.
type DataDisk struct {
	SizeGB        int32  `json:"size_gb" doc:"size in GiB" required:"true" min:"1" max:"65536"`
	Type          string `json:"type" doc:"kind of storage" default:"Azure's choice" enum:"Standard_LRS|StandardSSD_LRS|StandardSSD_ZRS|Premium_LRS|Premium_ZRS|PremiumV2_LRS|UltraSSD_LRS"`
	Caching       string `json:"caching" doc:"cache on the host; none for PremiumV2_LRS, UltraSSD_LRS and disks of 4096 GiB and more" default:"Azure's choice" enum:"None|ReadOnly|ReadWrite"`
	EncryptionSet string `json:"disk_encryption_set" doc:"ARM ID of the disk encryption set whose key encrypts it" default:"a key of Azure's"`
	IOPS          int64  `json:"iops" doc:"operations a second, of PremiumV2_LRS and UltraSSD_LRS" default:"Azure's choice" min:"100" max:"400000"`
	Throughput    int64  `json:"throughput_mb" doc:"megabytes a second, of PremiumV2_LRS and UltraSSD_LRS" default:"Azure's choice" min:"1" max:"10000"`
}

// The kinds of storage whose speed is bought apart from their size.
const (
	premiumV2 = string(armcompute.DiskStorageAccountTypesPremiumV2LRS)
	ultra     = string(armcompute.DiskStorageAccountTypesUltraSSDLRS)
)

// The bounds of data disks in GiB ("Azure managed disk types"): of the kinds with a fixed
// speed and of the two others, and from where on nothing is cached.
const (
	maxDataDisk     = 32767
	maxFlexibleDisk = 65536
	minUncached     = 4096
)

// flexible reports whether the speed of this kind is bought apart from its size.
func (d DataDisk) flexible() bool { return d.Type == premiumV2 || d.Type == ultra }

// tuned reports whether the disk is made before its machine: the machine's own PUT takes
// no speed of a single machine's disk (dataDisks.diskIOPSReadWrite, Compute REST API).
func (d DataDisk) tuned() bool { return d.IOPS > 0 || d.Throughput > 0 }

// checkDataDisks: "Azure managed disk types", "Using Azure Ultra Disks", "Deploy a Premium
// SSD v2 managed disk".
func (r *request) checkDataDisks() error {
	if n := len(r.args.DataDisks); n > maxDataDisks {
		return nstance.FieldError("args.data_disks", "use up to "+strconv.Itoa(maxDataDisks), "%d are too many", n)
	}
	for i, d := range r.args.DataDisks {
		field := fmt.Sprintf("args.data_disks[%d]", i)
		if err := d.check(field); err != nil {
			return err
		}
		if err := checkID(field+".disk_encryption_set", encryptionSets, d.EncryptionSet); err != nil {
			return err
		}
		if (strings.HasPrefix(d.Type, "Premium") || d.Type == ultra) && premiumless(r.spec.InstanceType) {
			return nstance.FieldError(field+".type", "use StandardSSD_LRS, or a size with an s in its name such as Standard_D2s_v5", "%s takes no premium storage", r.spec.InstanceType)
		}
		if d.flexible() && r.zone == "" && r.args.Zone != noZone {
			return nstance.FieldError("args.zone", "set it, or to none in a region without zones", "is empty, and %s is in the zone of its machine", d.Type)
		}
	}
	return nil
}

func (d DataDisk) check(field string) error {
	kinds := []string{"", "Standard_LRS", "StandardSSD_LRS", "StandardSSD_ZRS", "Premium_LRS", "Premium_ZRS", premiumV2, ultra}
	limit := int32(maxDataDisk)
	if d.flexible() {
		limit = maxFlexibleDisk
	}
	switch {
	case !slices.Contains(kinds, d.Type):
		return nstance.FieldError(field+".type", "use one of "+strings.Join(kinds[1:], ", "), "%q is not known", d.Type)
	case d.SizeGB < 1 || d.SizeGB > limit:
		return nstance.FieldError(field+".size_gb", fmt.Sprintf("use 1 to %d", limit), "%d is no size of this kind", d.SizeGB)
	case !slices.Contains([]string{"", "None", "ReadOnly", "ReadWrite"}, d.Caching):
		return nstance.FieldError(field+".caching", "use None, ReadOnly or ReadWrite", "%q is not known", d.Caching)
	case d.uncached() && d.Caching != "" && d.Caching != "None":
		return nstance.FieldError(field+".caching", "leave it out", "Azure caches no disk of this kind or size")
	case !d.flexible() && d.IOPS != 0:
		return nstance.FieldError(field+".iops", "use the type PremiumV2_LRS or UltraSSD_LRS, or a larger size", "the size alone decides about it")
	case !d.flexible() && d.Throughput != 0:
		return nstance.FieldError(field+".throughput_mb", "use the type PremiumV2_LRS or UltraSSD_LRS, or a larger size", "the size alone decides about it")
	case d.IOPS != 0 && (d.IOPS < 100 || d.IOPS > 400_000):
		return nstance.FieldError(field+".iops", "use 100 to 400000", "%d is more or less than any disk has", d.IOPS)
	case d.Throughput < 0 || d.Throughput > 10_000:
		return nstance.FieldError(field+".throughput_mb", "use 1 to 10000", "%d is more or less than any disk has", d.Throughput)
	}
	return nil
}

func (d DataDisk) uncached() bool { return d.flexible() || d.SizeGB >= minUncached }

// dataDisks are the data disks of a machine, as they are put with it. Azure deletes them
// with it.
func (r *request) dataDisks() []*armcompute.DataDisk {
	var out []*armcompute.DataDisk
	for lun, d := range r.args.DataDisks {
		name := dataDiskName(string(r.spec.ID), lun)
		disk := &armcompute.DataDisk{
			Lun: new(int32(lun)), Name: &name, CreateOption: new(armcompute.DiskCreateOptionTypesEmpty),
			DeleteOption: new(armcompute.DiskDeleteOptionTypesDelete), ManagedDisk: &armcompute.ManagedDiskParameters{},
		}
		if d.Caching != "" || d.uncached() {
			disk.Caching = new(armcompute.CachingTypes(d.caching()))
		}
		if d.tuned() {
			disk.CreateOption, disk.ManagedDisk.ID = new(armcompute.DiskCreateOptionTypesAttach), new(r.o.diskID(name))
		} else {
			disk.DiskSizeGB, disk.ManagedDisk.DiskEncryptionSet = &d.SizeGB, encryptionSet(d.EncryptionSet)
			if d.Type != "" {
				disk.ManagedDisk.StorageAccountType = new(armcompute.StorageAccountTypes(d.Type))
			}
		}
		out = append(out, disk)
	}
	return out
}

func (d DataDisk) caching() string {
	if d.uncached() {
		return string(armcompute.CachingTypesNone)
	}
	return d.Caching
}

// ultraDisks reports whether the machine has to be able to have ultra disks.
func (r *request) ultraDisks() bool {
	return slices.ContainsFunc(r.args.DataDisks, func(d DataDisk) bool { return d.Type == ultra })
}

func (o Options) diskID(name string) string {
	return "/subscriptions/" + o.Subscription + "/resourceGroups/" + o.ResourceGroup + "/providers/Microsoft.Compute/disks/" + name
}

// dataDisk is a disk that is made before its machine.
func (r *request) dataDisk(lun int) armcompute.Disk {
	d := r.args.DataDisks[lun]
	p := &armcompute.DiskProperties{
		CreationData: &armcompute.CreationData{CreateOption: new(armcompute.DiskCreateOptionEmpty)}, DiskSizeGB: &d.SizeGB,
	}
	if d.IOPS > 0 {
		p.DiskIOPSReadWrite = &d.IOPS
	}
	if d.Throughput > 0 {
		p.DiskMBpsReadWrite = &d.Throughput
	}
	if d.EncryptionSet != "" {
		p.Encryption = &armcompute.Encryption{Type: new(armcompute.EncryptionTypeEncryptionAtRestWithCustomerKey), DiskEncryptionSetID: &d.EncryptionSet}
	}
	out := armcompute.Disk{
		Location: new(r.o.Location), Tags: r.tags(), Properties: p, SKU: &armcompute.DiskSKU{Name: new(armcompute.DiskStorageAccountTypes(d.Type))},
	}
	if r.zone != "" {
		out.Zones = []*string{&r.zone}
	}
	return out
}

// ensureDisk makes a data disk unless it is there, and waits until machines can have it.
func (p *Provider) ensureDisk(ctx context.Context, r *request, lun int) error {
	name := dataDiskName(string(r.spec.ID), lun)
	return p.ensure(ctx, r, part{
		what: "disk " + name,
		get: func(ctx context.Context) (shownPart, error) {
			got, err := p.disks.Get(ctx, p.o.ResourceGroup, name, nil)
			return r.shownDisk(&got.Disk, r.args.DataDisks[lun]), err
		},
		put: func(ctx context.Context) (operation, error) {
			return p.disks.BeginCreateOrUpdate(ctx, p.o.ResourceGroup, name, r.dataDisk(lun), nil)
		},
		remove: func(ctx context.Context) error {
			_, err := p.deleteDisk(ctx, name, r.machine())
			return err
		},
	})
}

func (r *request) shownDisk(d *armcompute.Disk, wanted DataDisk) shownPart {
	out := shownPart{tags: d.Tags}
	if d.Properties != nil {
		out.state = deref(d.Properties.ProvisioningState)
	}
	switch zone := zoneOf(d.Zones); {
	case zone != r.zone:
		out.other = fmt.Sprintf("it is in zone %q", zone)
	case d.SKU != nil && !strings.EqualFold(string(deref(d.SKU.Name)), wanted.Type):
		out.other = fmt.Sprintf("its type is %s", deref(d.SKU.Name))
	}
	return out
}
