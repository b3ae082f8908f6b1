package history

import (
	"slices"
	"time"

	"github.com/nstance-go/nstance"
)

// maxClaims is how many claims a group may have.
const maxClaims = 256

// A Claim has a stand-by member run in place of a node that is not of this shard.
type Claim struct {
	Node    string    `json:"node"`
	EventID string    `json:"event_id,omitempty"` // of what happens to the node
	Reason  string    `json:"reason,omitempty"`
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until"`
}

// Standing returns the claims, oldest first. They must not be changed.
func (g *Group) Standing() []Claim {
	if g.Claims == nil {
		return nil
	}
	return *g.Claims
}

// AddClaim adds a claim, or extends the one of the same node, and returns what stands. Fails with
// Throttled when there are 256.
func (g *Group) AddClaim(c Claim) (stands Claim, known, changed bool, err error) {
	claims := slices.Clone(g.Standing())
	i := g.claimOf(c.Node)
	switch known = i >= 0; {
	case known && !c.Until.After(claims[i].Until):
		return claims[i], true, false, nil
	case known:
		claims[i].Until = c.Until
		c = claims[i]
	case len(claims) >= maxClaims:
		return Claim{}, false, false, nstance.Errorf(nstance.Throttled, "there are %d claims already", maxClaims)
	default:
		claims = append(claims, c)
	}
	g.setClaims(claims)
	return c, known, true, nil
}

// EndClaim ends the claim of a node.
func (g *Group) EndClaim(node string) (changed bool) {
	return g.EndClaims(func(c Claim) bool { return c.Node == node })
}

// EndClaims ends the claims that are over.
func (g *Group) EndClaims(over func(Claim) bool) (changed bool) {
	if !slices.ContainsFunc(g.Standing(), over) {
		return false
	}
	g.setClaims(slices.DeleteFunc(slices.Clone(g.Standing()), over))
	return true
}

func (g *Group) setClaims(claims []Claim) {
	g.Claims = nil
	if len(claims) > 0 {
		g.Claims = &claims
	}
}

func (g *Group) claimOf(node string) int {
	return slices.IndexFunc(g.Standing(), func(c Claim) bool { return c.Node == node })
}
