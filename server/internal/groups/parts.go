package groups

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
)

// parts are overlays, sorted by the names of their groups. Each keeps its encoding: a
// change of one group marshals and compares no other.
type parts []*part

// A part is the overlay of one group. It is never changed, only replaced.
type part struct {
	name string // tenant/group
	overlay
	encoded []byte // with the name
}

func newPart(name string, e overlay) (*part, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		return nil, err
	}
	p := &part{name: name, overlay: e}
	return p, p.encode(buf.Bytes())
}

// encode keeps the encoding of the overlay.
func (p *part) encode(overlay []byte) error {
	name, err := json.Marshal(p.name)
	if err != nil {
		return err
	}
	out := bytes.NewBuffer(append(name, ':'))
	err = json.Compact(out, overlay)
	p.encoded = out.Bytes()
	return err
}

func (p *part) key() nstance.GroupKey {
	tenant, group, _ := strings.Cut(p.name, "/")
	return nstance.GroupKey{Tenant: nstance.TenantID(tenant), Group: nstance.GroupID(group)}
}

// find returns where a part is, or should be.
func (s parts) find(name string) (at int, found bool) {
	return slices.BinarySearchFunc(s, name, func(p *part, name string) int { return strings.Compare(p.name, name) })
}

// UnmarshalJSON reads an object of overlays. Fields that this version does not know stay
// until the group changes.
func (s *parts) UnmarshalJSON(data []byte) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	*s = make(parts, 0, len(raw))
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		p := &part{name: name}
		if err := json.Unmarshal(raw[name], &p.overlay); err != nil {
			return err
		}
		if err := p.encode(raw[name]); err != nil {
			return err
		}
		*s = append(*s, p)
	}
	return nil
}

func (f overlays) of(key nstance.GroupKey) (e overlay) {
	if i, found := f.Groups.find(key.String()); found {
		return f.Groups[i].overlay
	}
	return e
}

// put replaces the overlay of a group in a copy that the caller owns.
func (f *overlays) put(key nstance.GroupKey, e overlay) error {
	p, err := newPart(key.String(), e)
	if err != nil {
		return nstance.Errorf(nstance.Invalid, "encode group %s: %w", key, err)
	}
	if i, found := f.Groups.find(p.name); found {
		f.Groups[i] = p
	} else {
		f.Groups = slices.Insert(f.Groups, i, p)
	}
	return nil
}

// forget deletes the overlay of a removed group.
func (f *overlays) forget(key nstance.GroupKey) {
	if i, found := f.Groups.find(key.String()); found && f.Groups[i].Removing != nil {
		f.Groups = slices.Delete(f.Groups, i, i+1)
	}
}

// Copy implements records.Parted.
func (f overlays) Copy() overlays {
	f.Groups = slices.Clone(f.Groups)
	return f
}

// Same implements records.Parted.
func (f overlays) Same(o overlays) bool {
	return slices.EqualFunc(f.Groups, o.Groups, func(a, b *part) bool {
		return a == b || bytes.Equal(a.encoded, b.encoded)
	})
}

// AppendJSON implements records.Parted.
func (f overlays) AppendJSON(to []byte) ([]byte, error) {
	head, err := json.Marshal(f.Header)
	if err != nil {
		return nil, err
	}
	size := len(head) + 32
	for _, p := range f.Groups {
		size += len(p.encoded) + 1
	}
	to = append(slices.Grow(to, size), bytes.TrimSuffix(head, []byte("}"))...)
	to = append(to, `,"groups":{`...)
	for i, p := range f.Groups {
		if i > 0 {
			to = append(to, ',')
		}
		to = append(to, p.encoded...)
	}
	return append(to, "}}"...), nil
}
