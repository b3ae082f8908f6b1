package pvetest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A storageSet is what lies in the storages of the cluster.
type storageSet struct {
	o       *Options
	tasks   *taskList
	volumes map[string]int    // VMID by volume ID
	bases   map[int]int       // VMID of the template by that of its linked clone
	images  map[string][]byte // ISO images by place
	disks   int               // counts new disks, for their names
}

func (s *storageSet) find(name string) *Storage {
	for i := range s.o.Storages {
		if s.o.Storages[i].Name == name {
			return &s.o.Storages[i]
		}
	}
	return nil
}

func (s *storageSet) shared(name string) bool {
	in := s.find(name)
	return in != nil && in.Shared
}

// on reports whether a node has the storage.
func (s *Storage) on(node string) bool { return len(s.Nodes) == 0 || slices.Contains(s.Nodes, node) }

// place is where an image lies: volume IDs of storage that is not shared name
// another image on each node.
func (s *storageSet) place(node, volume string) string {
	if name, _, _ := strings.Cut(volume, ":"); !s.shared(name) {
		return node + "/" + volume
	}
	return volume
}

// named returns the storage that a call names, for a caller with one of the privileges.
func (s *storageSet) named(r *call, oneOf ...string) (*Storage, error) {
	in := s.find(r.PathValue("storage"))
	if in == nil {
		return nil, refuse(500, "storage '%s' does not exist", r.PathValue("storage"))
	}
	return in, r.require("/storage/"+in.Name, oneOf...)
}

func (s *storageSet) listContent(r *call) (any, error) {
	in, err := s.named(r, "Datastore.Audit", "Datastore.AllocateSpace")
	if err != nil {
		return nil, err
	}
	out := []map[string]any{}
	prefix := s.place(r.PathValue("node"), in.Name+":iso/")
	for place, image := range s.images {
		if name, ok := strings.CutPrefix(place, prefix); ok {
			out = append(out, map[string]any{"volid": in.Name + ":iso/" + name, "content": "iso", "format": "iso", "size": len(image), "ctime": 1_700_000_000})
		}
	}
	slices.SortFunc(out, func(a, b map[string]any) int { return strings.Compare(a["volid"].(string), b["volid"].(string)) })
	return out, nil
}

var unusual = regexp.MustCompile(`[^-a-zA-Z0-9_.]`)

// upload stores an image, over one of the same name if there is one
// (pve-storage, API2/Storage/Status.pm).
func (s *storageSet) upload(r *call) (any, error) {
	in, err := s.named(r, "Datastore.AllocateTemplate")
	if err != nil {
		return nil, err
	}
	if r.params["content"] != "iso" {
		return nil, invalid("content", "value '"+r.params["content"]+"' does not have a value in the enumeration 'iso, vztmpl, import'")
	}
	if !slices.Contains(in.Content, "iso") {
		return nil, refuse(400, "storage '%s' does not support 'iso' content", in.Name)
	}
	name := unusual.ReplaceAllString(r.name, "_")
	if !strings.HasSuffix(name, ".iso") && !strings.HasSuffix(name, ".img") {
		return nil, refuse(400, "wrong file extension")
	}
	if sum := r.params["checksum"]; sum != "" {
		if got := sha256.Sum256(r.file); r.params["checksum-algorithm"] != "sha256" || sum != hex.EncodeToString(got[:]) {
			return nil, refuse(500, "checksum mismatch: got '%s' != expect '%s'", hex.EncodeToString(got[:]), sum)
		}
	}
	node := r.PathValue("node")
	return s.tasks.begin(&task{node: node, kind: "imgcopy", user: r.user}, step{0, func() error {
		s.images[s.place(node, in.Name+":iso/"+name)] = r.file
		return nil
	}}), nil
}

func (s *storageSet) deleteContent(r *call) (any, error) {
	in, err := s.named(r, "Datastore.Allocate")
	if err != nil {
		return nil, err
	}
	volume := r.PathValue("volume")
	if !strings.HasPrefix(volume, in.Name+":") {
		volume = in.Name + ":" + volume
	}
	node := r.PathValue("node")
	return s.tasks.begin(&task{node: node, kind: "imgdel", id: volume, user: r.user}, step{0, func() error {
		delete(s.images, s.place(node, volume))
		return nil
	}}), nil
}

// allocate makes the disk that a drive asks for, and returns the drive's value. Other
// drives stay as they are.
func (s *storageSet) allocate(v *vm, key, value string) (string, error) {
	volume, options, _ := strings.Cut(value, ",")
	m := newDisk.FindStringSubmatch(volume)
	if !driveKey.MatchString(key) || m == nil {
		return value, nil
	}
	switch in := s.find(m[1]); {
	case !in.on(v.node):
		return "", fmt.Errorf("storage '%s' is not available on node '%s'", in.Name, v.node)
	case in.NoSpace:
		return "", fmt.Errorf("unable to create image: out of space on storage '%s'", in.Name)
	}
	s.disks++
	id := fmt.Sprintf("%s:vm-%d-disk-%d", m[1], v.id, 5000+s.disks)
	s.volumes[id] = v.id
	if options != "" {
		options = "," + options
	}
	return id + options + ",size=" + m[2] + "G", nil
}

// detach takes a volume out of a drive: a cloud-init drive is freed, a disk becomes unused
// (qemu-server, QemuServer.pm vmconfig_register_unused_drive).
func (s *storageSet) detach(v *vm, key string) {
	volume, _, _ := strings.Cut(v.config[key], ",")
	switch owner, known := s.volumes[volume]; {
	case !known || owner != v.id:
	case strings.HasSuffix(volume, "cloudinit"):
		delete(s.volumes, volume)
	default:
		for i := 0; ; i++ {
			if unused := "unused" + itoa(i); v.config[unused] == "" {
				v.config[unused] = volume
				break
			}
		}
	}
	delete(v.config, key)
}

// mayMount checks a drive's volume.
func (s *storageSet) mayMount(r *call, v *vm, right, value string) error {
	if err := r.need(v, right); err != nil {
		return err
	}
	volume, _, _ := strings.Cut(value, ",")
	name, file, ok := strings.Cut(volume, ":")
	if !ok {
		return nil
	}
	if err := r.require("/storage/"+name, "Datastore.AllocateSpace", "Datastore.Audit"); err != nil {
		return err
	}
	if s.find(name) == nil {
		return refuse(500, "storage '%s' does not exist", name)
	}
	if strings.HasPrefix(file, "iso/") && s.images[s.place(v.node, volume)] == nil {
		return refuse(500, "volume '%s' does not exist", volume)
	}
	return nil
}

// mayAllocate checks a new disk (qemu-server, API2/Qemu.pm check_storage_access).
func (s *storageSet) mayAllocate(r *call, v *vm, name string) error {
	if err := r.need(v, "VM.Config.Disk"); err != nil {
		return err
	}
	in := s.find(name)
	switch {
	case !r.may("/storage/"+name, "Datastore.AllocateSpace"):
		return denied("/storage/"+name, "Datastore.AllocateSpace")
	case in == nil:
		return refuse(500, "storage '%s' does not exist", name)
	case !slices.Contains(in.Content, "images"):
		return invalid("storage", "storage '"+name+"' does not support vm images")
	}
	return nil
}
