package gcetest

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance/provider/testcloud"
)

var (
	namePattern  = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	keyPattern   = regexp.MustCompile(`^[\p{Ll}\p{Lo}][\p{Ll}\p{Lo}\p{N}_-]{0,62}$`)
	valuePattern = regexp.MustCompile(`^[\p{Ll}\p{Lo}\p{N}_-]{0,63}$`)
	metadataKey  = regexp.MustCompile(`^[a-zA-Z0-9-_]{1,128}$`)
	uuidPattern  = regexp.MustCompile(`^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`)
)

// What an instance may have, by the API's documentation of Instance.labels and
// Metadata.
const (
	maxLabels        = 64
	maxMetadataValue = 256 << 10
	maxMetadata      = 512 << 10
)

func checkRequestID(id string) *apiError {
	if id == "" || uuidPattern.MatchString(id) && strings.Trim(id, "0-") != "" {
		return nil
	}
	return invalidField("requestId", id, "Must be a valid UUID that is not zero.")
}

// A launcher makes machines.
type launcher struct {
	o          *Options
	sequence   *sequence
	operations *operationLog
	catalog    *catalog
	disks      *diskSet
	network    *network
	placement  *placement
	fleet      *fleet
}

func (l *launcher) insert(q *call) (any, *apiError) {
	m := &machine{project: l.o.Project, zone: q.zone}
	if err := decode(q, &m.instance); err != nil {
		return nil, err
	}
	if !namePattern.MatchString(m.Name) {
		return nil, invalidField("resource.name", m.Name, "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'")
	}
	if err := l.o.permit(q, insertPermissions(&m.instance)...); err != nil {
		return nil, err
	}
	if op := l.operations.repeated(q, "insert"); op != nil {
		return op, nil
	}
	if err := l.check(m); err != nil {
		return nil, err
	}
	if l.fleet.machines[m.key()] != nil {
		return nil, refuse(http.StatusConflict, "alreadyExists", "The resource '%s' already exists", m.path())
	}
	for _, d := range m.Disks {
		path := l.disks.pathOf(m, d)
		if _, exists := l.disks.all[path]; exists && !d.scratch() {
			return nil, refuse(http.StatusConflict, "alreadyExists", "The resource '%s' already exists", path)
		}
	}
	l.fill(m)
	op := l.operations.begin(q, m, "insert")
	l.carryOut(m, op)
	return op, nil
}

// insertPermissions are those that an insert needs by what it asks for.
func insertPermissions(i *instance) []string {
	out := []string{"compute.instances.create", "compute.disks.create", "compute.subnetworks.use"}
	add := func(wanted bool, permission string) {
		if wanted {
			out = append(out, permission)
		}
	}
	add(len(i.Labels) > 0, "compute.instances.setLabels")
	add(i.Metadata != nil, "compute.instances.setMetadata")
	add(i.Tags != nil && len(i.Tags.Items) > 0, "compute.instances.setTags")
	add(len(i.ServiceAccounts) > 0, "compute.instances.setServiceAccount")
	add(len(i.ServiceAccounts) > 0, "iam.serviceAccounts.actAs")
	for _, d := range i.Disks {
		if d.InitializeParams != nil {
			add(d.InitializeParams.SourceImage != "" && !strings.Contains(d.InitializeParams.SourceImage, "-cloud/"), "compute.images.useReadOnly")
			add(len(d.InitializeParams.Labels) > 0, "compute.disks.setLabels")
			add(d.InitializeParams.Snapshot != "", "compute.snapshots.useReadOnly")
		}
	}
	for _, n := range i.NetworkInterfaces {
		add(len(n.AccessConfigs)+len(n.IPv6Access) > 0, "compute.subnetworks.useExternalIp")
	}
	add(len(i.ResourcePolicies) > 0, "compute.resourcePolicies.use")
	return out
}

// check refuses what the cloud refuses before it accepts an insert.
func (l *launcher) check(m *machine) *apiError {
	return firstRefusal(m, checkOwnLabels, checkMetadata, l.catalog.checkType, l.catalog.checkFeatures, l.disks.check, l.network.check, checkAccounts, checkScheduling, l.placement.check)
}

// firstRefusal makes checks, each of which may rely on those before it.
func firstRefusal(m *machine, checks ...func(*machine) *apiError) *apiError {
	for _, check := range checks {
		if err := check(m); err != nil {
			return err
		}
	}
	return nil
}

func checkAccounts(m *machine) *apiError {
	if len(m.ServiceAccounts) > 1 {
		return refuse(http.StatusBadRequest, "invalid", "At most one service account can be specified.")
	}
	return nil
}

func checkOwnLabels(m *machine) *apiError { return checkLabels("resource.labels", m.Labels) }

func checkLabels(field string, labels map[string]string) *apiError {
	if len(labels) > maxLabels {
		return invalidField(field, "", "At most %d labels are allowed.", maxLabels)
	}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if !keyPattern.MatchString(k) {
			return invalidField(field, k, "Label key must match the pattern.")
		}
		if !valuePattern.MatchString(labels[k]) {
			return invalidField(field, labels[k], "Label value must match the pattern.")
		}
	}
	return nil
}

func checkMetadata(m *machine) *apiError {
	if m.Metadata == nil {
		return nil
	}
	total := 0
	seen := map[string]bool{}
	for _, item := range m.Metadata.Items {
		total += len(item.Key) + len(item.Value)
		switch {
		case !metadataKey.MatchString(item.Key):
			return invalidField("resource.metadata.items.key", item.Key, "Must be a match of regex '[a-zA-Z0-9-_]{1,128}'")
		case seen[item.Key]:
			return invalidField("resource.metadata", item.Key, "Duplicate metadata key.")
		case len(item.Value) > maxMetadataValue:
			return refuse(http.StatusBadRequest, "invalid", "Value for metadata key '%s' is too large: maximum size %d character(s).", item.Key, maxMetadataValue)
		}
		seen[item.Key] = true
	}
	if total > maxMetadata {
		return refuse(http.StatusBadRequest, "invalid", "Metadata is too large: maximum size %d.", maxMetadata)
	}
	return nil
}

func checkScheduling(m *machine) *apiError {
	if m.Scheduling == nil {
		m.Scheduling = &scheduling{}
	}
	s := m.Scheduling
	bad := func(format string, args ...any) *apiError {
		return refuse(http.StatusBadRequest, "invalid", format, args...)
	}
	if s.ProvisioningModel == "SPOT" {
		s.Preemptible = true
	}
	for field, word := range map[string][2]string{
		"provisioningModel":         {s.ProvisioningModel, "SPOT STANDARD"},
		"onHostMaintenance":         {s.OnHostMaintenance, "MIGRATE TERMINATE"},
		"instanceTerminationAction": {s.InstanceTerminationAction, "DELETE STOP"},
	} {
		if word[0] != "" && !slices.Contains(strings.Fields(word[1]), word[0]) {
			return invalidField("resource.scheduling."+field, word[0], "Unknown value.")
		}
	}
	notice := s.PreemptionNoticeDuration.value()
	switch {
	case s.Preemptible && s.AutomaticRestart != nil && *s.AutomaticRestart:
		return bad("Scheduling must have preemptible be false when AutomaticRestart is true.")
	case s.Preemptible && s.OnHostMaintenance == "MIGRATE":
		return bad("Scheduling must have preemptible be false when OnHostMaintenance isn't TERMINATE.")
	case s.InstanceTerminationAction != "" && s.ProvisioningModel != "SPOT" && s.MaxRunDuration == nil:
		return bad("You cannot specify a termination action for a VM instance that has the standard provisioning model (default). To use instance termination action, the VM instance must use the spot provisioning model or max run duration.")
	case s.MaxRunDuration != nil && s.InstanceTerminationAction == "":
		return bad("instance_termination_action must be specified when max_run_duration is specified.")
	case s.PreemptionNoticeDuration != nil && s.ProvisioningModel != "SPOT":
		return bad("preemption_notice_duration can only be specified for Spot VMs.")
	case notice != 0 && notice != 2*time.Minute:
		return invalidField("resource.scheduling.preemptionNoticeDuration", fmt.Sprint(notice), "Must be 0 or 120 seconds.")
	case s.OnHostMaintenance != "TERMINATE" && !s.Preemptible && (len(m.GuestAccelerators) > 0 || inFamily(lastPart(m.MachineType), withAccelerators)):
		return bad("Instances with guest accelerators do not support live migration.") // which is the default
	case s.OnHostMaintenance != "TERMINATE" && !s.Preemptible && (inFamily(lastPart(m.MachineType), withoutMigration) || strings.HasSuffix(m.MachineType, "-metal")):
		return bad("The machine type %s does not support live migration.", lastPart(m.MachineType))
	case s.GracefulShutdown != nil && s.GracefulShutdown.MaxDuration.value() > time.Hour:
		return invalidField("resource.scheduling.gracefulShutdown.maxDuration", "", "Must be at most 3600 seconds.")
	}
	restart := !s.Preemptible
	if s.AutomaticRestart == nil {
		s.AutomaticRestart = &restart
	}
	if s.ProvisioningModel == "" {
		s.ProvisioningModel = "STANDARD"
	}
	if s.OnHostMaintenance == "" {
		s.OnHostMaintenance = "MIGRATE"
		if s.Preemptible {
			s.OnHostMaintenance = "TERMINATE"
		}
	}
	return nil
}

// fill completes an instance as the cloud does.
func (l *launcher) fill(m *machine) {
	now := time.Now()
	m.Kind, m.ID, m.CreationTimestamp = "compute#instance", decimal(l.sequence.next()), stamp(now)
	m.Zone, m.SelfLink = base+"projects/"+l.o.Project+"/zones/"+m.zone, base+m.path()
	m.MachineType = m.Zone + "/machineTypes/" + lastPart(m.MachineType)
	m.CPUPlatform, m.Fingerprint, m.LabelFingerprint = "Unknown CPU Platform", l.sequence.print(), l.sequence.print()
	if m.Metadata == nil {
		m.Metadata = &metadata{}
	}
	m.Metadata.Kind, m.Metadata.Fingerprint = "compute#metadata", l.sequence.print()
	if m.Tags == nil {
		m.Tags = &tags{}
	}
	m.Tags.Fingerprint = l.sequence.print()
	l.disks.fill(m)
	for i, n := range m.NetworkInterfaces {
		n.Kind, n.Name, n.Fingerprint = "compute#networkInterface", fmt.Sprint("nic", i), l.sequence.print()
		for _, a := range append(n.AccessConfigs, n.IPv6Access...) {
			a.Kind = "compute#accessConfig"
		}
		for _, a := range n.AccessConfigs {
			a.NatIP = fmt.Sprintf("203.0.113.%d", 1+len(l.fleet.machines)%250)
		}
	}
	m.visible = now.Add(l.o.Delays.Visible)
	m.shape = testcloud.Shape{Type: lastPart(m.MachineType), Zone: m.zone, Spot: m.spot()}
	l.fleet.machines[m.key()] = m
}

// carryOut carries out an accepted insert: with capacity and addresses the machine
// starts; without, it is shown for a while, and the operation fails.
func (l *launcher) carryOut(m *machine, op *operation) {
	failure := l.operations.armed("insert")
	if failure == nil {
		failure = l.place(m)
	}
	if failure == nil {
		l.fleet.launch(m, op)
		return
	}
	m.set("PROVISIONING")
	l.fleet.timers.After(l.o.Delays.Start, func() {
		l.fleet.forget(m)
		l.disks.remove(m, true)
		l.operations.finish(op, failure)
	})
}

// place gives a machine addresses and capacity.
func (l *launcher) place(m *machine) *OperationError {
	for i, s := range m.subnets {
		if failure := s.connect(m, m.NetworkInterfaces[i]); failure != nil {
			return failure
		}
	}
	if failure := l.placement.seat(m); failure != nil {
		return failure
	}
	if !l.o.Capacity.Take(m.shape) {
		return stockout(m)
	}
	m.placed = true
	return nil
}

func stockout(m *machine) *OperationError {
	return &OperationError{"ZONE_RESOURCE_POOL_EXHAUSTED", "The zone 'projects/" + m.project + "/zones/" + m.zone + "' does not have enough resources available to fulfill the request.  Try a different zone, or try again later."}
}
