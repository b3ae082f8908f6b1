package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/server/config"
	"github.com/nstance-go/nstance/storage"
)

// A proposal is a configuration as it was read.
type proposal struct {
	Name   string    `json:"name"`   // what errors call it
	Digest string    `json:"digest"` // SHA-256 of Data, hexadecimal
	Data   []byte    `json:"data"`
	At     time.Time `json:"at"` // when it was accepted, or held
}

// parse returns the configuration. It fails with Invalid when its bytes are
// damaged or this version refuses them.
func (p proposal) parse(kinds provider.Kinds) (*config.Config, error) {
	if sum := sha256.Sum256(p.Data); hex.EncodeToString(sum[:]) != p.Digest {
		return nil, nstance.Errorf(nstance.Invalid, "the bytes of %s are not those of its digest", p.Name)
	}
	return config.Parse(p.Name, p.Data, kinds...)
}

// accepted is what accepted/{shard}.json holds: the configuration in force, and one
// that is held until it is confirmed. It is written before anything acts on it, so
// that a new leader goes on with it, whatever config/ holds.
type accepted struct {
	storage.Header
	proposal
	Held *held `json:"held,omitempty"`
}

// held is a configuration that would change more than shard.max_change permits.
type held struct {
	proposal
	Reason string `json:"reason"`
}

// An acceptance decides which configuration is in force during one term.
type acceptance struct {
	t   *term
	doc *storage.Doc[accepted]

	mu                sync.Mutex
	held              *held
	problem           string // why the configuration in force is not durable; empty: it is
	journalledRefusal string // of the latest configuration; empty: it was not refused
	journalledDigest  string // of the latest accepted configuration
}

func newAcceptance(t *term) *acceptance {
	return &acceptance{t: t, doc: storage.NewDoc[accepted](t.server.store, t.server.acceptedKey(), &storage.DocOptions{
		Epoch: t.granted.Epoch(), Check: t.granted.Err,
	})}
}

func (s *Server) acceptedKey() string { return storage.AcceptedKey(s.own.Shard.ID) }

// load puts in force what the last leader accepted, or at first what this server has
// read itself. Where the accepted configuration cannot be understood, that is reported,
// and the one that this server has read is in force: it is considered like any other
// once the shard is known.
func (a *acceptance) load(ctx context.Context) error {
	s := a.t.server
	known, err := a.doc.Load(ctx)
	var conf *config.Config
	switch {
	case errors.Is(err, nstance.Invalid):
	case err != nil:
		return fmt.Errorf("accepted configuration: %w", err)
	case known.Digest == "":
		first := s.proposed()
		if _, err := a.doc.Update(ctx, func(d *accepted) error { d.proposal = first; return nil }); err != nil {
			return err
		}
		a.publishEvent(nstance.EventConfigAccepted, first, "the first one of the shard")
		return nil
	default:
		conf, err = known.parse(s.opts.Kinds)
	}
	if err != nil {
		a.problem = fmt.Sprintf("%s cannot be used, the configuration of this server is in force until one is accepted: %v", s.acceptedKey(), err)
		return nil
	}
	if err := s.checkBelongs(conf); err != nil {
		return err
	}
	a.held = known.Held
	s.force(conf, known.proposal)
	return nil
}

// checkBelongs fails with Invalid for a configuration of another cluster, shard or kind
// of provider than this process was started for.
func (s *Server) checkBelongs(conf *config.Config) error {
	for _, f := range []struct{ field, was, will string }{
		{"cluster.id", string(conf.Cluster.ID), string(s.own.Cluster.ID)},
		{"shard.id", string(conf.Shard.ID), string(s.own.Shard.ID)},
		{"shard.provider.kind", conf.Shard.Provider.Kind, s.own.Shard.Provider.Kind},
	} {
		if f.was != f.will {
			return nstance.FieldError(f.field, "put the old value back, or remove "+s.acceptedKey()+" if the change is meant",
				"the shard runs with %s, this server was started for %s", f.was, f.will)
		}
	}
	return nil
}

// consider puts a proposed configuration in force, or holds it until it is confirmed
// because it would change too much at once. why says how it came to be proposed.
func (a *acceptance) consider(ctx context.Context, conf *config.Config, p proposal, why string) (changed bool, err error) {
	s := a.t.server
	if p.Digest == s.config().Digest() && !a.hasProblem() {
		return false, a.hold(ctx, nil, why)
	}
	a.t.groups.LookUpTypes(ctx, conf)
	excess, err := a.excess(conf)
	if err != nil {
		return false, err
	}
	if excess == "" {
		return true, a.accept(ctx, conf, p, why)
	}
	if err := a.hold(ctx, &held{p, excess}, why); err != nil {
		return false, err
	}
	return false, &nstance.Error{
		Code: nstance.Conflict, Msg: fmt.Sprintf("configuration %.12s is held, the one in force stays: %s", p.Digest, excess),
		Remedy: "look at nstance-admin plan; if that is meant: nstance-admin config confirm " + p.Digest,
	}
}

// excess says what of a configuration is more than one reload may change; empty:
// nothing.
func (a *acceptance) excess(conf *config.Config) (string, error) {
	i, err := a.t.groups.Impact(conf)
	if err != nil {
		return "", err
	}
	most := a.t.server.config().Shard.ChangeLimit(i.Members)
	if i.Removed+i.Rotated <= most {
		return "", nil
	}
	return fmt.Sprintf("it would remove %d and replace %d of %d members, and shard.max_change permits %d", i.Removed, i.Rotated, i.Members, most), nil
}

// accept makes a configuration durable and then puts it in force, and journals
// that with why it was proposed.
func (a *acceptance) accept(ctx context.Context, conf *config.Config, p proposal, why string) error {
	a.mu.Lock()
	unreadable := a.problem != ""
	a.mu.Unlock()
	p.At = a.t.server.opts.Now().UTC()
	if err := a.t.groups.Settle(ctx); err != nil { // groups that are no longer configured go on
		return err
	}
	if !unreadable { // an unreadable object must not be overwritten
		if _, err := a.doc.Update(ctx, func(d *accepted) error { *d = accepted{proposal: p}; return nil }); err != nil {
			return err
		}
	}
	a.mu.Lock()
	was := a.held
	a.held = nil
	again := unreadable && p.Digest == a.journalledDigest // it is accepted again at every read
	a.journalledDigest = p.Digest
	a.mu.Unlock()
	if was != nil && was.Digest != p.Digest {
		a.publishEvent(nstance.EventConfigWithdrawn, was.proposal, why)
	}
	if !again {
		a.publishEvent(nstance.EventConfigAccepted, p, why)
	}
	a.t.server.force(conf, p)
	a.t.tuner.tune()
	a.t.groups.Publish()
	a.t.groups.SettleSoon()
	a.t.log.Info("configuration in force", "name", p.Name, "digest", p.Digest)
	return nil
}

// publishEvent journals what was decided about a configuration, and why.
func (a *acceptance) publishEvent(typ nstance.EventType, p proposal, why string) {
	a.t.journal(nstance.Event{Time: a.t.server.opts.Now().UTC(), Type: typ, Reason: p.Digest + " of " + p.Name + ": " + why})
}

// maxRefusal is how many bytes of a refusal are journalled. All of it is in the log.
const maxRefusal = 4096

// setRefusal journals once that the latest configuration is refused; nil: it is not. A
// held configuration is not refused. A failure to fetch it does not count.
func (a *acceptance) setRefusal(err error, why string) {
	text := ""
	switch nstance.CodeOf(err) {
	case "", nstance.Conflict:
	case nstance.Unavailable, nstance.Throttled, nstance.Ambiguous:
		return
	default:
		text = wire.Cut(err.Error(), maxRefusal)
	}
	a.mu.Lock()
	known := text == a.journalledRefusal
	a.journalledRefusal = text
	a.mu.Unlock()
	if !known && text != "" {
		a.t.journal(nstance.Event{
			Time: a.t.server.opts.Now().UTC(), Type: nstance.EventConfigRefused, Reason: why, Code: nstance.CodeOf(err), Error: text,
		})
	}
}

// hold makes durable which configuration is held; nil: none.
func (a *acceptance) hold(ctx context.Context, h *held, why string) error {
	a.mu.Lock()
	was := a.held
	a.mu.Unlock()
	if h == was || h != nil && was != nil && h.Digest == was.Digest {
		return nil
	}
	if h != nil {
		h.At = a.t.server.opts.Now().UTC()
	}
	if _, err := a.doc.Update(ctx, func(d *accepted) error { d.Held = h; return nil }); err != nil {
		return err
	}
	a.mu.Lock()
	a.held = h
	a.mu.Unlock()
	if was != nil {
		a.publishEvent(nstance.EventConfigWithdrawn, was.proposal, why)
	}
	if h != nil {
		a.publishEvent(nstance.EventConfigHeld, h.proposal, h.Reason+": "+why)
		a.t.alarm(nstance.Event{Time: h.At, Type: nstance.EventAlarm, Reason: "configuration " + h.Digest + " is held: " + h.Reason})
	}
	return nil
}

// confirm puts the held configuration in force. It fails with Conflict when
// another one is held, or none.
func (a *acceptance) confirm(ctx context.Context, digest, why string, dryRun bool) error {
	h := a.waiting()
	if h == nil || h.Digest != digest {
		return &nstance.Error{Code: nstance.Conflict, Field: "digest", Msg: "no such configuration is held", Remedy: "see nstance-admin config status"}
	}
	conf, err := h.parse(a.t.server.opts.Kinds)
	if err == nil {
		err = a.t.server.permitted(conf)
	}
	if err != nil || dryRun {
		return err
	}
	a.t.groups.LookUpTypes(ctx, conf)
	return a.accept(ctx, conf, h.proposal, why)
}

// waiting returns the configuration that is held, if any.
func (a *acceptance) waiting() *held {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held
}

func (a *acceptance) hasProblem() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.problem != ""
}

// attention lists what an operator should see.
func (a *acceptance) attention() (out []reconcile.Attention) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.problem != "" {
		out = append(out, reconcile.Attention{
			Kind: attentionConfig, Subject: "configuration", Why: a.problem, Remedy: "nstance-admin record show " + a.t.server.acceptedKey(),
		})
	}
	if h := a.held; h != nil {
		out = append(out, reconcile.Attention{
			Kind: attentionHeld, Subject: "configuration", Since: h.At, Remedy: "nstance-admin config confirm " + h.Digest + ", or put the old file back",
			Why: fmt.Sprintf("configuration %s is held until it is confirmed: %s", h.Digest, h.Reason),
		})
	}
	return out
}

// follow reads the configuration's source and considers it: once the shard is known,
// and then at intervals, in case no refresh is requested.
func (a *acceptance) follow(ctx context.Context) {
	if a.t.reconciler.Await(ctx) != nil {
		return
	}
	for {
		wait := a.t.server.opts.Reread*9/10 + rand.N(a.t.server.opts.Reread/5+1)
		if _, err := a.t.server.reread(ctx, "found where it comes from"); errors.Is(err, nstance.Unavailable) {
			wait = min(wait, 5*time.Second)
		}
		if !sleep.For(ctx, wait) {
			return
		}
	}
}
