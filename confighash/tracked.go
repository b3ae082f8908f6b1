package confighash

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/templates"
)

// tracked is what a template has asked to be covered beside the rest. Without
// that it is empty, and no part of the hash.
type tracked struct {
	Vars     map[string]string `json:"vars,omitempty"`     // those that user data or args name
	Image    string            `json:"image,omitempty"`    // resolved
	UserData string            `json:"userdata,omitempty"` // digest of what was fetched
	Secrets  map[string]string `json:"secrets,omitempty"`  // marks of their contents, by name
}

func trackedOf(d nstance.Definition) tracked {
	var out tracked
	if slices.Contains(d.Track, nstance.TrackVars) {
		out.Vars = namedVars(d)
	}
	if slices.Contains(d.Track, nstance.TrackImage) {
		out.Image = d.Image
	}
	if slices.Contains(d.Track, nstance.TrackUserData) {
		out.UserData = fetchedDigest(d.UserData)
	}
	if slices.Contains(d.Track, nstance.TrackSecrets) {
		out.Secrets = d.Secrets
	}
	return out
}

// fetchedDigest returns the SHA-256 of what was fetched in hex, or "" if nothing was.
func fetchedDigest(u nstance.UserData) string {
	if u.Source != nstance.SourceURL || u.Fetched == nil {
		return ""
	}
	sum := sha256.Sum256(u.Fetched)
	return hex.EncodeToString(sum[:])
}

// namedVars returns those variables of d on which its rendered user data and
// arguments can depend: those that one of these templates names. Where that
// cannot be decided, because a template is broken or passes all of them on, it
// returns all. Nil means none.
func namedVars(d nstance.Definition) map[string]string {
	text, err := d.UserData.Template()
	named, all := map[string]string{}, err != nil
	read := func(_, text string) (string, error) {
		refs, err := templates.References(text)
		all = all || err != nil
		for _, r := range refs {
			name, every := r.Var()
			all = all || every
			if v, ok := d.Vars[name]; ok {
				named[name] = v
			}
		}
		return text, nil
	}
	_, _ = read("", text)
	var args any
	if bytes.Contains(d.Args, []byte("{{")) {
		all = all || json.Unmarshal(d.Args, &args) != nil
		_, _ = templates.MapStrings("", args, read)
	}
	switch {
	case all:
		return d.Vars
	case len(named) == 0:
		return nil
	}
	return named
}
