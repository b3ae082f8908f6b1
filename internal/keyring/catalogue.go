package keyring

import (
	"slices"
	"strconv"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

// Nonces names the key set that signs nonces, beside Identity and Workload.
const Nonces = "nonce"

// sets are the names of all key sets.
var sets = []string{Identity, Workload, Nonces}

// A Phase is a key's phase in a rotation.
type Phase string

// The phases, in order. After the last one a key is destroyed.
const (
	PhaseNext    Phase = "next"    // trusted, signs nothing yet
	PhaseCurrent Phase = "current" // signs
	PhaseRetired Phase = "retired" // still trusted, signs nothing new
)

// A Step is one step of a rotation.
type Step string

// The steps. Each is idempotent.
const (
	StepBegin    Step = "begin"    // creates the next key
	StepActivate Step = "activate" // the next key becomes current, the current one retired
	StepFinish   Step = "finish"   // destroys the retired key
	StepAbort    Step = "abort"    // destroys the next key
)

// Settle is how long a new key must have been in the catalogue before it signs,
// and how long it must have signed before its predecessor is destroyed. It is the
// longest time in which a server may fail to read the catalogue.
const Settle = 5 * time.Minute

// A Catalogue lists the keys of a cluster. It is one object, so that every step of
// a rotation is one conditional write.
type Catalogue struct {
	Sets    map[string]KeySet `json:"sets,omitempty"`
	Cluster nstance.ClusterID `json:"cluster,omitempty"` // whose keys they are; empty: not said yet

	// Location is where the storage with the catalogue is. Elsewhere it is a copy. Empty:
	// not said yet.
	Location string `json:"location,omitempty"`
}

// A KeySet is the keys of one purpose: one that is current, and during a
// rotation another one that is next or retired.
type KeySet struct {
	Last int        `json:"last"`           // the highest generation ever created
	Keys []KeyEntry `json:"keys"`           // from the oldest to the newest
	Gone []int      `json:"gone,omitempty"` // generations whose private key has not been destroyed yet
}

// A KeyEntry is one key. Its generation says which objects of the vault hold it.
type KeyEntry struct {
	Generation int       `json:"generation"` // from 1
	ID         string    `json:"id"`         // Issuer of an authority, key ID of a nonce key
	Phase      Phase     `json:"phase"`
	CreatedAt  time.Time `json:"created_at"`
	Since      time.Time `json:"since"`               // start of this phase
	NotAfter   time.Time `json:"not_after,omitzero"`  // of an authority's certificate
	UsedUntil  time.Time `json:"used_until,omitzero"` // latest expiry recorded by UseUntil
}

// NextStepAt returns the earliest time at which a rotation may move the key on; zero
// for a current key, which waits for another one.
func (k KeyEntry) NextStepAt() time.Time {
	settled := k.Since.Add(Settle)
	switch {
	case k.Phase == PhaseCurrent:
		return time.Time{}
	case k.UsedUntil.After(settled):
		return k.UsedUntil
	}
	return settled
}

// find returns the key in that phase, of which there is one at most.
func (s KeySet) find(p Phase) (KeyEntry, bool) {
	i := slices.IndexFunc(s.Keys, func(k KeyEntry) bool { return k.Phase == p })
	if i < 0 {
		return KeyEntry{}, false
	}
	return s.Keys[i], true
}

func (s KeySet) validate(name string) error {
	current := 0
	for i, k := range s.Keys {
		switch {
		case k.Phase != PhaseNext && k.Phase != PhaseCurrent && k.Phase != PhaseRetired:
			return nstance.Errorf(nstance.Invalid, "catalogue of keys: %s: phase %q is unknown", name, clip.Quote(string(k.Phase)))
		case k.Generation < 1 || k.Generation > s.Last || i > 0 && k.Generation <= s.Keys[i-1].Generation:
			return nstance.Errorf(nstance.Invalid, "catalogue of keys: %s: generation %d is out of order", name, k.Generation)
		}
		if k.Phase == PhaseCurrent {
			current++
		}
	}
	if current != 1 {
		return nstance.Errorf(nstance.Invalid, "catalogue of keys: %s has %d current keys instead of one", name, current)
	}
	return nil
}

// clone returns a set that can be changed without changing s.
func (s KeySet) clone() KeySet {
	s.Keys, s.Gone = slices.Clone(s.Keys), slices.Clone(s.Gone)
	return s
}

func (c Catalogue) with(name string, s KeySet) Catalogue {
	next := Catalogue{Sets: map[string]KeySet{}, Cluster: c.Cluster, Location: c.Location}
	for n, old := range c.Sets {
		next.Sets[n] = old
	}
	next.Sets[name] = s
	return next
}

// begun returns the set with a next key.
func (s KeySet) begun(k KeyEntry, now time.Time) KeySet {
	s = s.clone()
	k.Phase, k.CreatedAt, k.Since = PhaseNext, now, now
	s.Last, s.Keys = k.Generation, append(s.Keys, k)
	return s
}

// mayBegin reports whether a rotation can begin. It is false without an error if
// one has begun already.
func (s KeySet) mayBegin(name string) (bool, error) {
	if _, ok := s.find(PhaseNext); ok {
		return false, nil
	}
	if k, ok := s.find(PhaseRetired); ok {
		return false, wrongStep("finish the rotation under way first", "%s key %s is still retired", name, k.ID)
	}
	return true, nil
}

// activated returns the set with the next key as the current one. It changes
// nothing if that was done before.
func (s KeySet) activated(name string, now time.Time) (KeySet, error) {
	next, ok := s.find(PhaseNext)
	if !ok {
		if _, done := s.find(PhaseRetired); done {
			return s, nil
		}
		return s, wrongStep("begin a rotation first", "there is no next %s key", name)
	}
	if wait := next.Since.Add(Settle).Sub(now); wait > 0 {
		return s, wrongStep("repeat it then", "%s key %s was created at %s: servers may not have read it before %s",
			name, next.ID, stamp(next.Since), stamp(next.Since.Add(Settle)))
	}
	s = s.clone()
	for i := range s.Keys {
		switch k := &s.Keys[i]; k.Phase {
		case PhaseNext:
			k.Phase, k.Since = PhaseCurrent, now
		case PhaseCurrent:
			k.Phase, k.Since = PhaseRetired, now
		case PhaseRetired:
		}
	}
	return s, nil
}

// retirable returns the retired key, if there is one, and an error if it cannot be
// destroyed yet.
func (s KeySet) retirable(name string, now time.Time) (k KeyEntry, ok bool, err error) {
	if k, ok = s.find(PhaseRetired); !ok {
		if _, under := s.find(PhaseNext); under {
			return k, false, wrongStep("activate the next key, or abort", "no %s key is retired yet", name)
		}
		return k, false, nil
	}
	if wait := k.Since.Add(Settle).Sub(now); wait > 0 {
		return k, true, wrongStep("repeat it then", "%s key %s was retired at %s: servers may sign with it until %s",
			name, k.ID, stamp(k.Since), stamp(k.Since.Add(Settle)))
	}
	if now.Before(k.UsedUntil) {
		return k, true, wrongStep("repeat it then, or force it", "a certificate or nonce signed by %s key %s is valid until %s", name, k.ID, stamp(k.UsedUntil))
	}
	return k, true, nil
}

// aborted returns the set without the next key. It changes nothing if there is
// none, and fails if the next key has become current.
func (s KeySet) aborted(name string) (KeySet, error) {
	if k, ok := s.find(PhaseRetired); ok {
		return s, wrongStep("finish the rotation", "the new %s key has already replaced %s", name, k.ID)
	}
	return s.without(PhaseNext), nil
}

// without removes the key in that phase and marks its private key for destruction.
func (s KeySet) without(p Phase) KeySet {
	k, ok := s.find(p)
	if !ok {
		return s
	}
	s = s.clone()
	s.Keys = slices.DeleteFunc(s.Keys, func(k KeyEntry) bool { return k.Phase == p })
	s.Gone = append(s.Gone, k.Generation)
	return s
}

func wrongStep(remedy, format string, args ...any) error {
	return refuseField(nstance.Conflict, "step", remedy, format, args...)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// infix is part of the object names of later generations; the first has none.
func infix(generation int) string {
	if generation == 1 {
		return ""
	}
	return "." + strconv.Itoa(generation)
}

func keyObject(set string, generation int) string {
	if set == Nonces {
		return "nonce" + infix(generation) + ".key"
	}
	return set + "-ca" + infix(generation) + ".key"
}

func certObject(set string, generation int) string { return set + "-ca" + infix(generation) + ".crt" }
