package configuration

import (
	"fmt"

	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/reconcile"
)

// Status returns which configuration is in force, held and refused.
func (t *Term) Status() config.Status {
	h := t.heldNow()
	t.Reloader.mu.Lock()
	defer t.Reloader.mu.Unlock()
	out := config.Status{Digest: t.inForce.Digest(), AcceptedAt: t.document.At, RefusedAt: t.refusal.at, Refusal: t.refusal.err}
	if h != nil {
		out.HeldDigest, out.HeldAt, out.HeldReason = h.Digest, h.At, h.Reason
	}
	return out
}

// Attention lists what operators should see.
func (t *Term) Attention() (out []reconcile.Attention) {
	add := func(a reconcile.Attention) {
		a.Subject = "configuration"
		out = append(out, a)
	}
	if t.problem != "" {
		add(reconcile.Attention{Kind: AttentionNotDurable, Why: t.problem, Remedy: "nstance-admin record show " + t.key()})
	}
	s := t.Status()
	if s.HeldDigest != "" {
		add(reconcile.Attention{
			Kind: AttentionHeld, Since: s.HeldAt, Remedy: "nstance-admin config confirm " + s.HeldDigest + ", or put the old file back",
			Why: fmt.Sprintf("configuration %s is held until it is confirmed: %s", s.HeldDigest, s.HeldReason),
		})
	}
	if s.Refusal != nil {
		add(reconcile.Attention{
			Kind: AttentionRefused, Since: s.RefusedAt, Why: "the latest configuration is refused: " + s.Refusal.Error(),
			Remedy: "correct it, then nstance-admin config refresh",
		})
	}
	return out
}
