package azure

import (
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"

	"github.com/nstance-go/nstance"
)

// checkPlacement refuses what does not go together ("On-demand capacity reservation",
// "Availability sets overview", "Use Azure Spot Virtual Machines").
func (r *request) checkPlacement() error {
	a := r.args
	for _, err := range []error{
		checkID("args.capacity_reservation_group", "Microsoft.Compute/capacityReservationGroups", a.Reservation),
		checkID("args.proximity_placement_group", "Microsoft.Compute/proximityPlacementGroups", a.Proximity),
		checkID("args.availability_set", "Microsoft.Compute/availabilitySets", a.AvailabilitySet),
	} {
		if err != nil {
			return err
		}
	}
	if a.Reservation != "" {
		if err := r.checkReservation("args.capacity_reservation_group"); err != nil {
			return err
		}
	}
	if a.AvailabilitySet != "" {
		return r.checkSet("args.availability_set")
	}
	return nil
}

func (r *request) checkReservation(field string) error {
	switch {
	case r.spec.Market == nstance.Spot:
		return nstance.FieldError(field, "use on-demand capacity", "spot machines have no reservation")
	case r.args.Proximity != "":
		return nstance.FieldError(field, "use it or the proximity placement group", "a reservation takes no proximity placement group")
	case r.args.AvailabilitySet != "":
		return nstance.FieldError(field, "use it or the availability set", "a reservation takes no availability set")
	case r.ultraDisks():
		return nstance.FieldError(field, "use disks of type PremiumV2_LRS", "a reservation takes no ultra disks")
	case r.spec.Park == nstance.ParkHibernated:
		return nstance.FieldError(field, "set warm_pool.mode to stopped", "a hibernated machine cannot wake into a reservation")
	}
	return nil
}

func (r *request) checkSet(field string) error {
	group := typedID.FindStringSubmatch(r.args.AvailabilitySet)[1]
	switch {
	case r.zone != "":
		return nstance.FieldError(field, "set args.zone to none", "a machine is in an availability set or in zone %s", r.zone)
	case !strings.EqualFold(group, r.o.ResourceGroup):
		return nstance.FieldError(field, "make the set in resource group "+r.o.ResourceGroup, "it is in %s, and its machines have to be in the same resource group", group)
	case r.spec.Market == nstance.Spot:
		return nstance.FieldError(field, "use on-demand capacity", "spot machines are in no availability set")
	case r.spec.Park == nstance.ParkHibernated:
		return nstance.FieldError(field, "set warm_pool.mode to stopped", "machines of an availability set cannot hibernate")
	case slices.ContainsFunc(r.args.DataDisks, DataDisk.flexible):
		return nstance.FieldError(field, "use data disks of type Premium_LRS", "its machines have no disks of type PremiumV2_LRS and UltraSSD_LRS")
	}
	return nil
}

// place says where the machine is to be.
func (r *request) place(p *armcompute.VirtualMachineProperties) {
	p.ProximityPlacementGroup, p.AvailabilitySet = reference(r.args.Proximity), reference(r.args.AvailabilitySet)
	if r.args.Reservation != "" {
		p.CapacityReservation = &armcompute.CapacityReservationProfile{CapacityReservationGroup: reference(r.args.Reservation)}
	}
}

func reference(id string) *armcompute.SubResource {
	if id == "" {
		return nil
	}
	return &armcompute.SubResource{ID: &id}
}

// identity are the identities of the machine; nil: none.
func (r *request) identity() *armcompute.VirtualMachineIdentity {
	kind, users := armcompute.ResourceIdentityTypeUserAssigned, len(r.args.Identities)
	switch {
	case r.args.SystemIdentity && users > 0:
		kind = armcompute.ResourceIdentityTypeSystemAssignedUserAssigned
	case r.args.SystemIdentity:
		kind = armcompute.ResourceIdentityTypeSystemAssigned
	case users == 0:
		return nil
	}
	out := &armcompute.VirtualMachineIdentity{Type: &kind}
	if users > 0 {
		out.UserAssignedIdentities = map[string]*armcompute.UserAssignedIdentitiesValue{}
	}
	for _, id := range r.args.Identities {
		out.UserAssignedIdentities[id] = &armcompute.UserAssignedIdentitiesValue{}
	}
	return out
}
