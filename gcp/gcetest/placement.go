package gcetest

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
)

// A PlacementPolicy is a resource policy that says where machines are to each other.
type PlacementPolicy struct {
	Name    string
	Region  string // that of the first zone
	Compact bool   // false: it spreads them
}

// A Reservation is capacity that is kept for machines that name it.
type Reservation struct {
	Name  string
	Zone  string // the first zone
	Type  string // of its machines
	Count int
}

// A NodeGroup is a group of sole-tenant nodes.
type NodeGroup struct {
	Name   string
	Zone   string // the first zone
	Size   int    // machines that fit
	Labels map[string]string
}

// label returns what a node affinity compares.
func (g *NodeGroup) label(key string) string {
	if key == "compute.googleapis.com/node-group-name" {
		return g.Name
	}
	return g.Labels[key]
}

func (o *Options) fillPlacement() {
	o.Policies, o.Reservations, o.NodeGroups = slices.Clone(o.Policies), slices.Clone(o.Reservations), slices.Clone(o.NodeGroups)
	first := o.Zones[0]
	for i := range o.Policies {
		o.Policies[i].Region = cmp.Or(o.Policies[i].Region, region(first))
	}
	for i := range o.Reservations {
		o.Reservations[i].Zone = cmp.Or(o.Reservations[i].Zone, first)
	}
	for i := range o.NodeGroups {
		o.NodeGroups[i].Zone = cmp.Or(o.NodeGroups[i].Zone, first)
	}
}

// A placement decides on which hosts machines run.
type placement struct {
	o       *Options
	catalog *catalog
	fleet   *fleet
}

// check checks what the host of a machine is to be. checkScheduling was before.
func (p *placement) check(m *machine) *apiError {
	return firstRefusal(m, p.checkConfidential, p.checkPolicies, p.checkReservation, checkAffinities)
}

// The families of confidential machines by technology, and those of which some can move
// ("Supported configurations" and "Live migration", Confidential VM documentation).
var (
	confidentialTypes = map[string][]string{"SEV": {"n2d-", "c2d-", "c3d-", "c4d-"}, "SEV_SNP": {"n2d-"}, "TDX": {"c3-", "a3-highgpu-1g"}}
	movableSEV        = []string{"n2d-", "c3d-"}
	capableImages     = map[string]string{"SEV": "SEV_CAPABLE", "SEV_SNP": "SEV_SNP_CAPABLE", "TDX": "TDX_CAPABLE"}
)

func (p *placement) checkConfidential(m *machine) *apiError {
	if m.Confidential == nil {
		return nil
	}
	kind, name := m.Confidential.Type, lastPart(m.MachineType)
	bad := func(format string, args ...any) *apiError {
		return refuse(http.StatusBadRequest, "invalid", format, args...)
	}
	families, known := confidentialTypes[kind]
	image, _ := p.catalog.image(m.Disks[0].InitializeParams.SourceImage) // checkDisks has found it
	moves := m.Scheduling.OnHostMaintenance == "MIGRATE" && !m.spot()
	switch {
	case !known:
		return invalidField("resource.confidentialInstanceConfig.confidentialInstanceType", kind, "Unknown value.")
	case !inFamily(name, families):
		return bad("The machine type %s does not support Confidential Compute of type %s.", name, kind)
	case kind == "SEV_SNP" && m.MinCPUPlatform != "AMD Milan":
		return bad("Confidential Compute of type SEV_SNP requires the minimum CPU platform AMD Milan.")
	case moves && (kind != "SEV" || !inFamily(name, movableSEV)):
		return bad("Confidential Compute of type %s requires onHostMaintenance to be TERMINATE: live migration is not supported.", kind)
	case !slices.Contains(image.Features, capableImages[kind]):
		return bad("The image does not support Confidential Compute: it lacks the guest OS feature %s.", capableImages[kind])
	}
	return nil
}

func (p *placement) checkPolicies(m *machine) *apiError {
	if len(m.ResourcePolicies) > 1 {
		return invalidField("resource.resourcePolicies", "", "At most one resource policy is permitted.")
	}
	for _, path := range m.ResourcePolicies {
		i := slices.IndexFunc(p.o.Policies, func(p PlacementPolicy) bool {
			return p.Region == region(m.zone) && strings.HasSuffix(path, "regions/"+p.Region+"/resourcePolicies/"+p.Name)
		})
		switch {
		case i < 0:
			return notFound("projects/" + p.o.Project + "/regions/" + region(m.zone) + "/resourcePolicies/" + lastPart(path))
		case inFamily(lastPart(m.MachineType), []string{"e2-", "f1-", "g1-", "t2a-", "t2d-"}):
			return refuse(http.StatusBadRequest, "invalid", "The machine type %s does not support placement policies.", lastPart(m.MachineType))
		case p.o.Policies[i].Compact && m.Scheduling.OnHostMaintenance != "TERMINATE":
			return refuse(http.StatusBadRequest, "invalid", "Instances with a collocated placement policy must have onHostMaintenance set to TERMINATE.")
		case len(m.Scheduling.NodeAffinities) > 0:
			return refuse(http.StatusBadRequest, "invalid", "Placement policies cannot be used on sole-tenant nodes.")
		}
		m.ResourcePolicies = []string{base + "projects/" + p.o.Project + "/regions/" + region(m.zone) + "/resourcePolicies/" + lastPart(path)}
	}
	return nil
}

func (p *placement) checkReservation(m *machine) *apiError {
	a := m.ReservationAffinity
	if a == nil {
		return nil
	}
	specific := a.Use == "SPECIFIC_RESERVATION"
	switch {
	case !specific && a.Use != "ANY_RESERVATION" && a.Use != "NO_RESERVATION":
		return invalidField("resource.reservationAffinity.consumeReservationType", a.Use, "Unknown value.")
	case specific != (a.Key == "compute.googleapis.com/reservation-name" && len(a.Values) == 1):
		return invalidField("resource.reservationAffinity", a.Key, "Key and one value are needed for a specific reservation, and for no other.")
	case a.Use == "NO_RESERVATION":
		return nil
	case m.spot():
		return refuse(http.StatusBadRequest, "invalid", "Preemptible instances cannot consume reservations.")
	case len(m.Scheduling.NodeAffinities) > 0:
		return refuse(http.StatusBadRequest, "invalid", "Instances on sole-tenant nodes cannot consume reservations.")
	case !specific:
		return nil
	}
	i := slices.IndexFunc(p.o.Reservations, func(r Reservation) bool { return r.Zone == m.zone && r.Name == lastPart(a.Values[0]) })
	switch {
	case i < 0:
		return invalidField("resource.reservationAffinity", a.Values[0], "Specified reservations [%s] do not exist.", a.Values[0])
	case p.o.Reservations[i].Type != lastPart(m.MachineType):
		return invalidField("resource.reservationAffinity", a.Values[0], "No available resources in specified reservations.")
	case p.consumers(m.zone, a.Values[0]) >= p.o.Reservations[i].Count:
		return refuse(http.StatusBadRequest, "invalid", "Specified reservation %s does not have available resources for the request.", a.Values[0])
	}
	return nil
}

// consumers counts the machines of a reservation.
func (p *placement) consumers(zone, name string) int {
	n := 0
	for _, m := range p.fleet.machines {
		if a := m.ReservationAffinity; m.zone == zone && a != nil && len(a.Values) > 0 && lastPart(a.Values[0]) == lastPart(name) {
			n++
		}
	}
	return n
}

func checkAffinities(m *machine) *apiError {
	for _, a := range m.Scheduling.NodeAffinities {
		if a.Key == "" || len(a.Values) == 0 || a.Operator != "IN" && a.Operator != "NOT_IN" {
			return invalidField("resource.scheduling.nodeAffinities", a.Key, "Key, operator IN or NOT_IN, and values are needed.")
		}
	}
	return nil
}

// seat finds a sole-tenant node for a machine that asks for one.
func (p *placement) seat(m *machine) *OperationError {
	if len(m.Scheduling.NodeAffinities) == 0 {
		return nil
	}
	taken := map[*NodeGroup]int{}
	for _, other := range p.fleet.machines {
		taken[other.node]++
	}
	for i := range p.o.NodeGroups {
		g := &p.o.NodeGroups[i]
		fits := !slices.ContainsFunc(m.Scheduling.NodeAffinities, func(a nodeAffinity) bool {
			return slices.Contains(a.Values, g.label(a.Key)) != (a.Operator == "IN")
		})
		if g.Zone == m.zone && fits && taken[g] < g.Size {
			m.node = g
			return nil
		}
	}
	return &OperationError{"CONDITION_NOT_MET", "No feasible nodes found for the instance given its node affinities and resource requirements."}
}
