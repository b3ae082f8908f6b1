package groups

import (
	"context"
	"errors"
	"log/slog"
	"maps"
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

// keep forgets the definitions that are not named.
func (d *definitions) keep(named counts) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.known, func(digest string, _ nstance.Definition) bool { return named[digest] == 0 })
}

// forget forgets a definition that no group has any more.
func (d *definitions) forget(digest string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.known, digest)
}

// fetchAll reads the definitions that overlays name and that are not known, many at a
// time. A missing or damaged definition concerns its group only.
func (d *definitions) fetchAll(ctx context.Context, file overlays) error {
	var unknown []string
	for _, e := range file.Groups {
		if digest := e.definition(); digest != "" {
			if _, known := d.get(digest); !known {
				unknown = append(unknown, digest)
			}
		}
	}
	found, failed := d.records.Definitions(ctx, unknown)
	for digest, def := range found {
		d.add(digest, def)
	}
	for digest, err := range failed {
		if !errors.Is(err, nstance.NotFound) && !errors.Is(err, nstance.Invalid) {
			return err
		}
		d.log.Error("definition of a group cannot be read", "definition", digest, "err", err)
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
