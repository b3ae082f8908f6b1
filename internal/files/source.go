package files

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
)

// A Source is where secrets or stored objects come from. It is safe for
// concurrent use, and says NotFound only of what definitely does not exist.
type Source interface {
	Get(ctx context.Context, name string) ([]byte, error)
}

// Sources are what files are made of beside the definition.
type Sources struct {
	Secrets Source // by the name of the secret
	Objects Source // by the object's key
}

// atOnce is how many secrets and objects are fetched at a time.
const atOnce = 8

// A found is what a source has said.
type found struct {
	data []byte
	err  error
}

// fetch asks for every secret and object that d names. Where a source does not
// answer, what it said before still stands: only a definite no counts.
func fetch(ctx context.Context, d nstance.Definition, src Sources, before map[string]found) (now map[string]found, stale []string) {
	now, asked := map[string]found{}, map[string]bool{}
	var mu sync.Mutex
	g := errgroup.Group{}
	g.SetLimit(atOnce)
	for _, f := range d.Files {
		id, from, name := origin(f, src)
		if id == "" || asked[id] {
			continue
		}
		asked[id] = true
		g.Go(func() error {
			data, err := from.Get(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			if old, ok := before[id]; ok && old.err == nil && err != nil && !definite(err) {
				stale = append(stale, id+": "+err.Error())
				now[id] = old
				return nil
			}
			now[id] = found{data, err}
			return nil
		})
	}
	_ = g.Wait() // none fails
	return now, stale
}

// origin says where a file comes from, if not from the definition itself.
func origin(f nstance.File, src Sources) (id string, from Source, name string) {
	switch f.Kind {
	case nstance.FileSecret:
		return "secret " + f.Secret, src.Secrets, f.Secret
	case nstance.FileStorage:
		return "object " + f.Object, src.Objects, f.Object
	}
	return "", nil, ""
}

// Asks reports whether a kit of d is made of what other parties say.
func Asks(d nstance.Definition) bool {
	for _, f := range d.Files {
		if id, _, _ := origin(f, Sources{}); id != "" {
			return true
		}
	}
	return false
}

// definite reports whether asking again would bring the same answer.
func definite(err error) bool {
	for _, code := range []nstance.Code{nstance.NotFound, nstance.Denied, nstance.Invalid} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}

// field returns one field of a secret that is a JSON object: a string as it is,
// anything else as JSON. What it says never quotes the secret.
func field(secret []byte, name string) ([]byte, error) {
	var object map[string]json.RawMessage
	if json.Unmarshal(secret, &object) != nil {
		return nil, nstance.Errorf(nstance.Invalid, "the secret is no JSON object: leave field out, or store one")
	}
	raw, ok := object[name]
	if !ok {
		return nil, nstance.Errorf(nstance.Invalid, "the secret has no field %q", name)
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return []byte(text), nil
	}
	return raw, nil
}
