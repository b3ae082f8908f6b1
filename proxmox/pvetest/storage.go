package pvetest

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"
)

// place is where an image lies: volume IDs of storage that is not shared name
// another image on each node.
func (c *Cloud) place(node, volume string) string {
	if name, _, _ := strings.Cut(volume, ":"); !c.shared(name) {
		return node + "/" + volume
	}
	return volume
}

// store returns the storage that a call names.
func (c *Cloud) store(r *call) (*Storage, error) {
	s := c.storage(r.PathValue("storage"))
	if s == nil {
		return nil, refuse(500, "storage '%s' does not exist", r.PathValue("storage"))
	}
	return s, nil
}

func (c *Cloud) listContent(r *call) (any, error) {
	s, err := c.store(r)
	if err != nil {
		return nil, err
	}
	if path := "/storage/" + s.Name; !r.may(path, "Datastore.Audit", "Datastore.AllocateSpace") {
		return nil, denied(path, "Datastore.Audit", "Datastore.AllocateSpace")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out := []map[string]any{}
	prefix := c.place(r.PathValue("node"), s.Name+":iso/")
	for place, image := range c.images {
		if name, ok := strings.CutPrefix(place, prefix); ok {
			out = append(out, map[string]any{"volid": s.Name + ":iso/" + name, "content": "iso", "format": "iso", "size": len(image), "ctime": 1_700_000_000})
		}
	}
	slices.SortFunc(out, func(a, b map[string]any) int { return strings.Compare(a["volid"].(string), b["volid"].(string)) })
	return out, nil
}

var unusual = regexp.MustCompile(`[^-a-zA-Z0-9_.]`)

// upload stores an image, over one of the same name if there is one
// (pve-storage, API2/Storage/Status.pm).
func (c *Cloud) upload(r *call) (any, error) {
	s, err := c.store(r)
	if err != nil {
		return nil, err
	}
	if path := "/storage/" + s.Name; !r.may(path, "Datastore.AllocateTemplate") {
		return nil, denied(path, "Datastore.AllocateTemplate")
	}
	if r.params["content"] != "iso" {
		return nil, invalid("content", "value '"+r.params["content"]+"' does not have a value in the enumeration 'iso, vztmpl, import'")
	}
	if !slices.Contains(s.Content, "iso") {
		return nil, refuse(400, "storage '%s' does not support 'iso' content", s.Name)
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
	node, image := r.PathValue("node"), slices.Clone(r.file)
	return c.work(r.user, node, "imgcopy", "", "", nil, step{0, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.images[c.place(node, s.Name+":iso/"+name)] = image
		return nil
	}}), nil
}

func (c *Cloud) deleteContent(r *call) (any, error) {
	s, err := c.store(r)
	if err != nil {
		return nil, err
	}
	if path := "/storage/" + s.Name; !r.may(path, "Datastore.Allocate") {
		return nil, denied(path, "Datastore.Allocate")
	}
	volume := r.PathValue("volume")
	if !strings.HasPrefix(volume, s.Name+":") {
		volume = s.Name + ":" + volume
	}
	node := r.PathValue("node")
	return c.work(r.user, node, "imgdel", volume, "", nil, step{0, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.images, c.place(node, volume))
		return nil
	}}), nil
}
