// Package configuration decides which configuration of a shard is in force. Each server
// reads and checks the one at its source. The leader accepts it, refuses it, or holds it
// until an administrator confirms it because it would change too many members at once.
package configuration

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/storage"
)

// Options configure a Reloader. All fields are required.
type Options struct {
	// Source returns the configuration: its name for error messages and its bytes.
	Source func(ctx context.Context) (name string, data []byte, err error)
	Store  storage.Store
	Kinds  provider.Kinds // that shard.provider.kind may name; none: any
	Now    func() time.Time
	Log    *slog.Logger

	// CheckAbilities fails where the provider cannot do what a configuration asks for.
	CheckAbilities func(c *config.Config) error
}

// A Reloader reads the configuration for one server and keeps the one in force. It is
// safe for concurrent use.
type Reloader struct {
	Options
	started *config.Config // what this process was started with
	turn    chan struct{}  // has room for one: held while a configuration is considered

	mu       sync.Mutex
	inForce  *config.Config
	document document // of inForce
	refusal  refusal  // of the latest configuration
}

// refusal says why a configuration was refused. The zero refusal means: it was not.
type refusal struct {
	at  time.Time
	err error
}

// A document is a configuration as it was read.
type document struct {
	Name   string    `json:"name"`   // what errors call it
	Digest string    `json:"digest"` // SHA-256 of Data, hexadecimal
	Data   []byte    `json:"data"`
	At     time.Time `json:"at"` // when it was accepted, or held
}

// parse returns the configuration. It fails with Invalid when its bytes are damaged or
// this version refuses them.
func (d document) parse(kinds provider.Kinds) (*config.Config, error) {
	if sum := sha256.Sum256(d.Data); hex.EncodeToString(sum[:]) != d.Digest {
		return nil, nstance.Errorf(nstance.Invalid, "the bytes of %s are not those of its digest", d.Name)
	}
	return config.Parse(d.Name, d.Data, kinds...)
}

// Open reads and checks the configuration that this process is started with. It is in
// force until a term accepts another one.
func Open(ctx context.Context, opts Options) (*Reloader, error) {
	r := &Reloader{Options: opts, turn: make(chan struct{}, 1)}
	conf, d, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	r.started = conf
	r.apply(conf, d)
	return r, opts.CheckAbilities(conf)
}

// InForce returns the configuration in force.
func (r *Reloader) InForce() *config.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.inForce
}

// Document returns the configuration in force as it was read.
func (r *Reloader) Document() (name, digest string, data []byte) {
	d := r.inForceDocument()
	return d.Name, d.Digest, d.Data
}

func (r *Reloader) inForceDocument() document {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.document
}

// apply puts a configuration in force. What belongs to this process stays as it was
// started.
func (r *Reloader) apply(conf *config.Config, d document) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inForce, r.document = conf.At(r.started), d
}

// Parse returns the configuration in data or, if that is empty, the one at the source.
// It fails as a refresh with it would.
func (r *Reloader) Parse(ctx context.Context, data []byte) (conf *config.Config, err error) {
	name := "proposed configuration"
	if len(data) == 0 {
		if name, data, err = r.Source(ctx); err != nil {
			return nil, err
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) == r.inForceDocument().Digest {
			return r.InForce(), nil // nothing else is as cheap to ask
		}
	}
	if conf, err = config.ParseContext(ctx, name, data, r.Kinds...); err == nil {
		err = r.check(conf)
	}
	return conf, err
}

// CheckSource reads and checks the configuration at the source, and changes nothing: a
// standby proposes it once it leads.
func (r *Reloader) CheckSource(ctx context.Context) error {
	if err := r.acquire(ctx); err != nil {
		return err
	}
	defer r.release()
	_, err := r.Parse(ctx, nil)
	r.setRefusal(err)
	return err
}

// read returns the configuration at the source.
func (r *Reloader) read(ctx context.Context) (*config.Config, document, error) {
	name, data, err := r.Source(ctx)
	if err != nil {
		return nil, document{}, err
	}
	conf, err := config.ParseContext(ctx, name, data, r.Kinds...)
	if err != nil {
		return nil, document{}, err
	}
	return conf, document{Name: name, Digest: conf.Digest(), Data: data, At: r.Now().UTC()}, nil
}

// check refuses what this process or its provider cannot do.
func (r *Reloader) check(conf *config.Config) error {
	return errors.Join(conf.Reloadable(r.started), r.CheckAbilities(conf))
}

// acquire waits until no other call considers a configuration.
func (r *Reloader) acquire(ctx context.Context) error {
	select {
	case r.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return nstance.Errorf(nstance.Unavailable, "configuration not read: %w", ctx.Err())
	}
}

func (r *Reloader) release() { <-r.turn }

// setRefusal records why the latest configuration is refused, and logs that once; nil: it
// is not. A held configuration is not refused.
func (r *Reloader) setRefusal(err error) {
	if errors.Is(err, nstance.Conflict) {
		err = nil
	}
	r.mu.Lock()
	was := r.refusal.err
	r.refusal = refusal{}
	if err != nil {
		r.refusal = refusal{at: r.Now(), err: err}
	}
	r.mu.Unlock()
	if err != nil && (was == nil || was.Error() != err.Error()) {
		r.Log.Error("configuration refused, the previous one stays in force", "err", err)
	}
}
