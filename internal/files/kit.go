package files

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/filelimit"
	"github.com/nstance-go/nstance/internal/render"
)

// A Kit is the files of a group as far as they are alike on its machines. It is
// not changed after it is made and safe for concurrent use.
type Kit struct {
	hash    string
	def     nstance.Definition
	common  Common
	texts   *render.Renderer
	paths   []string         // sorted
	alike   map[string]piece // by path
	own     []string         // paths of what is rendered for each machine
	sources map[string]found
	stale   []string // sources that did not answer: what they said before still stands
	sum     string
}

// A piece is the content of one file, or why there is none.
type piece struct {
	digest string
	data   []byte
	err    error
}

func pieceOf(data []byte, err error) piece {
	switch {
	case err != nil:
		return piece{err: err}
	case len(data) > filelimit.Size:
		return piece{err: errTooLarge}
	}
	sum := sha256.Sum256(data)
	return piece{digest: "sha256:" + hex.EncodeToString(sum[:]), data: data}
}

// Prepare returns the kit of a group whose definition has that runtime hash.
// before is the kit that it takes the place of, nil for none: what a source no
// longer answers for is taken from there. It never fails; what cannot be made is
// said file by file.
func Prepare(ctx context.Context, hash string, d nstance.Definition, common Common, src Sources, before *Kit) *Kit {
	k := &Kit{
		hash: hash, def: d, common: common, texts: &render.Renderer{},
		paths: slices.Sorted(maps.Keys(d.Files)), alike: map[string]piece{},
	}
	var known map[string]found
	if before != nil {
		known = before.sources
	}
	k.sources, k.stale = fetch(ctx, d, src, known)
	for _, path := range k.paths {
		f := d.Files[path]
		if f.Kind == nstance.FileCertificate {
			continue
		}
		v := &view{common: &k.common, vars: d.Vars}
		made := pieceOf(k.content(ctx, f, v))
		if v.own {
			k.own = append(k.own, path)
			continue
		}
		k.alike[path] = made
	}
	k.sum = k.fingerprint()
	return k
}

// content makes the content of a file of any kind but certificate.
func (k *Kit) content(ctx context.Context, f nstance.File, v *view) ([]byte, error) {
	switch f.Kind {
	case nstance.FileString:
		text, err := k.render(ctx, f.Content, v)
		return []byte(text), err
	case nstance.FileEnv:
		return k.env(ctx, f.Env, v)
	case nstance.FileJSON:
		return k.json(ctx, f.JSON, v)
	case nstance.FileSecret, nstance.FileStorage:
		id, _, _ := origin(f, Sources{})
		got := k.sources[id]
		if got.err != nil || f.Field == "" {
			return got.data, got.err
		}
		return field(got.data, f.Field)
	}
	return nil, nstance.Errorf(nstance.Invalid, "files of kind %q cannot be made by this version", f.Kind)
}

// fingerprint is the same for kits that make the same sets.
func (k *Kit) fingerprint() string {
	sum := sha256.New()
	e := json.NewEncoder(sum)
	_ = e.Encode([]any{k.hash, k.common, k.own}) // a hash takes everything
	for _, path := range k.paths {
		p := k.alike[path]
		_ = e.Encode([]any{path, p.digest, message(p.err)})
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// Hash returns the runtime hash of the definition that k was made from.
func (k *Kit) Hash() string { return k.hash }

// Same reports whether other makes the same sets.
func (k *Kit) Same(other *Kit) bool { return other != nil && k.sum == other.sum }

// Varies reports whether sets differ from machine to machine.
func (k *Kit) Varies() bool { return len(k.own) > 0 || len(k.def.Certificates) > 0 }

// Empty reports whether there are no files.
func (k *Kit) Empty() bool { return len(k.paths) == 0 }

// External reports whether anything is made of what may change without the
// definition.
func (k *Kit) External() bool { return len(k.sources) > 0 }

// Problems says what could not be made, or not anew, for any machine.
func (k *Kit) Problems() []string {
	out := slices.Clone(k.stale)
	for _, path := range k.paths {
		if p := k.alike[path]; p.err != nil {
			out = append(out, path+": "+message(p.err))
		}
	}
	return out
}

// Troubled reports whether something could not be made, so that trying again
// soon is worth while.
func (k *Kit) Troubled() bool { return len(k.Problems()) > 0 }

// Keys returns the names of the keys that machines must have.
func (k *Kit) Keys() []string {
	var out []string
	for _, f := range k.def.Files {
		if c, ok := k.def.Certificates[f.Certificate]; ok && f.Part != nstance.PartCA && !slices.Contains(out, c.Key) {
			out = append(out, c.Key)
		}
	}
	slices.Sort(out)
	return out
}

// message is what a machine and its report say of an error.
func message(err error) string {
	if err == nil {
		return ""
	}
	return cmp.Or(clip.Text(err.Error(), 200), "unknown")
}
