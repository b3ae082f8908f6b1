package armtest

import (
	"net/http"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
)

// checkPlacement refuses places that are not there, that the caller may not use, or that do
// not go together ("On-demand capacity reservation", "Availability sets overview", "Use Azure
// Spot Virtual Machines").
func (k vmChecks) checkPlacement(m *armcompute.VirtualMachine) *Refusal {
	p := m.Properties
	if g := p.CapacityReservation; g != nil {
		id := referenceID(g.CapacityReservationGroup)
		for _, action := range []string{"read", "deploy/action", "capacityReservations/read", "capacityReservations/deploy/action"} {
			if err := k.linked(compute+"capacityReservationGroups/"+action, id); err != nil {
				return err
			}
		}
		if err := k.there(id); err != nil {
			return err
		}
		if err := k.checkReserved(m); err != nil {
			return err
		}
	}
	if g := p.ProximityPlacementGroup; g != nil {
		if err := k.linked(compute+"proximityPlacementGroups/write", referenceID(g)); err != nil {
			return err
		}
		if err := k.there(referenceID(g)); err != nil {
			return err
		}
	}
	if p.AvailabilitySet == nil {
		return nil
	}
	if err := k.linked(compute+"availabilitySets/write", referenceID(p.AvailabilitySet)); err != nil {
		return err
	}
	if err := k.there(referenceID(p.AvailabilitySet)); err != nil {
		return err
	}
	return k.checkSet(m)
}

func referenceID(r *armcompute.SubResource) string {
	if r == nil {
		return ""
	}
	return deref(r.ID)
}

// there refuses an ID that the cloud does not have.
func (k *call) there(id string) *Refusal {
	if id == "" || !k.o.exists(id) {
		return refuse(http.StatusNotFound, "NotFound", "The entity %s was not found.", id)
	}
	return nil
}

func (k vmChecks) checkReserved(m *armcompute.VirtualMachine) *Refusal {
	p := m.Properties
	spot := deref(p.Priority) == armcompute.VirtualMachinePriorityTypesSpot
	if c := p.AdditionalCapabilities; spot || p.AvailabilitySet != nil || p.ProximityPlacementGroup != nil || c != nil && (deref(c.UltraSSDEnabled) || deref(c.HibernationEnabled)) {
		return refuse(http.StatusConflict, "OperationNotAllowed", "The virtual machine cannot be associated with capacity reservation group %s.", referenceID(p.CapacityReservation.CapacityReservationGroup))
	}
	return nil
}

func (k vmChecks) checkSet(m *armcompute.VirtualMachine) *Refusal {
	p, id := m.Properties, referenceID(m.Properties.AvailabilitySet)
	hibernates := p.AdditionalCapabilities != nil && deref(p.AdditionalCapabilities.HibernationEnabled)
	switch {
	case len(m.Zones) > 0:
		return badParameter("availabilitySet", "The property 'availabilitySet' cannot be used together with property 'zones'.")
	case !strings.Contains(strings.ToLower(id), "/resourcegroups/"+strings.ToLower(k.path["group"])+"/"):
		return badParameter("availabilitySet", "The virtual machine and the availability set %s are in different resource groups.", id)
	case deref(p.Priority) == armcompute.VirtualMachinePriorityTypesSpot:
		return refuse(http.StatusConflict, "OperationNotAllowed", "A virtual machine of priority Spot cannot be in an availability set.")
	case hibernates:
		return refuse(http.StatusConflict, "OperationNotAllowed", "A virtual machine in an availability set cannot hibernate.")
	}
	for _, d := range p.StorageProfile.DataDisks {
		if kind, _, _ := k.disks.checkDataDisk(m, d); kind == "UltraSSD_LRS" || kind == "PremiumV2_LRS" {
			return badParameter("dataDisk.managedDisk.storageAccountType", "Disks of type %s are not supported for virtual machines in availability sets.", kind)
		}
	}
	return nil
}

// checkKeys refuses disk encryption sets that are not there or that the caller may not use.
func (k vmChecks) checkKeys(m *armcompute.VirtualMachine) *Refusal {
	s := m.Properties.StorageProfile
	disks := []*armcompute.ManagedDiskParameters{s.OSDisk.ManagedDisk}
	for _, d := range s.DataDisks {
		disks = append(disks, d.ManagedDisk)
	}
	for _, d := range disks {
		if d == nil {
			continue
		}
		sets := []*armcompute.DiskEncryptionSetParameters{d.DiskEncryptionSet}
		if d.SecurityProfile != nil {
			sets = append(sets, d.SecurityProfile.DiskEncryptionSet)
		}
		for _, set := range sets {
			if set == nil {
				continue
			}
			if err := k.checkKey(deref(set.ID)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (k *call) checkKey(id string) *Refusal {
	if err := k.linked(compute+"diskEncryptionSets/read", id); err != nil {
		return err
	}
	return k.there(id)
}
