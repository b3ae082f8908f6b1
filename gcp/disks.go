package gcp

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
)

// A Disk is a further disk of a machine. It is created and deleted with it.
type Disk struct {
	DeviceName string `json:"device_name,omitempty" doc:"name below /dev/disk/by-id/google- in the guest" default:"persistent-disk-N"`
	Type       string `json:"type,omitempty" doc:"type of the disk, such as pd-balanced or hyperdisk-balanced" default:"the cloud's"`
	SizeGB     int64  `json:"size_gb,omitempty" doc:"size of the disk" default:"that of the snapshot, else 500" min:"10" max:"65536"`
	Snapshot   string `json:"snapshot,omitempty" doc:"name or path of the snapshot that the disk is created from" default:"none: the disk is blank"`
	IOPS       int64  `json:"iops,omitempty" doc:"provisioned operations a second, of Hyperdisk and pd-extreme; needs size_gb" min:"1"`
	Throughput int64  `json:"throughput,omitempty" doc:"provisioned MiB a second, of Hyperdisk; needs size_gb" min:"1"`
	KMSKey     string `json:"kms_key,omitempty" doc:"path of the Cloud KMS key that encrypts the disk" default:"args.kms_key"`
}

// maxDisks is how many persistent disks a machine may have beside its boot disk
// ("About Persistent Disk", maximum disk limits: 128 in all).
const maxDisks = 127

// kmsKeyPattern is the path of a key (CustomerEncryptionKey.kmsKeyName).
var kmsKeyPattern = regexp.MustCompile(`^projects/[^/\s]+/locations/[^/\s]+/keyRings/[^/\s]+/cryptoKeys/[^/\s]+(/cryptoKeyVersions/[0-9]+)?$`)

// bootDisk is what args say of the boot disk.
func (a *Args) bootDisk() Disk {
	return Disk{Type: a.DiskType, SizeGB: a.DiskSizeGB, IOPS: a.DiskIOPS, Throughput: a.DiskThroughput, KMSKey: a.KMSKey}
}

// checkDisks refuses disks that no machine can have.
func (a *Args) checkDisks() error {
	if len(a.Disks) > maxDisks {
		return nstance.FieldError("args.disks", "remove some", "%d disks are more than the %d that a machine may have", len(a.Disks), maxDisks)
	}
	boot := a.bootDisk()
	if err := boot.check("args.disk_", "args."); err != nil {
		return err
	}
	seen := map[string]int{}
	for i, d := range a.Disks {
		at := fmt.Sprintf("args.disks[%d].", i)
		if err := d.check(at, at); err != nil {
			return err
		}
		if other, twice := seen[d.DeviceName]; twice && d.DeviceName != "" {
			return nstance.FieldError(at+"device_name", "choose another name", "disk %d has the name %.64q too", other, d.DeviceName)
		}
		seen[d.DeviceName] = i
	}
	return nil
}

// check refuses a disk whose figures its type cannot have. at goes before the names of its
// fields, keyAt before that of its key.
func (d *Disk) check(at, keyAt string) error {
	switch {
	case d.Type != "" && !namePattern.MatchString(d.Type):
		return nstance.FieldError(at+"type", "name one, such as pd-balanced", "%.64q is no type of disk", d.Type)
	case d.Type == localSSD:
		return nstance.FieldError(at+"type", "set args.local_ssds", "local SSDs are no disks of this list")
	case d.DeviceName != "" && !devicePattern.MatchString(d.DeviceName):
		return nstance.FieldError(at+"device_name", "use at most 63 of a-z, 0-9, _ and -, a letter or digit first", "%.64q is no device name", d.DeviceName)
	case d.KMSKey != "" && !kmsKeyPattern.MatchString(d.KMSKey):
		return nstance.FieldError(keyAt+"kms_key", "write projects/P/locations/L/keyRings/R/cryptoKeys/K", "%.128q is no path of a key", d.KMSKey)
	case d.Snapshot != "" && !namePattern.MatchString(lastPart(d.Snapshot)):
		return nstance.FieldError(at+"snapshot", "write its name, or projects/P/global/snapshots/S", "%.64q is no snapshot", d.Snapshot)
	}
	return d.checkFigures(at)
}

var devicePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

// A performance is what may be provisioned for a type of disk; zero: nothing.
type performance struct{ minIOPS, maxIOPS, minThroughput, maxThroughput int64 }

// performances are the bounds of any size of a disk, throughput in MiB a second
// (https://cloud.google.com/compute/docs/disks/hyperdisks, the pages of each type, and
// AttachedDiskInitializeParams.provisionedIops). What a size permits, the cloud judges.
var performances = map[string]performance{
	"hyperdisk-balanced":   {3_000, 160_000, 140, 2_400},
	"hyperdisk-extreme":    {128, 350_000, 0, 0},
	"hyperdisk-throughput": {0, 0, 10, 2_400},
	"hyperdisk-ml":         {0, 0, 400, 1_200_000},
	"pd-extreme":           {10_000, 120_000, 0, 0},
}

// checkFigures leaves types of Hyperdisk that are not named here to the cloud.
func (d *Disk) checkFigures(at string) error {
	known, named := performances[d.Type]
	if !named && strings.HasPrefix(d.Type, "hyperdisk-") {
		known = performance{1, 1 << 40, 1, 1 << 40}
	}
	for _, f := range []struct {
		name            string
		value, min, max int64
	}{
		{"iops", d.IOPS, known.minIOPS, known.maxIOPS}, {"throughput", d.Throughput, known.minThroughput, known.maxThroughput},
	} {
		switch {
		case f.value == 0:
		case f.max == 0:
			return nstance.FieldError(at+f.name, "remove it, or set "+at+"type hyperdisk-balanced", "disks of type %s have none to provision", typeName(d.Type))
		case f.value < f.min || f.value > f.max:
			return nstance.FieldError(at+f.name, fmt.Sprintf("use %d to %d", f.min, f.max), "%d is out of range for %s", f.value, d.Type)
		case d.SizeGB == 0:
			return nstance.FieldError(at+"size_gb", "add it", "is needed with %s%s", at, f.name)
		}
	}
	return nil
}

func typeName(kind string) string {
	if kind == "" {
		return "pd-standard, the cloud's default,"
	}
	return kind
}

// checkDiskTypes refuses types of disks that a machine type does not have, or that cannot
// be a boot disk.
func (a *Args) checkDiskTypes(machineType string) error {
	if a.DiskType == "hyperdisk-throughput" || a.DiskType == "hyperdisk-ml" {
		return nstance.FieldError("args.disk_type", "use hyperdisk-balanced or pd-balanced", "%s cannot be a boot disk", a.DiskType)
	}
	family, _, _ := strings.Cut(machineType, "-")
	if !slices.Contains([]string{"e2", "f1", "g1"}, family) {
		return nil
	}
	types := []string{a.DiskType}
	for _, d := range a.Disks {
		types = append(types, d.Type)
	}
	for i, t := range types {
		field := "args.disk_type"
		if i > 0 {
			field = fmt.Sprintf("args.disks[%d].type", i-1)
		}
		if strings.HasPrefix(t, "hyperdisk-") {
			return nstance.FieldError(field, "use pd-balanced or pd-ssd, or another machine type", "%s has no Hyperdisk", machineType)
		}
	}
	return nil
}

// localSSD is the type of local SSDs.
const localSSD = "local-ssd"

// checkLocalSSDs refuses numbers of local SSDs that a machine type cannot have, and ways to
// park that lose them under a running guest.
func (a *Args) checkLocalSSDs(spec nstance.MachineSpec) error {
	if a.LocalSSDs == 0 {
		if a.LocalSSDInterface != "" {
			return nstance.FieldError("args.local_ssd_interface", "set args.local_ssds too", "there are no local SSDs")
		}
		return nil
	}
	counts, known := localSSDCounts(spec.InstanceType)
	switch {
	case spec.Park == nstance.ParkHibernated:
		return nstance.FieldError("args.local_ssds", "remove them, or set warm_pool.mode stopped", "a hibernated machine would wake without the content of its local SSDs")
	case known && len(counts) == 0:
		return nstance.FieldError("args.local_ssds", "remove it, or use a machine type such as n2-standard-4", "local SSDs cannot be added to %s; types such as c3-standard-8-lssd have theirs built in", spec.InstanceType)
	case known && !slices.Contains(counts, a.LocalSSDs):
		return nstance.FieldError("args.local_ssds", "use "+join(counts), "%s cannot have %d local SSDs", spec.InstanceType, a.LocalSSDs)
	}
	return nil
}

func join(numbers []int) string {
	var out []string
	for _, n := range numbers {
		out = append(out, strconv.Itoa(n))
	}
	return strings.Join(out, ", ")
}

// withoutLocalSSDs are the families to which none can be added: they have none, or those of
// types with a fixed number.
var withoutLocalSSDs = []string{"e2", "f1", "g1", "t2a", "t2d", "m2", "n4", "n4a", "n4d", "h3", "c3", "c3d", "c4", "c4a", "c4d", "z3", "a3", "a4"}

// localSSDRules are the numbers by vCPUs at most
// (https://cloud.google.com/compute/docs/disks/local-ssd#choose_number_local_ssds).
var localSSDRules = map[string][]struct {
	cpus   int
	counts []int
}{
	"n2":  {{10, []int{1, 2, 4, 8, 16, 24}}, {20, []int{2, 4, 8, 16, 24}}, {40, []int{4, 8, 16, 24}}, {80, []int{8, 16, 24}}, {128, []int{16, 24}}},
	"n2d": {{16, []int{1, 2, 4, 8, 16, 24}}, {48, []int{2, 4, 8, 16, 24}}, {80, []int{4, 8, 16, 24}}, {224, []int{8, 16, 24}}},
	"c2":  {{8, []int{1, 2, 4, 8}}, {16, []int{2, 4, 8}}, {30, []int{4, 8}}, {60, []int{8}}},
	"c2d": {{16, []int{1, 2, 4, 8}}, {32, []int{2, 4, 8}}, {56, []int{4, 8}}, {112, []int{8}}},
}

// localSSDCounts returns how many local SSDs a machine type may have, and whether that is
// known.
func localSSDCounts(machineType string) ([]int, bool) {
	family, _, _ := strings.Cut(machineType, "-")
	switch {
	case slices.Contains(withoutLocalSSDs, family):
		return nil, true
	case family == "n1" || family == "custom":
		return []int{1, 2, 3, 4, 5, 6, 7, 8, 16, 24}, true
	}
	cpus := cpusOf(machineType)
	for _, r := range localSSDRules[family] {
		if cpus > 0 && cpus <= r.cpus {
			return r.counts, true
		}
	}
	return nil, false
}

// cpusOf returns the vCPUs of a machine type by its name, such as n2-standard-4 and
// n2-custom-4-8192; 0: the name does not say.
func cpusOf(machineType string) int {
	for part := range strings.SplitSeq(machineType, "-") {
		if n, err := strconv.Atoi(part); err == nil {
			return n
		}
	}
	return 0
}

// allDisks returns the boot disk, the further disks and the local SSDs, in this order. All go with the
// machine. Disks carry its marks, so that one left behind is found; local SSDs cannot.
func (a *Args) allDisks(o *Options, zone, image string, labels map[string]string) []*computepb.AttachedDisk {
	boot := a.bootDisk()
	first := boot.attached(o, zone, labels, a)
	first.Boot, first.InitializeParams.SourceImage = proto.Bool(true), proto.String(o.imagePath(image))
	out := []*computepb.AttachedDisk{first}
	for _, d := range a.Disks {
		out = append(out, d.attached(o, zone, labels, a))
	}
	bus := cmp.Or(a.LocalSSDInterface, "NVME")
	for range a.LocalSSDs {
		out = append(out, &computepb.AttachedDisk{
			Type: proto.String("SCRATCH"), AutoDelete: proto.Bool(true), Interface: proto.String(bus),
			InitializeParams: &computepb.AttachedDiskInitializeParams{DiskType: proto.String("zones/" + zone + "/diskTypes/" + localSSD)},
		})
	}
	return out
}

func (d *Disk) attached(o *Options, zone string, labels map[string]string, a *Args) *computepb.AttachedDisk {
	init := &computepb.AttachedDiskInitializeParams{Labels: labels}
	out := &computepb.AttachedDisk{AutoDelete: proto.Bool(true), InitializeParams: init}
	if d.SizeGB != 0 {
		init.DiskSizeGb = proto.Int64(d.SizeGB)
	}
	if d.Type != "" {
		init.DiskType = proto.String("zones/" + zone + "/diskTypes/" + d.Type)
	}
	if d.IOPS != 0 {
		init.ProvisionedIops = proto.Int64(d.IOPS)
	}
	if d.Throughput != 0 {
		init.ProvisionedThroughput = proto.Int64(d.Throughput)
	}
	if d.Snapshot != "" {
		init.SourceSnapshot = proto.String(o.globalPath("snapshots", d.Snapshot))
	}
	if d.DeviceName != "" {
		out.DeviceName = proto.String(d.DeviceName)
	}
	if key := cmp.Or(d.KMSKey, a.KMSKey); key != "" {
		out.DiskEncryptionKey = &computepb.CustomerEncryptionKey{KmsKeyName: proto.String(key)}
		if a.KMSServiceAccount != "" {
			out.DiskEncryptionKey.KmsKeyServiceAccount = proto.String(a.KMSServiceAccount)
		}
	}
	return out
}
