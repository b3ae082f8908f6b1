package reconcile

import (
	"cmp"
	"context"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/nstance-go/nstance/reconcile/internal/fields"
)

// differences lists the fields in which two groups differ, those first that
// cost the most.
func differences(before, after nstance.Group) []FieldChange {
	out := definitionChanges(before.Definition, after.Definition)
	for _, f := range fields.Plain(&before, &after) {
		if !slices.ContainsFunc(out, func(c FieldChange) bool { return c.Path == f.Path }) {
			out = append(out, FieldChange{f, EffectNone})
		}
	}
	return out
}

// definitionChanges lists the fields that the two hashes cover.
func definitionChanges(before, after nstance.Definition) (out []FieldChange) {
	for _, c := range confighash.InfraChanges(before, after) {
		out = append(out, FieldChange{fields.Abridge(c), EffectReplace})
	}
	for _, c := range confighash.RuntimeChanges(before, after) {
		out = append(out, FieldChange{fields.Abridge(c), EffectPush})
	}
	return out
}

// Drift returns the fields in which the definition that an instance was made
// from differs from what its group desires, but for those that it has been given
// since. It reads that definition. Fails with
// NotFound when there is no such instance; no fields where the instance's
// definition or the group's is not known.
func (r *Admin) Drift(ctx context.Context, id nstance.InstanceID) ([]FieldChange, error) {
	r.mu.Lock()
	m := r.members[id]
	if m == nil {
		r.mu.Unlock()
		return nil, nstance.Errorf(nstance.NotFound, "no instance %s", id)
	}
	digest, desired, known := m.rec.Definition, m.group.spec.Definition, m.group.defined() && m.group.hash != ""
	pushed := m.group.runtime != "" && cmp.Or(m.report.ConfigHash, m.rec.RuntimeHash) == m.group.runtime
	r.mu.Unlock()
	if digest == "" || !known {
		return nil, nil
	}
	own, err := r.records.Definition(ctx, digest)
	if err != nil {
		return nil, err
	}
	changes := definitionChanges(own, desired)
	if pushed {
		changes = slices.DeleteFunc(changes, func(c FieldChange) bool { return c.Effect == EffectPush })
	}
	return changes, nil
}
