package gcp

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// Args are the args of a template, a group or a request.
type Args struct {
	Network        string       `json:"network,omitempty" doc:"network of the machine when the group has no subnet" default:"default"`
	ExternalIP     bool         `json:"external_ip,omitempty" doc:"give the machine a public address" default:"false"`
	NetworkTags    []string     `json:"network_tags,omitempty" doc:"network tags, for firewall rules"`
	CanIPForward   bool         `json:"can_ip_forward,omitempty" doc:"let the machine send packets from other addresses" default:"false"`
	NICType        string       `json:"nic_type,omitempty" doc:"kind of network interface" enum:"GVNIC|VIRTIO_NET"`
	NetworkTier    string       `json:"network_tier,omitempty" doc:"network tier of the public address" enum:"PREMIUM|STANDARD" default:"the project's"`
	StackType      string       `json:"stack_type,omitempty" doc:"which addresses the machine has; those of its subnet must include them" enum:"IPV4_ONLY|IPV4_IPV6|IPV6_ONLY" default:"IPV4_ONLY"`
	ExternalIPv6   bool         `json:"external_ipv6,omitempty" doc:"give the machine a public IPv6 address; its subnet must have external ones" default:"false"`
	AliasRanges    []AliasRange `json:"alias_ranges,omitempty" doc:"alias ranges, such as addresses for pods"`
	Interfaces     []Interface  `json:"interfaces,omitempty" doc:"further network interfaces"`
	DiskType       string       `json:"disk_type,omitempty" doc:"type of the boot disk, such as pd-balanced or hyperdisk-balanced" default:"the cloud's"`
	DiskSizeGB     int64        `json:"disk_size_gb,omitempty" doc:"size of the boot disk" default:"that of the image" min:"1" max:"65536"`
	DiskIOPS       int64        `json:"disk_iops,omitempty" doc:"provisioned operations a second of the boot disk, for Hyperdisk and pd-extreme; needs disk_size_gb" min:"1"`
	DiskThroughput int64        `json:"disk_throughput,omitempty" doc:"provisioned MiB a second of the boot disk, for Hyperdisk; needs disk_size_gb" min:"1"`
	Disks          []Disk       `json:"disks,omitempty" doc:"further disks, created and deleted with the machine"`
	KMSKey         string       `json:"kms_key,omitempty" doc:"path of the Cloud KMS key that encrypts the boot disk and the further disks: projects/P/locations/L/keyRings/R/cryptoKeys/K" default:"Google's own"`

	KMSServiceAccount string `json:"kms_service_account,omitempty" doc:"mail address of the service account that uses the keys" default:"Compute Engine's own"`
	LocalSSDs         int    `json:"local_ssds,omitempty" doc:"local SSDs of 375 GiB; their content is lost when the machine stops" min:"1" max:"32" default:"0, or those built into the machine type"`
	LocalSSDInterface string `json:"local_ssd_interface,omitempty" doc:"how local SSDs are attached" enum:"NVME|SCSI" default:"NVME"`

	ServiceAccount string            `json:"service_account,omitempty" doc:"mail address of the machine's service account" default:"none"`
	Scopes         []string          `json:"scopes,omitempty" doc:"access scopes of the service account" default:"https://www.googleapis.com/auth/cloud-platform"`
	Labels         map[string]string `json:"labels,omitempty" doc:"further labels of the machine and its disks; keys that begin with nstance- are the system's"`
	Metadata       map[string]string `json:"metadata,omitempty" doc:"further metadata of the machine"`
	UserDataKey    string            `json:"user_data_key,omitempty" doc:"metadata key of the user data: user-data is read by cloud-init and Container-Optimized OS, startup-script by Google's guest agent, at every boot" enum:"user-data|startup-script" default:"user-data"`
	MinCPUPlatform string            `json:"min_cpu_platform,omitempty" doc:"oldest CPU platform, such as Intel Ice Lake"`
	Accelerators   []Accelerator     `json:"accelerators,omitempty" doc:"accelerators to attach; such machines cannot migrate"`
	SecureBoot     bool              `json:"secure_boot,omitempty" doc:"boot signed software only" default:"false"`

	NestedVirtualization bool `json:"nested_virtualization,omitempty" doc:"let the machine run virtual machines" default:"false"`
	ThreadsPerCore       int  `json:"threads_per_core,omitempty" doc:"threads of each core" min:"1" max:"2"`

	Confidential    string         `json:"confidential,omitempty" doc:"encrypt the memory by this technology; the machine ends when its host is maintained, unless on_host_maintenance says otherwise" enum:"SEV|SEV_SNP|TDX"`
	Reservation     *Reservation   `json:"reservation,omitempty" doc:"which reservations on-demand machines use" default:"any open one that fits"`
	PlacementPolicy string         `json:"placement_policy,omitempty" doc:"name or path of a compact or spread placement policy of the region; a compact one needs on_host_maintenance TERMINATE"`
	NodeAffinities  []NodeAffinity `json:"node_affinities,omitempty" doc:"labels of the sole-tenant nodes to run on" default:"shared hosts"`

	OnHostMaintenance string `json:"on_host_maintenance,omitempty" doc:"what happens to an on-demand machine when its host is maintained; spot machines always end" enum:"MIGRATE|TERMINATE" default:"MIGRATE where the machine can move"`
	AutomaticRestart  *bool  `json:"automatic_restart,omitempty" doc:"whether the cloud restarts an on-demand machine that it has stopped for a failure or maintenance of its host; it never restarts spot machines" default:"true"`

	SpotModel         string             `json:"spot_model,omitempty" doc:"how spot capacity is requested: SPOT, or the older PREEMPTIBLE, whose machines live 24 hours at most" enum:"SPOT|PREEMPTIBLE" default:"SPOT"`
	TerminationAction string             `json:"termination_action,omitempty" doc:"what the cloud does with a reclaimed spot machine: DELETE, or STOP, which keeps its disks until the server has deleted it" enum:"DELETE|STOP" default:"DELETE"`
	PreemptionNotice  *provider.Duration `json:"preemption_notice,omitempty" doc:"advance notice of a reclaim, 2m or 0s; not for the model PREEMPTIBLE" default:"2m"`
	GracefulShutdown  provider.Duration  `json:"graceful_shutdown,omitempty" doc:"how long the guest may take to shut down when the machine is stopped; reclaims do not wait for it, and a delete by the server neither" default:"0s"`
	MaxRunDuration    provider.Duration  `json:"max_run_duration,omitempty" doc:"time after which the cloud ends the machine" default:"0s"`
}

// An Accelerator is a kind of accelerator and how many of it.
type Accelerator struct {
	Type  string `json:"type" doc:"name of the accelerator, such as nvidia-tesla-t4" required:"true"`
	Count int32  `json:"count" doc:"how many" required:"true" min:"1" max:"16"`
}

// The kinds of spot capacity.
const (
	modelSpot        = "SPOT"
	modelPreemptible = "PREEMPTIBLE"
)

// managed are arguments that the API has and the system sets.
var managed = provider.Managed{
	"name":                "it is the instance ID",
	"zone":                "set shard.provider.zone, or write SUBNET?zone=ZONE in subnet_pools",
	"machine_type":        "set instance_type",
	"image":               "set the image of the template",
	"source_image":        "set the image of the template",
	"subnetwork":          "set subnet_pool",
	"subnet":              "set subnet_pool",
	"user_data":           "set userdata",
	"startup_script":      "set userdata, with args.user_data_key startup-script",
	"preemptible":         "set market.type spot",
	"provisioning_model":  "set market.type spot",
	"request_id":          "remove it",
	"deletion_protection": "set protect of the group",
}

const maxRun = 120 * 24 * time.Hour // Scheduling.maxRunDuration

var (
	namePattern   = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	labelKey      = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	labelValue    = regexp.MustCompile(`^[a-z0-9_-]{0,63}$`)
	metadataKey   = regexp.MustCompile(`^[a-zA-Z0-9-_]{1,127}$`)
	accountSyntax = regexp.MustCompile(`^[^@\s]+@[^@\s]+$|^default$`)
)

func (a *Args) check() error {
	if err := a.checkWords(); err != nil {
		return err
	}
	if err := a.checkMaps(); err != nil {
		return err
	}
	for i, t := range a.NetworkTags {
		if !namePattern.MatchString(t) {
			return nstance.FieldError("args.network_tags", "use a-z, 0-9 and hyphens", "tag %d, %.64q, is no network tag", i, t)
		}
	}
	for _, c := range a.Accelerators {
		if !namePattern.MatchString(c.Type) || c.Count < 1 || c.Count > 16 {
			return nstance.FieldError("args.accelerators", "give each a type such as nvidia-tesla-t4 and a count of 1 to 16", "%d of %.64q make no sense", c.Count, c.Type)
		}
	}
	switch {
	case a.DiskSizeGB < 0 || a.DiskSizeGB > 65536:
		return nstance.FieldError("args.disk_size_gb", "use 1 to 65536", "%d is out of range", a.DiskSizeGB)
	case a.ThreadsPerCore < 0 || a.ThreadsPerCore > 2:
		return nstance.FieldError("args.threads_per_core", "use 1 or 2", "%d is out of range", a.ThreadsPerCore)
	case a.ServiceAccount != "" && !accountSyntax.MatchString(a.ServiceAccount):
		return nstance.FieldError("args.service_account", "write its mail address, or default", "%.64q is no mail address", a.ServiceAccount)
	case len(a.Scopes) > 0 && a.ServiceAccount == "":
		return nstance.FieldError("args.scopes", "set args.service_account too", "scopes without a service account do nothing")
	case a.KMSServiceAccount != "" && a.KMSKey == "" && !slices.ContainsFunc(a.Disks, func(d Disk) bool { return d.KMSKey != "" }):
		return nstance.FieldError("args.kms_service_account", "set args.kms_key too", "there is no key to use")
	case a.KMSServiceAccount != "" && !accountSyntax.MatchString(a.KMSServiceAccount):
		return nstance.FieldError("args.kms_service_account", "write its mail address", "%.64q is no mail address", a.KMSServiceAccount)
	}
	if err := a.checkDisks(); err != nil {
		return err
	}
	if err := a.checkInterfaces(); err != nil {
		return err
	}
	return a.checkTimes()
}

func (a *Args) checkWords() error {
	for _, w := range []struct{ field, word, first, second string }{
		{"nic_type", a.NICType, "GVNIC", "VIRTIO_NET"},
		{"user_data_key", a.UserDataKey, "user-data", "startup-script"},
		{"spot_model", a.SpotModel, modelSpot, modelPreemptible},
		{"termination_action", a.TerminationAction, "DELETE", "STOP"},
	} {
		if w.word != "" && w.word != w.first && w.word != w.second {
			return nstance.FieldError("args."+w.field, "use "+w.first+" or "+w.second, "%.64q is neither", w.word)
		}
	}
	return nil
}

func (a *Args) checkMaps() error {
	for k, v := range a.Labels {
		switch {
		case len(k) >= len(prefix) && k[:len(prefix)] == prefix:
			return nstance.FieldError("args.labels", "choose another key", "label %.64q is set by the system", k)
		case !labelKey.MatchString(k) || !labelValue.MatchString(v):
			return nstance.FieldError("args.labels", "use at most 63 of a-z, 0-9, _ and -, a letter first in the key", "label %.64q = %.64q is not permitted", k, v)
		}
	}
	for k := range a.Metadata {
		switch k {
		case "user-data", "startup-script", encodingKey:
			return nstance.FieldError("args.metadata", "set userdata", "metadata %q is set by the system", k)
		}
		if !metadataKey.MatchString(k) {
			return nstance.FieldError("args.metadata", "use at most 127 of a-z, A-Z, 0-9, _ and -", "metadata key %.64q is not permitted", k)
		}
	}
	return nil
}

func (a *Args) checkTimes() error {
	notice := a.notice()
	switch {
	case notice != 0 && notice != 2*time.Minute:
		return nstance.FieldError("args.preemption_notice", "use 2m or 0s", "%s is neither", notice)
	case a.SpotModel == modelPreemptible && a.PreemptionNotice != nil && notice != 0:
		return nstance.FieldError("args.preemption_notice", "remove it, or set args.spot_model SPOT", "preemptible machines get no advance notice")
	case a.SpotModel == modelPreemptible && a.TerminationAction == "DELETE":
		return nstance.FieldError("args.termination_action", "remove it, or set args.spot_model SPOT", "preemptible machines are always stopped")
	case a.GracefulShutdown != 0 && (time.Duration(a.GracefulShutdown) < time.Second || time.Duration(a.GracefulShutdown) > time.Hour):
		return nstance.FieldError("args.graceful_shutdown", "use 1s to 1h", "%s is out of range", time.Duration(a.GracefulShutdown))
	case a.MaxRunDuration != 0 && (time.Duration(a.MaxRunDuration) < 30*time.Second || time.Duration(a.MaxRunDuration) > maxRun):
		return nstance.FieldError("args.max_run_duration", "use 30s to 120d", "%s is out of range", time.Duration(a.MaxRunDuration))
	}
	return nil
}

// notice is the advance notice to ask for: as much as there is, unless args say
// otherwise. Preemptible machines have none.
func (a *Args) notice() time.Duration {
	switch {
	case a.PreemptionNotice != nil:
		return time.Duration(*a.PreemptionNotice)
	case a.SpotModel == modelPreemptible:
		return 0
	}
	return 2 * time.Minute
}

// checkType refuses what the documentation of Compute Engine excludes for a machine type:
// accelerators are attached to N1 only ("GPU machine types"; others have theirs built in),
// E2 and the Arm types know no minimum CPU platform and no nested virtualization, machines
// that share a core have no threads to choose, and E2 has no Hyperdisk. A type that is not
// named here is left to the cloud.
func (a *Args) checkType(name string) error {
	family, _, _ := strings.Cut(name, "-")
	is := func(families ...string) bool { return slices.Contains(families, family) }
	shared := is("f1", "g1") || name == "e2-micro" || name == "e2-small" || name == "e2-medium"
	switch {
	case len(a.Accelerators) > 0 && !is("n1", "custom"):
		return nstance.FieldError("args.accelerators", "remove them, or use an n1 machine type", "accelerators cannot be attached to %s; types such as g2 and a2 have theirs built in", name)
	case a.MinCPUPlatform != "" && is("e2", "f1", "g1", "t2a", "t2d", "c4a"):
		return nstance.FieldError("args.min_cpu_platform", "remove it", "%s has no choice of CPU platforms", name)
	case a.PlacementPolicy != "" && slices.Contains(withoutPlacement, family):
		return nstance.FieldError("args.placement_policy", "remove it, or use a machine type such as n2-standard-2", "%s has no placement policies", name)
	case a.NestedVirtualization && is("e2", "t2a", "t2d", "c4a"):
		return nstance.FieldError("args.nested_virtualization", "remove it, or use an Intel type such as n2", "%s cannot run virtual machines", name)
	case a.ThreadsPerCore != 0 && shared:
		return nstance.FieldError("args.threads_per_core", "remove it", "%s shares a core", name)
	case a.ThreadsPerCore == 2 && is("t2a", "t2d", "c4a"):
		return nstance.FieldError("args.threads_per_core", "use 1, or remove it", "cores of %s have one thread", name)
	}
	for _, err := range []error{a.checkDiskTypes(name), a.checkInterfaceCount(name), a.checkConfidential(name), a.checkMaintenance(name)} {
		if err != nil {
			return err
		}
	}
	return nil
}
