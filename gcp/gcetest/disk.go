package gcetest

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// A Snapshot is what a disk can be created from.
type Snapshot struct {
	Name   string
	SizeGB int64 // 10
}

// scratch reports whether a disk is a local SSD, which is no resource of its own.
func (d *attachedDisk) scratch() bool { return d.Type == "SCRATCH" }

// A DiskState is what there is of a disk, for audits. It may outlive its machine.
type DiskState struct {
	Path       string
	Type       string // empty: the cloud's default
	SizeGB     int64  // 0: that of its source
	IOPS       int64  // 0: the cloud's default
	Throughput int64  // MiB a second; 0: the cloud's default
	Key        string // of Cloud KMS; empty: Google's own
	Snapshot   string // that it was created from
	Labels     map[string]string
}

// A diskSet is the persistent disks of the project.
type diskSet struct {
	o       *Options
	catalog *catalog
	all     map[string]DiskState // by path
}

// pathOf returns the path of a disk.
func (s *diskSet) pathOf(m *machine, d *attachedDisk) string {
	name := m.Name
	if d.InitializeParams != nil && d.InitializeParams.DiskName != "" {
		name = d.InitializeParams.DiskName
	} else if i := slices.Index(m.Disks, d); i > 0 {
		name = fmt.Sprint(m.Name, "-", i)
	}
	return "projects/" + s.o.Project + "/zones/" + m.zone + "/disks/" + name
}

// fillDisks completes the disks of an instance.
func (s *diskSet) fill(m *machine) {
	persistent, local := 0, 0
	for i, d := range m.Disks {
		p, path := d.InitializeParams, s.pathOf(m, d)
		d.Kind, d.Index, d.InitializeParams = "compute#attachedDisk", i, nil // the cloud does not show it again
		d.Type, d.Mode = cmp.Or(d.Type, "PERSISTENT"), cmp.Or(d.Mode, "READ_WRITE")
		if d.scratch() {
			d.DeviceName, d.DiskSizeGB = cmp.Or(d.DeviceName, fmt.Sprint("local-ssd-", local)), localSSDSize
			local++
			continue
		}
		d.DeviceName, d.Source = cmp.Or(d.DeviceName, fmt.Sprint("persistent-disk-", persistent)), base+path
		persistent++
		state := DiskState{
			Path: path, Type: lastPart(p.DiskType), SizeGB: p.DiskSizeGB, IOPS: p.ProvisionedIO, Throughput: p.ProvisionedMB,
			Snapshot: lastPart(p.Snapshot), Labels: p.Labels,
		}
		if d.EncryptionKey != nil {
			state.Key = d.EncryptionKey.Name
		}
		s.all[path] = state
	}
}

// remove deletes the disks of a machine: all, or those that go with it.
func (s *diskSet) remove(m *machine, all bool) {
	for _, d := range m.Disks {
		if all || d.AutoDelete {
			delete(s.all, strings.TrimPrefix(d.Source, base))
		}
	}
}

// maxDisks is how many persistent disks a machine may have ("About Persistent Disk").
const maxDisks = 128

func (s *diskSet) check(m *machine) *apiError {
	var scratch []*attachedDisk
	names := map[string]bool{}
	for i, d := range m.Disks {
		if d.InitializeParams == nil {
			return invalidField("resource.disks.initializeParams", "", "Existing disks are not known here.")
		}
		if d.Boot != (i == 0) {
			return invalidField("resource.disks", "", "Exactly one boot disk must be specified, as the first.")
		}
		if d.DeviceName != "" && names[d.DeviceName] {
			return invalidField(fmt.Sprintf("resource.disks[%d].deviceName", i), d.DeviceName, "Device names must be unique.")
		}
		names[d.DeviceName] = true
		if d.scratch() {
			scratch = append(scratch, d)
			continue
		}
		if err := s.checkDisk(m, i); err != nil {
			return err
		}
	}
	switch {
	case len(m.Disks) == 0:
		return invalidField("resource.disks", "", "Exactly one boot disk must be specified, as the first.")
	case len(m.Disks)-len(scratch) > maxDisks:
		return refuse(http.StatusBadRequest, "invalid", "Invalid resource usage: 'Maximum number of persistent disks exceeded'.")
	}
	return checkScratch(m, scratch)
}

// checkDisk checks a persistent disk.
func (s *diskSet) checkDisk(m *machine, index int) *apiError {
	d := m.Disks[index]
	p, at := d.InitializeParams, fmt.Sprintf("resource.disks[%d].initializeParams.", index)
	if err := checkLabels(at+"labels", p.Labels); err != nil {
		return err
	}
	if key := d.EncryptionKey; key != nil && !slices.Contains(s.o.Keys, key.Name) {
		return refuse(http.StatusBadRequest, "kmsPermissionDenied", "Cloud KMS error when using key %s: Permission 'cloudkms.cryptoKeyVersions.useToEncrypt' denied on resource '%s' (or it may not exist).", key.Name, key.Name)
	}
	size := int64(10)
	switch {
	case d.Boot:
		image, err := s.catalog.image(p.SourceImage)
		if err != nil {
			return err
		}
		if image.Arch != "" && m.arch != "" && image.Arch != m.arch {
			return refuse(http.StatusBadRequest, "invalid", "Requested boot disk architecture (%s) is not compatible with machine type architecture (%s).", archWord[image.Arch], archWord[m.arch])
		}
		size = cmp.Or(image.DiskSizeGB, 10)
	case p.SourceImage != "":
		return invalidField(at+"sourceImage", p.SourceImage, "Images of further disks are not known here.")
	case p.Snapshot != "":
		i := slices.IndexFunc(s.o.Snapshots, func(s Snapshot) bool { return strings.HasSuffix(p.Snapshot, "global/snapshots/"+s.Name) })
		if i < 0 {
			return notFound("projects/" + s.o.Project + "/global/snapshots/" + lastPart(p.Snapshot))
		}
		size = cmp.Or(s.o.Snapshots[i].SizeGB, 10)
	}
	if p.DiskSizeGB != 0 && p.DiskSizeGB < size {
		return invalidField(at+"diskSizeGb", fmt.Sprint(p.DiskSizeGB), "Requested disk size cannot be smaller than the source's size (%d GB)", size)
	}
	return checkKind(m, d, at)
}

// provisioned are the bounds of IOPS and of MiB a second of each type ("About Hyperdisk
// Balanced" and its sister pages, "About Persistent Disk").
var provisioned = map[string][2][2]int64{
	"hyperdisk-balanced":                   {{3_000, 160_000}, {140, 2_400}},
	"hyperdisk-balanced-high-availability": {{3_000, 100_000}, {140, 2_400}},
	"hyperdisk-extreme":                    {{128, 350_000}, {}},
	"hyperdisk-throughput":                 {{}, {10, 2_400}},
	"hyperdisk-ml":                         {{}, {400, 1_200_000}},
	"pd-extreme":                           {{10_000, 120_000}, {}},
}

// checkKind refuses a type of disk that the machine's type cannot have, and figures that
// the type of disk cannot have.
func checkKind(m *machine, d *attachedDisk, at string) *apiError {
	p, name := d.InitializeParams, lastPart(m.MachineType)
	kind := lastPart(p.DiskType)
	hyperdisk := strings.HasPrefix(kind, "hyperdisk-")
	switch {
	case kind != "" && !slices.Contains(diskTypes, kind):
		return invalidField(at+"diskType", p.DiskType, "The referenced resource does not exist.")
	case hyperdisk && inFamily(name, withoutHyperdisk), kind != "" && !hyperdisk && inFamily(name, onlyHyperdisk):
		return refuse(http.StatusBadRequest, "invalid", "[%s, %s] features are not compatible for creating instance.", name, kind)
	case d.Boot && (kind == "hyperdisk-throughput" || kind == "hyperdisk-ml"):
		return refuse(http.StatusBadRequest, "invalid", "Disk type %s cannot be used for boot disks.", kind)
	}
	for i, f := range []struct {
		field string
		value int64
	}{{"provisionedIops", p.ProvisionedIO}, {"provisionedThroughput", p.ProvisionedMB}} {
		bounds := provisioned[kind][i]
		switch {
		case f.value == 0:
		case bounds[1] == 0:
			return invalidField(at+f.field, fmt.Sprint(f.value), "Cannot be specified for the disk type %s.", kind)
		case f.value < bounds[0] || f.value > bounds[1]:
			return invalidField(at+f.field, fmt.Sprint(f.value), "Must be between %d and %d.", bounds[0], bounds[1])
		case p.DiskSizeGB == 0:
			return refuse(http.StatusBadRequest, "required", "Required field '%sdiskSizeGb' not specified", at)
		}
	}
	return nil
}

// localSSDSize is the size of one local SSD, in GiB.
const localSSDSize = 375

// checkScratch refuses local SSDs, and numbers of them, that a machine type cannot have
// ("About Local SSD disks", choose a valid number).
func checkScratch(m *machine, all []*attachedDisk) *apiError {
	name := lastPart(m.MachineType)
	for _, d := range all {
		p := d.InitializeParams
		switch {
		case lastPart(p.DiskType) != "local-ssd":
			return invalidField("resource.disks.initializeParams.diskType", p.DiskType, "Disks of type SCRATCH must have the disk type local-ssd.")
		case p.DiskSizeGB != 0 && p.DiskSizeGB != localSSDSize, p.ProvisionedIO != 0, p.ProvisionedMB != 0, len(p.Labels) > 0, d.EncryptionKey != nil, p.Snapshot != "":
			return invalidField("resource.disks.initializeParams", "", "Local SSDs have neither size, figures, labels, source nor key.")
		case !slices.Contains([]string{"", "NVME", "SCSI"}, d.Interface):
			return invalidField("resource.disks.interface", d.Interface, "Unknown value.")
		case m.Confidential != nil && d.Interface != "NVME":
			return invalidField("resource.disks.interface", d.Interface, "Confidential VM instances need the interface NVME.")
		}
	}
	if len(all) > 0 && !slices.Contains(scratchCounts(name), len(all)) {
		return refuse(http.StatusBadRequest, "invalid", "Number of local SSDs for an instance of type %s should be one of %v, while [%d] is requested.", name, scratchCounts(name), len(all))
	}
	return nil
}

func scratchCounts(name string) []int {
	all := []int{1, 2, 4, 8, 16, 24}
	from := func(limits ...int) []int { // the vCPUs from which on one number less is permitted
		for i, cpus := range limits {
			if vCPUs(name) <= cpus {
				return all[i:]
			}
		}
		return nil
	}
	switch family, _, _ := strings.Cut(name, "-"); family {
	case "n1", "custom":
		return []int{1, 2, 3, 4, 5, 6, 7, 8, 16, 24}
	case "n2":
		return from(10, 20, 40, 80, 128)
	case "n2d":
		return from(16, 48, 80, 224)
	case "c2":
		all = all[:4]
		return from(8, 16, 30, 60)
	case "c2d":
		all = all[:4]
		return from(16, 32, 56, 112)
	}
	return nil
}

// vCPUs returns the number in a type's name; 2 if there is none.
func vCPUs(name string) int {
	for part := range strings.SplitSeq(name, "-") {
		var n int
		if _, err := fmt.Sscanf(part, "%d", &n); err == nil {
			return n
		}
	}
	return 2
}
