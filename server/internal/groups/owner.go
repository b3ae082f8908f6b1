package groups

import (
	"cmp"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/validate"
)

// ownerAfter returns the owner of a group after a change. A group without owner gets the one
// that the change is for. Fails with Conflict where the group is another owner's.
func ownerAfter(key nstance.GroupKey, owner string, who config.Changer) (string, error) {
	if owner != "" && owner != who.Owner && !who.AnyOwner {
		return owner, &nstance.Error{
			Code: nstance.Conflict, Field: "owner", Msg: "group " + key.String() + " is owned by " + owner,
			Remedy: "use another group, or delete it at its owner; to end the ownership run nstance-admin group update --owner ''",
		}
	}
	if who.Release {
		return "", nil
	}
	return cmp.Or(who.Owner, owner), validate.Owner("owner", who.Owner)
}

// setOwner changes nothing of a group but its owner.
func (g *Groups) setOwner(conf *config.Config, f *overlays, key nstance.GroupKey, owner string, who config.Changer) (nstance.Group, nstance.Event, error) {
	before := f.of(key)
	after := before
	after.Owner = owner
	spec := g.resolveGroup(conf, key, after).Group
	return spec, g.changeEvent(key, before, after, spec, spec, who), f.put(key, after)
}

// ownerChange is what an event says of another owner; nil: it is the same.
func ownerChange(before, after string) []string {
	switch after {
	case before:
		return nil
	case "":
		return []string{"no owner, was " + before}
	}
	return []string{"owner " + after}
}
