package proxmox

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"crypto/sha256"

	"github.com/nstance-go/nstance"
)

// Tags mark whose a machine is: /cluster/resources shows them at once. Proxmox
// VE lower-cases and sorts them.
const (
	tag             = "nstance"
	tagID           = "nstance-id-"
	tagVMID         = "nstance-vmid-"
	tagInstallation = "nstance-installation-"
	tagCluster      = "nstance-cluster-"
	tagShard        = "nstance-shard-"
	tagTenant       = "nstance-tenant-"
	tagGroup        = "nstance-group-"
	tagEpoch        = "nstance-epoch-"
	tagCreated      = "nstance-created-" // milliseconds since 1970
	tagType         = "nstance-type-"
	tagPCI          = "nstance-pci-" // number of devices, hyphen, mapping

	// tagNew stands until the machine was started for the first time: without
	// it a stopped machine was stopped, and is not started again.
	tagNew = "nstance-new"
)

// The fences around the marks in a machine's notes.
const (
	fenceBegin = "```nstance\n"
	fenceEnd   = "\n```"
	notesTitle = "Managed by Nstance. The server reads what is below; do not change it.\n\n"
)

// Marks are what a machine carries in its notes from the clone on, and in its
// tags from the first configuration on.
type marks struct {
	ID           nstance.InstanceID `json:"id"`
	VMID         int                `json:"vmid"` // a copy has another one
	Owner        nstance.Owner      `json:"owner"`
	Group        nstance.GroupID    `json:"group,omitempty"`
	CreatedAt    time.Time          `json:"created_at"`
	Epoch        uint64             `json:"epoch"`
	InstanceType string             `json:"instance_type,omitempty"`
	Print        string             `json:"print,omitempty"`  // fingerprint of the spec; tags do not have it
	Config       map[string]string  `json:"config,omitempty"` // what is still to be set after the clone
	Disk         int                `json:"disk,omitempty"`   // GiB that the boot disk is still to have
}

func (pl plan) marks(vmid int) marks {
	s := pl.spec
	return marks{ID: s.ID, VMID: vmid, Owner: s.Owner, Group: s.Group, CreatedAt: s.CreatedAt, Epoch: s.Epoch, InstanceType: s.InstanceType,
		Print: pl.print, Config: maps.Clone(pl.config), Disk: pl.args.Disk}
}

// image names the image with the machine's user data. What it may overwrite is the same: its
// name has the fingerprint of the spec, and the VMID where the address follows from that.
func (m marks) image() string {
	name := imagePrefix(m.ID) + m.Print
	if m.Config["ipconfig0"] != "" {
		name += "-" + itoa(m.VMID)
	}
	return name + ".iso"
}

// notes returns the marks as a machine's description.
func (m marks) notes() (string, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return "", nstance.Errorf(nstance.Invalid, "the marks cannot be written: %w", err)
	}
	return notesTitle + fenceBegin + string(b) + fenceEnd, nil
}

func parseNotes(s string) (m marks, ok bool) {
	_, rest, found := strings.Cut(s, fenceBegin)
	block, _, closed := strings.Cut(rest, fenceEnd)
	if !found || !closed || json.Unmarshal([]byte(block), &m) != nil {
		return marks{}, false
	}
	_, err := nstance.ParseInstanceID(string(m.ID))
	return m, err == nil && m.VMID != 0
}

// tags returns the marks as tags.
func (m marks) tags(fresh bool) string {
	out := []string{tag, tagID + string(m.ID), tagVMID + itoa(m.VMID), tagInstallation + m.Owner.Installation, tagCluster + string(m.Owner.Cluster),
		tagShard + string(m.Owner.Shard), tagTenant + string(m.Owner.Tenant), tagEpoch + strconv.FormatUint(m.Epoch, 10),
		tagCreated + strconv.FormatInt(m.CreatedAt.UnixMilli(), 10)}
	if m.Group != "" {
		out = append(out, tagGroup+string(m.Group))
	}
	if m.InstanceType != "" {
		out = append(out, tagType+m.InstanceType)
	}
	for mapping, n := range m.devices() {
		out = append(out, tagPCI+itoa(n)+"-"+mapping)
	}
	if fresh {
		out = append(out, tagNew)
	}
	slices.Sort(out)
	return strings.Join(out, ";")
}

// devices returns how many devices of each mapping the machine has whole, by the mapping's
// name in lower case.
func (m marks) devices() map[string]int {
	out := map[string]int{}
	for key, value := range m.Config {
		mapping, rest, _ := strings.Cut(strings.TrimPrefix(value, "mapping="), ",")
		if strings.HasPrefix(key, "hostpci") && !strings.Contains(rest, "mdev=") {
			out[strings.ToLower(mapping)]++
		}
	}
	return out
}

// taggedDevices reads the same from tags.
func taggedDevices(tags string) map[string]int {
	out := map[string]int{}
	for _, t := range splitTags(tags) {
		if value, ok := strings.CutPrefix(t, tagPCI); ok {
			n, mapping, _ := strings.Cut(value, "-")
			out[mapping] += max(atoi(n), 0)
		}
	}
	return out
}

func splitTags(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ';' || r == ',' || r == ' ' })
}

// parseTags reads marks from tags. They are whole only if every one is there.
func parseTags(s string) (m marks, ok bool) {
	all, seen := splitTags(s), 0
	for _, t := range all {
		for prefix, set := range map[string]func(string){
			tagID:           func(v string) { m.ID = nstance.InstanceID(v) },
			tagVMID:         func(v string) { m.VMID = atoi(v) },
			tagInstallation: func(v string) { m.Owner.Installation = v },
			tagCluster:      func(v string) { m.Owner.Cluster = nstance.ClusterID(v) },
			tagShard:        func(v string) { m.Owner.Shard = nstance.ShardID(v) },
			tagTenant:       func(v string) { m.Owner.Tenant = nstance.TenantID(v) },
			tagEpoch:        func(v string) { m.Epoch, _ = strconv.ParseUint(v, 10, 64) },
			tagCreated:      func(v string) { m.CreatedAt = time.UnixMilli(int64(atoi(v))).UTC() },
			tagGroup:        func(v string) { m.Group, seen = nstance.GroupID(v), seen-1 },
			tagType:         func(v string) { m.InstanceType, seen = v, seen-1 },
		} {
			if v, found := strings.CutPrefix(t, prefix); found {
				set(v)
				seen++
			}
		}
	}
	_, err := nstance.ParseInstanceID(string(m.ID))
	return m, slices.Contains(all, tag) && seen == 8 && err == nil
}

// ours reports whether tags have any of our marks.
func ours(tags string) bool {
	return slices.ContainsFunc(splitTags(tags), func(t string) bool { return t == tag || strings.HasPrefix(t, tag+"-") })
}

var tagValue = regexp.MustCompile(`^[a-z0-9_\-+.]+$`)

// checkOwner refuses marks that a tag would not keep as they are.
func checkOwner(o nstance.Owner) error {
	if !tagValue.MatchString(o.Installation) {
		return nstance.FieldError("owner.installation", "use lower-case letters, digits, -, _, + and .", "%.64q does not fit a tag of Proxmox VE", o.Installation)
	}
	return nil
}

// maxProbes is how many VMIDs an instance may have.
const maxProbes = 8

// vmids returns the VMIDs that a machine may get, in the order in which they are
// tried. They follow from the instance ID alone: two servers that create the
// same instance ask for the same VMID, and the cluster gives it once.
func (o Options) vmids(id nstance.InstanceID) []int {
	out, span := []int{}, uint64(o.MaxVMID-o.MinVMID+1)
	for i := range min(maxProbes, span) {
		sum := sha256.Sum256(strconv.AppendUint([]byte(id), i, 10))
		out = append(out, o.MinVMID+int(binary.BigEndian.Uint64(sum[:8])%span))
	}
	return out
}

// mayGive reports whether a machine may have that VMID.
func (o Options) mayGive(vmid int) bool {
	return vmid >= o.MinVMID && vmid <= o.MaxVMID || pooled(vmid)
}

func itoa(n int) string { return strconv.Itoa(n) }

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}
