package records

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
)

// definitions caches the shard's definitions, so that one is written or read
// once and not for each of its instances. They never change: the key is the
// digest of the bytes.
type definitions struct {
	mu    sync.Mutex
	known map[string]nstance.Definition
}

const maxDefinitions = 1024 // in memory; beyond that all are forgotten, and read again as needed

// definitionObject is the stored form of a definition. Its header has no epoch
// and no write ID, because equal definitions must give equal bytes.
type definitionObject struct {
	Header
	Definition nstance.Definition `json:"definition"`
}

func encodeDefinition(d nstance.Definition) ([]byte, error) {
	data, err := marshal(definitionObject{Header{Format: Format}, d})
	if err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "encode the definition: %w", err)
	}
	return data, nil
}

// DefinitionDigest returns what PutDefinition returns, without storing anything.
// Fails with Invalid when the definition's arguments are no JSON.
func DefinitionDigest(d nstance.Definition) (string, error) {
	data, err := encodeDefinition(d)
	if err != nil {
		return "", err
	}
	return digestOf(data), nil
}

// PutDefinition stores a definition under its digest, unless it is there, and
// returns the digest, which a document must name within the hour. It may
// be repeated after any error. Fails with Invalid when its arguments are no JSON,
// otherwise like PutFetched.
func (r *Records) PutDefinition(ctx context.Context, d nstance.Definition) (digest string, err error) {
	data, err := encodeDefinition(d)
	if err != nil {
		return "", err
	}
	digest = digestOf(data)
	key := layout.DefinitionKey(r.shard, digest)
	if err := r.putContent(ctx, key, data); err != nil {
		return "", fmt.Errorf("store the definition: %w", err)
	}
	if _, ok := r.defs.get(digest); ok {
		return digest, nil
	}
	// Remember the decoded copy, since the caller may still change its own.
	d, err = parseDefinition(key, data)
	if err == nil {
		r.defs.put(digest, d)
	}
	return digest, err
}

// Definition returns the definition with this digest. Fails with NotFound when
// there is none, Invalid when it is damaged or of a newer major
// format, Unavailable while it is being deleted.
func (r *Records) Definition(ctx context.Context, digest string) (nstance.Definition, error) {
	if d, ok := r.defs.get(digest); ok {
		return d, nil
	}
	key := layout.DefinitionKey(r.shard, digest)
	data, err := r.getContent(ctx, key, digest)
	if err != nil {
		return nstance.Definition{}, err
	}
	d, err := parseDefinition(key, data)
	if err != nil {
		return nstance.Definition{}, err
	}
	r.defs.put(digest, d)
	return d, nil
}

// Definitions reads the definitions with these digests, as many at a time as Load reads
// records. Each is in one of the results, with the errors of Definition.
func (r *Records) Definitions(ctx context.Context, digests []string) (map[string]nstance.Definition, map[string]error) {
	return readEach(r.width, digests, func(digest string) (nstance.Definition, error) { return r.Definition(ctx, digest) })
}

// readEach calls read for each key once, so many at a time.
func readEach[T any](width int, keys []string, read func(key string) (T, error)) (map[string]T, map[string]error) {
	var (
		mu     sync.Mutex
		wg     sync.WaitGroup
		found  = map[string]T{}
		failed = map[string]error{}
		work   = make(chan string)
	)
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	for range min(width, len(keys)) {
		wg.Go(func() {
			for key := range work {
				v, err := read(key)
				mu.Lock()
				if err == nil {
					found[key] = v
				} else {
					failed[key] = err
				}
				mu.Unlock()
			}
		})
	}
	for _, key := range keys {
		work <- key
	}
	close(work)
	wg.Wait()
	return found, failed
}

// CachedDefinition returns the definition with this digest if it is in memory.
func (r *Records) CachedDefinition(digest string) (nstance.Definition, bool) {
	return r.defs.get(digest)
}

// KeepDefinitions keeps definitions that a document names, or has just named, for
// another hour: another document is about to name them.
func (r *Records) KeepDefinitions(digests ...string) {
	for _, digest := range digests {
		_, _ = r.contents.use(layout.DefinitionKey(r.shard, digest)) // a named definition is not being deleted
	}
}

// ensureDefinition makes sure that a definition that this term has put or read is
// still stored when a record is about to name it, which may be much later.
func (r *Records) ensureDefinition(ctx context.Context, digest string) error {
	d, ok := r.defs.get(digest)
	if !ok {
		return nil
	}
	if own, _ := DefinitionDigest(d); own != digest { // another version of this program wrote it
		_, err := r.getContent(ctx, layout.DefinitionKey(r.shard, digest), digest)
		return err
	}
	_, err := r.PutDefinition(ctx, d)
	return err
}

func parseDefinition(key string, data []byte) (nstance.Definition, error) {
	obj, _, err := Decode[definitionObject](key, data)
	return obj.Definition, err
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
