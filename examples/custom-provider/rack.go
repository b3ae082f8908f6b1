package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// A Rack is a cloud whose machines are files: one JSON document each, which
// some other system reads and turns into something that hums. Processes that
// share the folder share the machines.
type Rack struct{ dir string }

var _ nstance.Provider = (*Rack)(nil)

// args are the provider-specific part of a spec. DecodeArgs refuses any other.
type args struct {
	Unit int `json:"unit"` // height at which the machine is mounted; 0: anywhere
}

// A document is what a machine's file holds.
type document struct {
	Machine  nstance.Machine `json:"machine"`
	Unit     int             `json:"unit,omitempty"`
	UserData []byte          `json:"user_data,omitempty"`
	Spec     string          `json:"spec"` // fingerprint of what it was made from
}

// OpenRack returns the rack in a folder, which is made if necessary.
func OpenRack(dir string) (*Rack, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nstance.FieldError("dir", "name a folder that can be written to", "%v", err)
	}
	return &Rack{dir: dir}, nil
}

// Create implements [nstance.Provider]. All marks are in the file before it has
// its name, and the name can be given only once: the second of two creates
// finds the machine of the first.
func (r *Rack) Create(ctx context.Context, spec nstance.MachineSpec) (nstance.Machine, error) {
	doc, err := newDocument(ctx, spec)
	if err != nil {
		return nstance.Machine{}, err
	}
	err = r.add(doc)
	if errors.Is(err, fs.ErrExist) {
		return r.existing(doc)
	}
	if err != nil {
		return nstance.Machine{}, nstance.Errorf(nstance.Internal, "rack: %w", err)
	}
	return doc.Machine, nil
}

func newDocument(ctx context.Context, spec nstance.MachineSpec) (document, error) {
	var a args
	if ctx.Err() != nil {
		return document{}, nstance.Errorf(nstance.Unavailable, "nothing was done: %w", ctx.Err())
	}
	if err := provider.ValidateSpec(spec, 64<<10); err != nil {
		return document{}, err
	}
	if err := provider.DecodeArgs(spec.Args, &a); err != nil {
		return document{}, err
	}
	if spec.Market == nstance.Spot {
		return document{}, nstance.FieldError("market.type", "use on-demand", "a rack has no spot capacity")
	}
	return document{
		Machine: nstance.Machine{
			ID: spec.ID, ProviderID: "rack/" + string(spec.ID), Owner: spec.Owner, Group: spec.Group,
			CreatedAt: spec.CreatedAt, Epoch: spec.Epoch, Status: nstance.StatusRunning,
			InstanceType: spec.InstanceType, Market: nstance.OnDemand,
		},
		Unit: a.Unit, UserData: spec.UserData, Spec: provider.Fingerprint(spec),
	}, nil
}

// add writes the document beside its place and links it there, which fails with
// fs.ErrExist if the place is taken.
func (r *Rack) add(doc document) error {
	b, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	draft, err := os.CreateTemp(r.dir, ".draft-")
	if err != nil {
		return err
	}
	defer os.Remove(draft.Name())
	_, err = draft.Write(b)
	if err := errors.Join(err, draft.Close()); err != nil {
		return err
	}
	return os.Link(draft.Name(), r.path(doc.Machine.ID))
}

// existing returns the machine that holds the ID, if it was made from the same
// spec.
func (r *Rack) existing(want document) (nstance.Machine, error) {
	doc, err := r.read(want.Machine.ID)
	if err != nil {
		return nstance.Machine{}, err
	}
	if doc.Spec != want.Spec {
		return nstance.Machine{}, nstance.Errorf(nstance.Conflict, "machine %s exists with other parameters", want.Machine.ID)
	}
	return doc.Machine, nil
}

func (r *Rack) path(id nstance.InstanceID) string {
	return filepath.Join(r.dir, string(id)+".json")
}

// read is where errors are classified: only a file that is definitely not there
// is NotFound. One that cannot be read, or not understood, is a machine of which
// nothing is known.
func (r *Rack) read(id nstance.InstanceID) (document, error) {
	if _, err := nstance.ParseInstanceID(string(id)); err != nil { // it becomes part of a path
		return document{}, err
	}
	b, err := os.ReadFile(r.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return document{}, nstance.Errorf(nstance.NotFound, "no machine %s", id)
	}
	var doc document
	if err == nil {
		err = json.Unmarshal(b, &doc)
	}
	if err != nil {
		return document{}, nstance.Errorf(nstance.Internal, "machine %s: %w", id, err)
	}
	return doc, nil
}

// Get implements [nstance.Provider].
func (r *Rack) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	if ctx.Err() != nil {
		return nstance.Machine{}, nstance.Errorf(nstance.Unavailable, "nothing was read: %w", ctx.Err())
	}
	doc, err := r.read(id)
	return doc.Machine, err
}

// List implements [nstance.Provider].
func (r *Rack) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		entries, err := os.ReadDir(r.dir)
		if err != nil {
			yield(nstance.Machine{}, nstance.Errorf(nstance.Unavailable, "rack: %w", err))
			return
		}
		for _, e := range entries {
			name, ok := strings.CutSuffix(e.Name(), ".json")
			if !ok {
				continue // a draft
			}
			m, err := r.Get(ctx, nstance.InstanceID(name))
			if errors.Is(err, nstance.NotFound) || err == nil && !owner.Owns(m.Owner) {
				continue // deleted since, or of another owner
			}
			if !yield(m, err) || err != nil {
				return
			}
		}
		if ctx.Err() != nil {
			yield(nstance.Machine{}, nstance.Errorf(nstance.Unavailable, "the listing was cut off: %w", ctx.Err()))
		}
	}
}

// Delete implements [nstance.Provider]. The handle, or the ID without one, leads to
// a file; whose it is, the file says.
func (r *Rack) Delete(ctx context.Context, m nstance.Machine) error {
	if ctx.Err() != nil {
		return nstance.Errorf(nstance.Unavailable, "nothing was done: %w", ctx.Err())
	}
	found, err := r.read(cmp.Or(nstance.InstanceID(strings.TrimPrefix(m.ProviderID, "rack/")), m.ID))
	if err != nil {
		return err
	}
	if found.Machine.ID != m.ID || found.Machine.Owner != m.Owner {
		return nstance.Errorf(nstance.Conflict, "%s is machine %s of %+v", m.ProviderID, found.Machine.ID, found.Machine.Owner)
	}
	err = os.Remove(r.path(m.ID))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nstance.Errorf(nstance.Unavailable, "rack: %w", err)
	}
	return nil
}
