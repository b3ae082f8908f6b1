package reconcile

import (
	"errors"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/confighash"
	"github.com/nstance-go/nstance/internal/groupspec"
	"github.com/nstance-go/nstance/reconcile/internal/history"
	"github.com/nstance-go/nstance/reconcile/internal/pace"
	"github.com/nstance-go/nstance/reconcile/internal/silence"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// A group is one group's state in memory. All of it is guarded by the
// reconciler's lock, which is never held across I/O.
type group struct {
	key nstance.GroupKey
	desiredSpec
	configured     desiredSpec  // by configuration and API; differs from desiredSpec while the group is rolled back
	pendingSince   time.Time    // since when a definition is pending
	rollbackSpec   *desiredSpec // last good definition while the group is rolled back; nil: it could not be read
	members        []*member
	ownBalancers   map[string]int // by name: members that name a load balancer in place of the group
	history        history.Group
	recorded       bool // history stands in storage, or will
	pace           pace.Pace
	unreadable     int
	belowSizeSince time.Time // since when it has had fewer ready members than its size; zero: it has not
	breaker        silence.Breaker
	creates        []plan.Action // of the last plan, which the admission queue refers to
	createsHash    string        // the desired hash then
	holds          []HoldView
	buffer         []plan.Member // reused for every census
	hadMembers     bool          // in this term
	published      groupPublications
}

// groupPublications is what the journal and the watchers of groups were told of a group.
type groupPublications struct {
	ready      bool // group_ready, which still holds
	massNotice bool // that most of it is under notice, which still holds
	removal    bool // that it is gone
	drill      bool // that a drill is due and waits
	holds      []publishedHold
	view       *GroupView
}

// A publishedHold is a hold of a group whose beginning was published.
type publishedHold struct {
	kind  plan.HoldKind
	at    time.Time // when its beginning was published
	since time.Time
	over  bool // and its end
}

// recent reports whether its beginning was published so recently that another one
// is not published yet.
func (s publishedHold) recent(now time.Time) bool {
	ago := now.Sub(s.at)
	return ago >= 0 && ago < quiet
}

// quiet is the shortest time between two beginnings of a hold of one kind in a
// group that are journalled: one that comes and goes must not fill the journal.
const quiet = time.Minute

// A desiredSpec is what a group should be, with the hashes of its definition. They
// are empty if it has none.
type desiredSpec struct {
	spec    nstance.Group
	hash    string // infra hash
	runtime string // runtime hash
}

func desiredSpecFor(spec nstance.Group) (desiredSpec, error) {
	if !groupspec.Defined(&spec) {
		return desiredSpec{spec: spec}, nil
	}
	infra, err := confighash.Infra(spec.Definition)
	runtime, err2 := confighash.Runtime(spec.Definition)
	return desiredSpec{spec, string(infra), string(runtime)}, errors.Join(err, err2)
}

// nextStep is when the next step of a member is due.
func (s *shard) nextStep(g *group) (next time.Time) {
	for _, m := range g.members {
		if due := m.due(); !due.IsZero() && !s.heldBack(m, m.step) {
			next = earliest(next, due)
		}
	}
	return next
}

// configure sets what a group should be.
func (g *group) configure(w desiredSpec, now time.Time) {
	switch {
	case w.spec.Pending == "":
		g.pendingSince = time.Time{}
	case g.configured.spec.Pending == "":
		g.pendingSince = now
	}
	g.configured = w
}

// defined reports whether the group's definition is known. Without one nothing is
// planned.
func (g *group) defined() bool { return groupspec.Defined(&g.configured.spec) }

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

// isGone reports whether a group that is being removed has no managed member
// left: only instances on demand may still be in it.
func (g *group) isGone() bool {
	if !g.spec.Removing || g.unreadable > 0 {
		return false
	}
	for _, m := range g.members {
		if !m.rec.OnDemand {
			return false
		}
	}
	return true
}

// resolve sets what the group should be: what is configured, with the last good definition
// while the group is rolled back.
func (g *group) resolve() (rollbackEnded, changed bool) {
	if rollbackEnded = g.rollbackOver(); rollbackEnded {
		g.history.Rollback, g.rollbackSpec = nil, nil
	}
	g.desiredSpec = g.effective()
	return rollbackEnded, g.history.Desire(g.hash) || rollbackEnded
}

// halted reports whether the rollout to what the group should be is halted.
func (g *group) halted() bool { return g.history.Halted(g.hash) }

func (g *group) hashOrUnknown() string {
	if !g.defined() {
		return plan.UnknownHash
	}
	return g.hash
}

func (g *group) plan() plan.History {
	s := &g.history
	return plan.History{
		Paused: s.Paused, HaltedHash: s.HaltedHash, Failures: s.InRow, LastFailure: s.LastFailure,
		BackoffUntil: s.BackoffUntil, LastGoodHash: s.GoodHash,
		ReturnAt: s.ReturnAt(g.spec.Definition.Market), FullAt: s.FullAt,
	}
}

// definitionHold returns the hold of members of g whose recorded definition cannot
// be read.
func (g *group) definitionHold() (plan.Hold, bool) {
	for _, m := range g.members {
		if m.step != stepCreate || m.definitionErr == nil {
			continue
		}
		why := fmt.Sprintf("the definition %.12s of %s cannot be read: %v; it is tried again", m.rec.Definition, m.id, m.definitionErr)
		return plan.Hold{Kind: plan.HoldDefinition, Reason: why}, true
	}
	return plan.Hold{}, false
}

// countMarkets counts the members that stay, by the market that they are in.
func countMarkets(members []plan.Member) (spot, onDemand int) {
	for i := range members {
		if m := &members[i]; !m.OnDemand && !m.Standby && !m.State.Leaving() && !m.Gone {
			onDemand += oneIf(m.Market == nstance.OnDemand)
			spot += oneIf(m.Market != nstance.OnDemand)
		}
	}
	return spot, onDemand
}

func (g *group) onDemandBeyondBase(members []plan.Member) bool {
	if !g.defined() || g.spec.Definition.Market.Type != nstance.Spot {
		return false
	}
	_, onDemand := countMarkets(members)
	return onDemand > groupspec.OnDemandBase(&g.spec, g.spec.Size)
}

// inMarket returns a definition as it is for a create that may be in one market
// only; empty: as the definition says.
func inMarket(def nstance.Definition, only nstance.MarketType) nstance.Definition {
	switch only {
	case nstance.OnDemand:
		def.Market = nstance.Market{Type: nstance.OnDemand}
	case nstance.Spot:
		def.Market.Fallback = ""
	}
	return def
}
