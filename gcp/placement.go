package gcp

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
)

// A Reservation says which reservations on-demand machines use.
type Reservation struct {
	Use  string `json:"use,omitempty" doc:"any: an open one that fits; none: no reservation" enum:"any|none" default:"any"`
	Name string `json:"name,omitempty" doc:"name or path of the one reservation to use, in place of use"`
}

// A NodeAffinity selects sole-tenant nodes by a label.
type NodeAffinity struct {
	Key      string   `json:"key" doc:"key of a label of the nodes, such as compute.googleapis.com/node-group-name" required:"true"`
	Operator string   `json:"operator,omitempty" doc:"whether the label must have one of the values, or none of them" enum:"IN|NOT_IN" default:"IN"`
	Values   []string `json:"values" doc:"values of the label" required:"true"`
}

// The technologies of confidential machines (ConfidentialInstanceConfig).
const (
	confidentialSEV = "SEV"
	confidentialSNP = "SEV_SNP"
	confidentialTDX = "TDX"
)

// reservationKey selects a reservation by its name (ReservationAffinity.key).
const reservationKey = "compute.googleapis.com/reservation-name"

var (
	reservationPattern = regexp.MustCompile(`^(projects/[^/\s]+/reservations/)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?(/reservationBlocks/[a-z]([-a-z0-9]{0,61}[a-z0-9])?)?$`)
	nodeKeyPattern     = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9._/-]{0,127}$`)
)

// checkPlacement refuses what excludes each other, whatever the machine type is.
func (a *Args) checkPlacement(market nstance.MarketType) error {
	for i, n := range a.NodeAffinities {
		at := fmt.Sprintf("args.node_affinities[%d].", i)
		if !nodeKeyPattern.MatchString(n.Key) {
			return nstance.FieldError(at+"key", "write one such as compute.googleapis.com/node-group-name", "%.64q is no key of a label", n.Key)
		}
		if len(n.Values) == 0 || slices.Contains(n.Values, "") {
			return nstance.FieldError(at+"values", "write at least one, none empty", "label %s has no value to compare with", n.Key)
		}
	}
	r := a.Reservation
	switch {
	case r != nil && r.Use != "" && r.Name != "":
		return nstance.FieldError("args.reservation", "give either use or name", "has both")
	case r != nil && r.Name != "" && !reservationPattern.MatchString(r.Name):
		return nstance.FieldError("args.reservation.name", "write its name, or projects/P/reservations/R", "%.128q is no reservation", r.Name)
	case r != nil && r.Use != "none" && market == nstance.Spot:
		return nstance.FieldError("args.reservation", "remove it, or use on-demand capacity", "spot machines cannot use a reservation")
	case r != nil && r.Use != "none" && len(a.NodeAffinities) > 0:
		return nstance.FieldError("args.reservation", "remove it, or remove args.node_affinities", "machines on sole-tenant nodes cannot use a reservation")
	case a.PlacementPolicy != "" && !namePattern.MatchString(lastPart(a.PlacementPolicy)):
		return nstance.FieldError("args.placement_policy", "write its name, or projects/P/regions/R/resourcePolicies/N", "%.128q is no placement policy", a.PlacementPolicy)
	case a.PlacementPolicy != "" && len(a.NodeAffinities) > 0:
		return nstance.FieldError("args.placement_policy", "remove it, or remove args.node_affinities", "machines on sole-tenant nodes have no placement policy")
	}
	return nil
}

// withoutPlacement are the families without placement policies
// (https://cloud.google.com/compute/docs/instances/placement-policies-overview).
var withoutPlacement = []string{"e2", "f1", "g1", "t2a", "t2d"}

// Families whose machines cannot be confidential, and those whose technologies are AMD's.
// Families that are in neither list are left to the cloud
// (https://cloud.google.com/confidential-computing/confidential-vm/docs/supported-configurations).
var (
	notConfidential = []string{"e2", "f1", "g1", "n1", "custom", "n2", "c2", "t2a", "t2d", "m1", "m2", "m3", "n4", "c4a", "n4a", "h3", "a2", "g2", "z3"}
	confidentialAMD = []string{"n2d", "c2d", "c3d", "c4d"}
)

// checkConfidential refuses machine types and settings that a confidential machine cannot
// have.
func (a *Args) checkConfidential(machineType string) error {
	family, _, _ := strings.Cut(machineType, "-")
	amd := slices.Contains(confidentialAMD, family)
	switch {
	case a.Confidential == "":
		return nil
	case slices.Contains(notConfidential, family):
		return nstance.FieldError("args.confidential", "remove it, or use a machine type such as n2d-standard-2 or c3-standard-4", "%s cannot be confidential", machineType)
	case a.Confidential == confidentialTDX && amd:
		return nstance.FieldError("args.confidential", "use SEV, or a machine type such as c3-standard-4", "%s has no TDX", machineType)
	case a.Confidential != confidentialTDX && (family == "c3" || family == "c4" || family == "a3"):
		return nstance.FieldError("args.confidential", "use TDX, or a machine type such as n2d-standard-2", "%s has no %s", machineType, a.Confidential)
	case a.Confidential == confidentialSNP && family == "n2d" && a.MinCPUPlatform != "AMD Milan":
		return nstance.FieldError("args.min_cpu_platform", "set it to AMD Milan", "older platforms of %s have no SEV_SNP", machineType)
	case a.LocalSSDInterface == "SCSI":
		return nstance.FieldError("args.local_ssd_interface", "use NVME", "disks of confidential machines are attached by NVMe only")
	case a.NestedVirtualization:
		return nstance.FieldError("args.nested_virtualization", "remove it", "confidential machines cannot run virtual machines")
	}
	return nil
}

// checkMaintenance refuses to move machines that cannot move: those with accelerators, and
// confidential ones but SEV on N2D and C3D
// (https://cloud.google.com/confidential-computing/confidential-vm/docs/troubleshoot-live-migration).
func (a *Args) checkMaintenance(machineType string) error {
	if a.OnHostMaintenance != migrateOnMaintenance {
		return nil
	}
	family, _, _ := strings.Cut(machineType, "-")
	const field, remedy = "args.on_host_maintenance", "use TERMINATE, or remove it"
	switch {
	case len(a.Accelerators) > 0:
		return nstance.FieldError(field, remedy, "machines with accelerators cannot move to another host")
	case a.Confidential != "" && (a.Confidential != confidentialSEV || family != "n2d" && family != "c3d"):
		return nstance.FieldError(field, remedy, "confidential machines with %s on %s cannot move to another host", a.Confidential, machineType)
	}
	return nil
}

// place fills in where the machine is to be, and on what kind of host.
func (a *Args) place(o *Options, zone string, out *computepb.Instance) {
	if a.Confidential != "" {
		out.ConfidentialInstanceConfig = &computepb.ConfidentialInstanceConfig{ConfidentialInstanceType: proto.String(a.Confidential)}
	}
	if a.PlacementPolicy != "" {
		out.ResourcePolicies = []string{o.regionalPath(zone, "resourcePolicies", a.PlacementPolicy)}
	}
	for _, n := range a.NodeAffinities {
		out.Scheduling.NodeAffinities = append(out.Scheduling.NodeAffinities, &computepb.SchedulingNodeAffinity{
			Key: proto.String(n.Key), Operator: proto.String(cmp.Or(n.Operator, "IN")), Values: n.Values,
		})
	}
	if !out.GetScheduling().GetPreemptible() {
		out.ReservationAffinity = a.Reservation.affinity()
	}
}

// affinity returns nil for what the cloud does by itself.
func (r *Reservation) affinity() *computepb.ReservationAffinity {
	switch {
	case r == nil:
		return nil
	case r.Name != "":
		return &computepb.ReservationAffinity{ConsumeReservationType: proto.String("SPECIFIC_RESERVATION"), Key: proto.String(reservationKey), Values: []string{r.Name}}
	case r.Use == "none":
		return &computepb.ReservationAffinity{ConsumeReservationType: proto.String("NO_RESERVATION")}
	}
	return &computepb.ReservationAffinity{ConsumeReservationType: proto.String("ANY_RESERVATION")}
}
