package history

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// A Readiness says which members of a group have been ready, for the next leader: it shows
// them as ready until it hears of them. An instance's life costs no write more for it.
type Readiness struct {
	Through time.Time            `json:"through"`          // those that had registered by then
	Except  []nstance.InstanceID `json:"except,omitempty"` // those that had registered and were not, sorted
}

// maxExcept is how many members a Readiness leaves out. With more nothing is recorded.
const maxExcept = 64

// Include counts a member that has been ready, by when it registered.
func (r *Readiness) Include(registered time.Time) {
	if registered.After(r.Through) {
		r.Through = registered
	}
}

// Exclude leaves out a member that has registered and has not been ready.
func (r *Readiness) Exclude(id nstance.InstanceID) { r.Except = append(r.Except, id) }

// Excludes reports whether a member is known not to have been ready.
func (r *Readiness) Excludes(id nstance.InstanceID) bool {
	return r != nil && slices.Contains(r.Except, id)
}

// Covers reports whether a member has been ready.
func (r *Readiness) Covers(id nstance.InstanceID, registered time.Time) bool {
	return r != nil && !registered.After(r.Through) && !r.Excludes(id)
}

func (r *Readiness) equal(o *Readiness) bool {
	return o != nil && r.Through.Equal(o.Through) && slices.Equal(r.Except, o.Except)
}

// SetReady records which members have been ready.
func (g *Group) SetReady(r Readiness) (changed bool) {
	slices.Sort(r.Except)
	if r.Through.IsZero() && len(r.Except) == 0 || len(r.Except) > maxExcept || r.equal(g.Ready) {
		return false
	}
	saved := r // r itself stays on the stack
	g.Ready = &saved
	return true
}
