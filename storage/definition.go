package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/nstance-go/nstance"
)

// definitions remembers what stands under definition/, so that a definition is
// written or read once and not for each of its instances. What stands there
// never changes: its key is the digest of its bytes.
type definitions struct {
	mu    sync.Mutex
	known map[string]nstance.Definition
}

const maxDefinitions = 1024 // held in memory; beyond that all are forgotten, and read again as needed

// definitionObject is the object's form. It has no write ID, because equal
// definitions must give equal bytes.
type definitionObject struct {
	Format     string             `json:"format"`
	Definition nstance.Definition `json:"definition"`
}

// DefinitionDigest returns what PutDefinition returns, without storing anything.
// Fails with Invalid when the definition's arguments are no JSON.
func DefinitionDigest(d nstance.Definition) (string, error) {
	data, err := marshal(definitionObject{Format, d})
	if err != nil {
		return "", nstance.Errorf(nstance.Invalid, "encode the definition: %w", err)
	}
	return digestOf(data), nil
}

// PutDefinition stores a definition under its digest, unless it is there, and
// returns the digest, which is to be named by something durable soon: see
// [Contents]. It may be repeated after any error. Fails with Invalid when its
// arguments are no JSON, otherwise like Contents.Keep.
func (r *Records) PutDefinition(ctx context.Context, d nstance.Definition) (digest string, err error) {
	data, err := marshal(definitionObject{Format, d})
	if err != nil {
		return "", nstance.Errorf(nstance.Invalid, "encode the definition: %w", err)
	}
	digest = digestOf(data)
	key := DefinitionKey(digest)
	if err := r.contents.Keep(ctx, key, data); err != nil {
		return "", fmt.Errorf("store the definition: %w", err)
	}
	if _, ok := r.defs.get(digest); ok {
		return digest, nil
	}
	// Remember what a reader would get, not what the caller may still change.
	d, err = parseDefinition(key, data)
	if err == nil {
		r.defs.put(digest, d)
	}
	return digest, err
}

// Definition returns the definition with this digest. Fails with NotFound when
// there is none, Invalid when what stands there is damaged or of a newer major
// format.
func (r *Records) Definition(ctx context.Context, digest string) (nstance.Definition, error) {
	if d, ok := r.defs.get(digest); ok {
		return d, nil
	}
	key := DefinitionKey(digest)
	saw := r.contents.watch(key)
	obj, err := r.store.Get(ctx, key)
	saw(err)
	if err != nil {
		return nstance.Definition{}, err
	}
	if digestOf(obj.Data) != digest {
		return nstance.Definition{}, unreadable(key, "its content does not have that digest")
	}
	d, err := parseDefinition(key, obj.Data)
	if err != nil {
		return nstance.Definition{}, err
	}
	r.defs.put(digest, d)
	return d, nil
}

// namable makes sure that a definition that this term has put or read still
// stands when a record is about to name it: that may be long after.
func (r *Records) namable(ctx context.Context, digest string) error {
	d, ok := r.defs.get(digest)
	if !ok || r.contents.has(DefinitionKey(digest)) {
		return nil
	}
	if own, err := DefinitionDigest(d); err != nil || own != digest { // another version of this program has written it
		return r.contents.Claim(ctx, DefinitionKey(digest))
	}
	_, err := r.PutDefinition(ctx, d)
	return err
}

// Contents returns what this shard's definitions are written through.
func (r *Records) Contents() *Contents { return r.contents }

func parseDefinition(key string, data []byte) (nstance.Definition, error) {
	if err := checkObject(key, data); err != nil {
		return nstance.Definition{}, err
	}
	var obj definitionObject
	if err := json.Unmarshal(data, &obj); err != nil {
		return nstance.Definition{}, unreadable(key, "%w", err)
	}
	return obj.Definition, nil
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func (s *definitions) get(digest string) (nstance.Definition, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := s.known[digest]
	return d, ok
}

func (s *definitions) put(digest string, d nstance.Definition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil || len(s.known) >= maxDefinitions {
		s.known = map[string]nstance.Definition{}
	}
	s.known[digest] = d
}
