package groups

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
)

// definitions are those that overlays name by digest.
type definitions struct {
	records *records.Records
	log     *slog.Logger

	mu    sync.Mutex
	known map[string]nstance.Definition
}

func (d *definitions) get(digest string) (nstance.Definition, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	def, ok := d.known[digest]
	return def, ok
}

func (d *definitions) add(digest string, def nstance.Definition) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known[digest] = def
}

// fetchAll reads the definitions that overlays name and that are not known. A
// missing or damaged definition concerns its group only.
func (d *definitions) fetchAll(ctx context.Context, file overlays) error {
	for _, e := range file.Groups {
		if digest := e.definition(); digest != "" {
			if err := d.fetch(ctx, digest); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *definitions) fetch(ctx context.Context, digest string) error {
	if _, known := d.get(digest); known {
		return nil
	}
	def, err := d.records.Definition(ctx, digest)
	switch {
	case err == nil:
		d.add(digest, def)
	case errors.Is(err, nstance.NotFound), errors.Is(err, nstance.Invalid):
		d.log.Error("definition of a group cannot be read", "definition", digest, "err", err)
	default:
		return err
	}
	return nil
}

// record makes a definition durable, keeps it from garbage collection and returns its
// digest. known is the digest of a durable definition that it may be equal to:
// comparing costs less than a digest.
func (d *definitions) record(ctx context.Context, def nstance.Definition, known string) (digest string, err error) {
	if before, ok := d.get(known); ok && reflect.DeepEqual(before, def) {
		d.records.KeepDefinitions(known)
		return known, nil
	}
	if digest, err = records.DefinitionDigest(def); err == nil && digest != known {
		_, err = d.records.PutDefinition(ctx, def)
	}
	if err != nil {
		return "", err
	}
	d.add(digest, def)
	d.records.KeepDefinitions(digest)
	return digest, nil
}
