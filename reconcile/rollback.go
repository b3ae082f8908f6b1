package reconcile

import (
	"context"

	"github.com/nstance-go/nstance"
)

// readRollbacks reads the definitions that groups are rolled back to. One that
// is missing or cannot be understood is left out; any other error is returned.
func (r *Reconciler) readRollbacks(ctx context.Context, states shardState) (map[string]desiredSpec, error) {
	var digests []string
	for _, h := range states.Groups {
		if h.Rollback != nil {
			digests = append(digests, h.Rollback.Definition)
		}
	}
	found, failed := r.records.Definitions(ctx, digests)
	out := map[string]desiredSpec{}
	for key, h := range states.Groups {
		if h.Rollback == nil {
			continue
		}
		var back desiredSpec
		err := failed[h.Rollback.Definition]
		if err == nil {
			back, err = desiredSpecFor(nstance.Group{Definition: found[h.Rollback.Definition]})
		}
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
