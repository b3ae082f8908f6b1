package configuration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/eventtype"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server/internal/ports"
)

// Kinds of what needs attention.
const (
	AttentionNotDurable = "config"         // the configuration in force is not durable
	AttentionHeld       = "config_held"    // a configuration is held until it is confirmed
	AttentionRefused    = "config_refused" // the latest configuration is invalid
)

// accepted is what accepted/{shard}.json holds: the configuration in force, and one
// that is held until it is confirmed. It is written before the configuration is in
// force, so that the next leader continues with it, whatever its source holds.
type accepted struct {
	records.Header
	document
	Held *held `json:"held,omitempty"`
}

// held is a configuration that would change more than shard.max_change permits.
type held struct {
	document
	Reason string `json:"reason"`
}

// groups follow the configuration in force.
type groups interface {
	LookUpTypes(ctx context.Context, conf *config.Config)
	Impact(conf *config.Config) (reconcile.Impact, error)
	Apply(ctx context.Context) error
	ApplySoon()
	RefreshLookups()
}

// TermOptions configure a Term. All fields are required.
type TermOptions struct {
	Epoch   uint64
	Check   func() error // fails when the term has ended
	Journal func(e nstance.Event)
	Reread  time.Duration // between two reads of the source, jittered

	// Groups and Changed may be set after Begin, before the first other call.
	Groups  groups
	Changed func() // called after another configuration is in force
}

// A Term decides which configuration is in force while this server leads.
type Term struct {
	*Reloader
	TermOptions
	doc *records.Doc[accepted]

	problem  string        // why accepted configurations cannot be made durable; empty: they can
	doubt    chan struct{} // has room for one: what is durable may not be what is in force
	proposed atomic.Bool   // the configuration in force is this server's own, and was not accepted

	mu                sync.Mutex
	held              *held
	journalledRefusal string // of the latest configuration; empty: it was not refused
	journalledDigest  string // of the latest accepted configuration
}

// Begin puts in force what the last leader accepted or, in a new shard, what this server
// has read. Where the accepted configuration cannot be read, that needs attention, and
// groups stay as they were until Run has accepted what it finds at the source.
// Fails with Invalid when the shard belongs to another cluster, shard or kind of provider.
func (r *Reloader) Begin(ctx context.Context, opts TermOptions) (*Term, error) {
	t := &Term{Reloader: r, TermOptions: opts, doubt: make(chan struct{}, 1)}
	t.doubt <- struct{}{} // a write of the last leader may land still
	t.doc = records.NewDoc[accepted](r.Store, r.key(), &records.DocOptions{Epoch: opts.Epoch, Check: opts.Check})
	return t, t.load(ctx)
}

// Proposed reports whether the configuration in force is one that was not accepted: groups
// do not follow it.
func (t *Term) Proposed() bool { return t.proposed.Load() }

// key is where the accepted configuration is stored.
func (r *Reloader) key() string { return layout.AcceptedKey(r.started.Shard.ID) }

func (t *Term) load(ctx context.Context) error {
	known, err := t.doc.Load(ctx)
	var conf *config.Config
	switch {
	case errors.Is(err, nstance.Invalid):
	case err != nil:
		return fmt.Errorf("accepted configuration: %w", err)
	case known.Digest == "":
		first := t.inForceDocument()
		if err := t.save(ctx, func(a *accepted) { a.document = first }); err != nil {
			return err
		}
		t.publishEvent(eventtype.ConfigAccepted, first, "the first one of the shard")
		return nil
	default:
		conf, err = known.parse(t.Kinds)
	}
	if err != nil {
		t.problem = fmt.Sprintf("%s cannot be used, groups stay as they were until a configuration is accepted: %v", t.key(), err)
		t.proposed.Store(true)
		return nil
	}
	if err := t.checkShard(conf); err != nil {
		return err
	}
	t.held = known.Held
	t.apply(conf, known.document)
	return nil
}

// checkShard fails with Invalid for a configuration of another cluster, shard or kind
// of provider than this process was started for.
func (r *Reloader) checkShard(conf *config.Config) error {
	for _, f := range []struct{ field, was, will string }{
		{"cluster.id", string(conf.Cluster.ID), string(r.started.Cluster.ID)},
		{"shard.id", string(conf.Shard.ID), string(r.started.Shard.ID)},
		{"shard.provider.kind", conf.Shard.Provider.Kind, r.started.Shard.Provider.Kind},
	} {
		if f.was != f.will {
			return nstance.FieldError(f.field, "put the old value back, or remove "+r.key()+" if the change is meant",
				"the shard runs with %s, this server was started for %s", f.was, f.will)
		}
	}
	return nil
}

// Run puts in force what is durable, where that is in doubt, and reads the source at
// intervals and considers what it finds, until ctx ends.
func (t *Term) Run(ctx context.Context) {
	var reread <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.doubt:
			t.settleAgain(ctx)
			if reread != nil {
				continue
			}
		case <-reread:
		}
		wait := t.Reread*9/10 + rand.N(t.Reread/5+1)
		if _, err := t.reread(ctx, "found at its source"); errors.Is(err, nstance.Unavailable) {
			wait = min(wait, 5*time.Second)
		}
		reread = time.After(wait)
	}
}

// settleRetry is between two attempts to find out what is durable.
const settleRetry = time.Second

// settleAgain settles, and has Run repeat it after an error.
func (t *Term) settleAgain(ctx context.Context) {
	err := t.acquire(ctx)
	if err == nil {
		defer t.release()
		err = t.settle(ctx)
	}
	if err != nil && ctx.Err() == nil {
		t.Log.Warn("it is not known which configuration is durable, retrying", "code", nstance.CodeOf(err), "err", err)
		time.AfterFunc(settleRetry, t.inDoubt)
	}
}

// inDoubt has Run settle.
func (t *Term) inDoubt() {
	select {
	case t.doubt <- struct{}{}:
	default:
	}
}

// settle puts in force what is durable: a write of this term, or of the last one, may have
// landed without an answer. Afterwards none of them can.
func (t *Term) settle(ctx context.Context) error {
	if t.problem != "" {
		return nil
	}
	a, err := t.doc.Update(ctx, func(*accepted) error { return nil })
	if err != nil {
		return err
	}
	if was := t.heldNow(); digestOf(a.Held) != digestOf(was) {
		t.setHeld(a.Held, was, "its write was answered late")
	}
	if a.Digest == "" || a.Digest == t.InForce().Digest() {
		return nil
	}
	conf, err := a.parse(t.Kinds)
	if err == nil {
		err = t.checkShard(conf)
	}
	if err != nil {
		return err
	}
	t.enforce(ctx, conf, a.document, "its write was answered late")
	return nil
}

func digestOf(h *held) string {
	if h == nil {
		return ""
	}
	return h.Digest
}

// Refresh reads the source again and considers what it finds. Afterwards images are
// looked for and user data is fetched again. why is journalled.
func (t *Term) Refresh(ctx context.Context, why string) (changed bool, err error) {
	changed, err = t.reread(ctx, why)
	if err == nil {
		t.Groups.RefreshLookups()
	}
	return changed, err
}

func (t *Term) reread(ctx context.Context, why string) (changed bool, err error) {
	if err := t.acquire(ctx); err != nil {
		return false, err
	}
	defer t.release()
	conf, d, err := t.read(ctx)
	if err == nil {
		err = t.check(conf)
	}
	if err == nil {
		if changed, err = t.consider(ctx, conf, d, why); t.Check() != nil {
			return false, ports.ErrTermEnded
		}
	}
	t.setRefusal(err)
	t.publishRefusal(err, why)
	return changed, err
}

// consider puts a configuration in force, or holds it until it is confirmed because it
// would change too much at once.
func (t *Term) consider(ctx context.Context, conf *config.Config, d document, why string) (changed bool, err error) {
	if d.Digest == t.InForce().Digest() && t.problem == "" {
		return false, t.hold(ctx, nil, why)
	}
	t.Groups.LookUpTypes(ctx, conf)
	excess, err := t.Excess(conf)
	if err != nil {
		return false, err
	}
	if excess == "" {
		return true, t.accept(ctx, conf, d, why)
	}
	if err := t.hold(ctx, &held{d, excess}, why); err != nil {
		return false, err
	}
	return false, &nstance.Error{
		Code: nstance.Conflict, Msg: fmt.Sprintf("configuration %.12s is held, the one in force stays: %s", d.Digest, excess),
		Remedy: "look at nstance-admin plan; if that is meant: nstance-admin config confirm " + d.Digest,
	}
}

// Excess says what of a configuration is more than one reload may change; empty:
// nothing.
func (t *Term) Excess(conf *config.Config) (string, error) {
	i, err := t.Groups.Impact(conf)
	if err != nil {
		return "", err
	}
	most := t.InForce().Shard.ChangeLimit(i.Members)
	if i.Removed+i.Rotated <= most {
		return "", nil
	}
	return fmt.Sprintf("it would remove %d and replace %d of %d members, and shard.max_change permits %d", i.Removed, i.Rotated, i.Members, most), nil
}

// accept makes a configuration durable, puts it in force and journals that.
func (t *Term) accept(ctx context.Context, conf *config.Config, d document, why string) error {
	d.At = t.Now().UTC()
	if err := t.save(ctx, func(a *accepted) { *a = accepted{document: d} }); err != nil {
		return err
	}
	t.enforce(ctx, conf, d, why)
	return nil
}

// enforce puts a durable configuration in force and journals that.
func (t *Term) enforce(ctx context.Context, conf *config.Config, d document, why string) {
	t.mu.Lock()
	was := t.held
	t.held = nil
	again := t.problem != "" && d.Digest == t.journalledDigest // each read accepts it again
	t.journalledDigest = d.Digest
	t.mu.Unlock()
	if was != nil && was.Digest != d.Digest {
		t.publishEvent(eventtype.ConfigWithdrawn, was.document, why)
	}
	if !again {
		t.publishEvent(eventtype.ConfigAccepted, d, why)
	}
	t.apply(conf, d)
	t.proposed.Store(false)
	t.Changed()
	if err := t.Groups.Apply(ctx); err != nil {
		t.Groups.ApplySoon()
		t.Log.Warn("groups of the accepted configuration not applied yet, retrying", "code", nstance.CodeOf(err), "err", err)
	}
	t.Log.Info("configuration in force", "name", d.Name, "digest", d.Digest)
}

// save makes a change durable, except where the object is unreadable: it must not be
// overwritten.
func (t *Term) save(ctx context.Context, change func(*accepted)) error {
	if t.problem != "" {
		return nil
	}
	_, err := t.doc.Update(ctx, func(a *accepted) error { change(a); return nil })
	if err != nil {
		t.inDoubt()
	}
	return err
}

// publishEvent journals what was decided about a configuration, and why.
func (t *Term) publishEvent(typ nstance.EventType, d document, why string) {
	t.Journal(nstance.Event{Time: t.Now().UTC(), Type: typ, Reason: d.Digest + " of " + d.Name + ": " + why})
}

// maxRefusal is how many bytes of a refusal are journalled. All of it is in the log.
const maxRefusal = 4096

// publishRefusal journals once that the latest configuration is refused; nil: it is not.
// A held configuration is not refused, and neither is one that could not be read.
func (t *Term) publishRefusal(err error, why string) {
	text := ""
	switch nstance.CodeOf(err) {
	case "", nstance.Conflict:
	case nstance.Unavailable, nstance.Throttled, nstance.Ambiguous:
		return
	default:
		text = clip.Text(err.Error(), maxRefusal)
	}
	t.mu.Lock()
	known := text == t.journalledRefusal
	t.journalledRefusal = text
	t.mu.Unlock()
	if !known && text != "" {
		t.Journal(nstance.Event{Time: t.Now().UTC(), Type: eventtype.ConfigRefused, Reason: why, Code: nstance.CodeOf(err), Error: text})
	}
}

// hold makes durable which configuration is held; nil: none.
func (t *Term) hold(ctx context.Context, h *held, why string) error {
	was := t.heldNow()
	if h == was || h != nil && was != nil && h.Digest == was.Digest {
		return nil
	}
	if h != nil {
		h.At = t.Now().UTC()
	}
	if err := t.save(ctx, func(a *accepted) { a.Held = h }); err != nil {
		return err
	}
	t.setHeld(h, was, why)
	return nil
}

// setHeld journals that another configuration is held; nil: none.
func (t *Term) setHeld(h, was *held, why string) {
	t.mu.Lock()
	t.held = h
	t.mu.Unlock()
	if was != nil {
		t.publishEvent(eventtype.ConfigWithdrawn, was.document, why)
	}
	if h != nil {
		t.publishEvent(eventtype.ConfigHeld, h.document, h.Reason+": "+why)
		t.Journal(nstance.Event{Time: h.At, Type: nstance.EventAlarm, Reason: "configuration " + h.Digest + " is held: " + h.Reason})
	}
}

// Confirm puts the held configuration in force, unless dryRun. It fails with Conflict
// when another one is held, or none. why is journalled.
func (t *Term) Confirm(ctx context.Context, digest, why string, dryRun bool) error {
	if err := t.acquire(ctx); err != nil {
		return err
	}
	defer t.release()
	h := t.heldNow()
	if h == nil || h.Digest != digest {
		return &nstance.Error{Code: nstance.Conflict, Field: "digest", Msg: "no such configuration is held", Remedy: "see nstance-admin config status"}
	}
	conf, err := h.parse(t.Kinds)
	if err == nil {
		err = t.check(conf)
	}
	if err != nil || dryRun {
		return err
	}
	t.Groups.LookUpTypes(ctx, conf)
	return t.accept(ctx, conf, h.document, why)
}

func (t *Term) heldNow() *held {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held
}
