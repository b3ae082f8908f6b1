package server

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/nstance-go/nstance"
)

// archsIn is the opposite of inArchs; nil for none.
func archsIn(text string) (out []nstance.Arch) {
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' }) {
		out = append(out, nstance.Arch(word))
	}
	return out
}

func inArchs(archs []nstance.Arch) string {
	words := make([]string, len(archs))
	for i, a := range archs {
		words[i] = string(a)
	}
	return strings.Join(words, ",")
}

// findTypes asks what the instance types can run that groups name, as far as
// that is not known.
func (v *resolver) findTypes(ctx context.Context) bool {
	v.mu.Lock()
	var names []string
	for name := range v.asked {
		if _, known := v.archs[name]; v.stale || !known {
			names = append(names, name)
		}
	}
	v.mu.Unlock()
	slices.Sort(names)
	ok := v.learnTypes(ctx, names)
	if len(names) > 0 {
		v.t.groups.publish()
	}
	return ok
}

// typeArchs is what instance types run, as far as that is known, by name.
type typeArchs map[string][]nstance.Arch

// lookUpTypes returns what the instance types run that a request names. The
// provider is asked for those that are not known yet. Without an answer nothing
// is held against them.
func (v *resolver) lookUpTypes(ctx context.Context, names []string) typeArchs {
	names = slices.Clone(names)
	slices.Sort(names)
	names = slices.Compact(names)
	v.mu.Lock()
	unknown := slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, known := v.archs[name]; return known })
	v.rememberTypes(unknown)
	v.mu.Unlock()
	ctx, cancel := v.t.bound(ctx)
	defer cancel()
	v.learnTypes(ctx, unknown)
	v.mu.Lock()
	defer v.mu.Unlock()
	out := typeArchs{}
	for _, name := range names {
		if archs, known := v.archs[name]; known {
			out[name] = archs
		}
	}
	return out
}

// rememberTypes makes room for types that a request names: those that earlier
// requests named are forgotten first, those that groups name never. It needs the
// lock.
func (v *resolver) rememberTypes(names []string) {
	v.recent = append(slices.DeleteFunc(v.recent, func(name string) bool { return slices.Contains(names, name) }), names...)
	for len(v.recent) > max(maxRecentTypes, len(names)) {
		oldest := v.recent[0]
		if v.recent = v.recent[1:]; !v.asked[oldest] {
			delete(v.archs, oldest)
			delete(v.tried, oldest)
		}
	}
}

// wantTypes has the instance types looked for that groups in force name, and
// forgets those that neither groups nor requests name any more.
func (v *resolver) wantTypes(specs []nstance.Group) {
	v.mu.Lock()
	defer v.mu.Unlock()
	was := v.asked
	v.asked = map[string]bool{}
	for _, spec := range specs {
		for _, name := range spec.Definition.InstanceTypes {
			_, known := v.archs[name]
			if v.asked[name] = true; !known && !was[name] {
				v.signal()
			}
		}
	}
	needed := maps.Clone(v.asked)
	for _, name := range v.recent {
		needed[name] = true
	}
	maps.DeleteFunc(v.archs, func(name string, _ []nstance.Arch) bool { return !needed[name] })
	maps.DeleteFunc(v.tried, func(name string, _ bool) bool { return !needed[name] })
}

func (v *resolver) learnTypes(ctx context.Context, names []string) bool {
	if v.can.Types == nil || len(names) == 0 {
		return true
	}
	archs, err := v.can.Types.TypeArchs(ctx, names)
	v.note("instance types", err)
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, name := range names {
		if v.tried[name] = v.tried[name] || err == nil || ctx.Err() == nil; err == nil {
			v.archs[name] = archs[name] // nil: not a type that the provider knows
		}
	}
	return err == nil
}

// typesKnown returns what is known of the instance types that groups name, to be
// kept. It needs the lock.
func (v *resolver) typesKnown() (out map[string]found) {
	for name, archs := range v.archs {
		if !v.asked[name] {
			continue
		}
		f, was := v.known.Types[name]
		if is := inArchs(archs); !was || f.Is != is {
			f = found{is, v.t.server.opts.Now().UTC()}
		}
		if out == nil {
			out = map[string]found{}
		}
		out[name] = f
	}
	return out
}

// vetRequest is vet for what a request makes of a group; types is what was looked
// up for it.
func (v *resolver) vetRequest(types typeArchs, spec *nstance.Group) error {
	if err := types.suit(&spec.Definition); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return typeArchs(v.archs).suit(&spec.Definition)
}

// suit refuses instance types that definitely do not run the template's
// architecture.
func (a typeArchs) suit(d *nstance.Definition) error {
	for _, name := range d.InstanceTypes {
		if archs := a[name]; archs != nil && !slices.Contains(archs, d.Arch) {
			return nstance.FieldError("instance_type", "use another type, or a template of that architecture", "%.64q does not run %s", name, d.Arch)
		}
	}
	return nil
}
