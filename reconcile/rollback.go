package reconcile

import (
	"context"
	"errors"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
)

// A desiredSpec is what a group should be, with the hashes of its definition. They
// are empty if it has none.
type desiredSpec struct {
	spec    nstance.Group
	hash    string // infra hash
	runtime string // runtime hash
}

func desiredSpecFor(spec nstance.Group) (desiredSpec, error) {
	if !spec.Defined() {
		return desiredSpec{spec: spec}, nil
	}
	infra, err := confighash.InfraOf(spec.Definition).Hash()
	runtime, err2 := confighash.RuntimeOf(spec.Definition).Hash()
	return desiredSpec{spec, string(infra), string(runtime)}, errors.Join(err, err2)
}

// resolveDesired sets what a group should be: what is configured, with the last good
// definition while the group is rolled back. It needs the lock.
func (r *Reconciler) resolveDesired(g *group) {
	if g.rollbackOver() {
		g.history.Rollback, g.rollbackSpec = nil, nil
		r.publishGroup(g, nstance.Event{Type: nstance.EventRollbackEnded, Reason: "another definition is configured"})
		r.saveSoon()
	}
	g.desiredSpec = g.effective()
	h := &g.history
	if h.FailureHash != "" && g.hash != "" && h.FailureHash != g.hash {
		h.clearFailures()
		r.saveSoon()
	}
}

// rollbackOver reports whether the definition that the group was rolled back from is
// not configured any more. A hash of another version does not prove that.
func (g *group) rollbackOver() bool {
	rb := g.history.Rollback
	return rb != nil && g.defined() && confighash.Drifted(confighash.Hash(rb.From), confighash.Hash(g.configured.hash))
}

// effective returns what the group should be. Its hash is empty if the definition
// could not be read: then nothing is planned.
func (g *group) effective() desiredSpec {
	out := g.configured
	switch {
	case g.history.Rollback == nil, !g.defined():
	case g.rollbackSpec == nil:
		out.hash = ""
	default:
		out.spec.Definition, out.hash, out.runtime = g.rollbackSpec.spec.Definition, g.rollbackSpec.hash, g.rollbackSpec.runtime
	}
	return out
}

// readRollbacks reads the definitions that groups are rolled back to. One that
// is missing or cannot be understood is left out; any other error is returned.
func (r *Reconciler) readRollbacks(ctx context.Context, states shardState) (map[string]desiredSpec, error) {
	out := map[string]desiredSpec{}
	for key, h := range states.Groups {
		if h.Rollback == nil {
			continue
		}
		back, err := r.readDesiredSpec(ctx, h.Rollback.Definition)
		switch code := nstance.CodeOf(err); {
		case err == nil:
			out[key] = back
		case code == nstance.NotFound, code == nstance.Invalid:
			r.log.Error("group is rolled back to a definition that cannot be read: nothing is planned for it", "group", key, "err", err)
		default:
			return nil, err
		}
	}
	return out, nil
}

func (r *Reconciler) readDesiredSpec(ctx context.Context, digest string) (desiredSpec, error) {
	def, err := r.records.Definition(ctx, digest)
	if err != nil {
		return desiredSpec{}, err
	}
	return desiredSpecFor(nstance.Group{Definition: def})
}

// Rollback makes the definition with which every member was last ready the
// desired one, until another one is configured or UndoRollback. Members of the
// configured definition are then replaced like any others that are stale. It
// returns once that is durable; repeating it changes nothing. Fails with
// NotFound, with Conflict when there is no other definition to go back to, and
// with Unavailable as Pause does. The reason is for the journal. A dry run only
// checks.
func (r *Reconciler) Rollback(ctx context.Context, key nstance.GroupKey, reason string, dryRun bool) error {
	digest, err := r.rollbackTarget(key)
	if err != nil {
		return err
	}
	back, err := r.readDesiredSpec(ctx, digest)
	if err != nil || dryRun {
		return err
	}
	return r.changeGroup(ctx, key, func(g *group) (nstance.Event, error) {
		if g.history.Rollback != nil && g.rollbackSpec != nil {
			return nstance.Event{}, nil
		}
		if g.history.LastGood != digest {
			return nstance.Event{}, nstance.Errorf(nstance.Conflict, "the last good definition of group %s has changed meanwhile", key)
		}
		g.history.Rollback = &rollback{Since: r.opts.Now().UTC(), From: g.configured.hash, Definition: digest}
		g.rollbackSpec = &back
		r.resolveDesired(g)
		return nstance.Event{Type: nstance.EventRolledBack, Reason: "the last good definition is the desired one" + withMessage(reason)}, nil
	})
}

// rollbackTarget returns the digest of the definition to go back to.
func (r *Reconciler) rollbackTarget(key nstance.GroupKey) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	g, err := r.changeableGroup(key)
	switch {
	case err != nil:
		return "", err
	case g.history.Rollback != nil && g.rollbackSpec != nil:
		return g.history.Rollback.Definition, nil
	case !g.defined():
		return "", nstance.Errorf(nstance.Unavailable, "it is not known yet what group %s should be", key)
	case g.history.LastGood == "":
		return "", noTarget("no definition of group %s has ever had all members ready", key)
	case g.history.LastGoodHash == g.configured.hash:
		return "", noTarget("all members of group %s were ready with the configured definition: it is the last good one", key)
	}
	return g.history.LastGood, nil
}

func noTarget(format string, key nstance.GroupKey) error {
	e := nstance.Errorf(nstance.Conflict, format, key)
	return &nstance.Error{Code: nstance.Conflict, Msg: e.Error(), Remedy: "configure the definition that you want"}
}

// UndoRollback makes the configured definition the desired one again, and
// returns once that is durable. Nil if the group is not rolled back. The reason
// is for the journal. Fails with NotFound, and Unavailable as Pause does.
func (r *Reconciler) UndoRollback(ctx context.Context, key nstance.GroupKey, reason string) error {
	return r.changeGroup(ctx, key, func(g *group) (nstance.Event, error) {
		if g.history.Rollback == nil {
			return nstance.Event{}, nil
		}
		g.history.Rollback, g.rollbackSpec = nil, nil
		r.resolveDesired(g)
		return nstance.Event{Type: nstance.EventRollbackEnded, Reason: "the configured definition is the desired one" + withMessage(reason)}, nil
	})
}
