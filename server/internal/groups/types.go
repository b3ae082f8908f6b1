package groups

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
)

// maxRecentTypes is how many instance types of requests are remembered.
const maxRecentTypes = 1000

// instanceTypes is what is known of the architectures of instance types. Groups and
// requests name them.
type instanceTypes struct {
	mu     sync.Mutex
	archs  typeArchs
	wanted map[string]bool // named by groups
	recent []string        // named by requests, oldest first
	asked  map[string]bool // the provider was asked in this term, whatever its answer
}

// typeArchs are architectures by instance type; nil: the provider knows no such
// type.
type typeArchs map[string][]nstance.Arch

// suit refuses instance types that definitely do not run the definition's
// architecture.
func (a typeArchs) suit(d *nstance.Definition) error {
	for _, name := range d.InstanceTypes {
		if archs := a[name]; archs != nil && !slices.Contains(archs, d.Arch) {
			return nstance.FieldError("instance_type", "use another type, or a template of that architecture", "%.64q does not run %s", name, d.Arch)
		}
	}
	return nil
}

func newInstanceTypes() *instanceTypes {
	return &instanceTypes{archs: typeArchs{}, wanted: map[string]bool{}, asked: map[string]bool{}}
}

// want sets which types groups name, and forgets those that neither groups nor
// requests name any more. It reports whether an unknown one is new.
func (t *instanceTypes) want(names counts) (unknown bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.wanted
	t.wanted = map[string]bool{}
	for name := range names {
		_, known := t.archs[name]
		t.wanted[name] = true
		unknown = unknown || !known && !before[name]
	}
	needed := maps.Clone(t.wanted)
	for _, name := range t.recent {
		needed[name] = true
	}
	maps.DeleteFunc(t.archs, func(name string, _ []nstance.Arch) bool { return !needed[name] })
	maps.DeleteFunc(t.asked, func(name string, _ bool) bool { return !needed[name] })
	return unknown
}

// change sets which of some types groups name, after one group has changed. It reports
// whether an unknown one is new.
func (t *instanceTypes) change(some []string, named counts) (unknown bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range some {
		_, known := t.archs[name]
		switch {
		case named[name] > 0:
			unknown = unknown || !known && !t.wanted[name]
			t.wanted[name] = true
		case t.wanted[name]:
			delete(t.wanted, name)
			if !slices.Contains(t.recent, name) {
				delete(t.archs, name)
				delete(t.asked, name)
			}
		}
	}
	return unknown
}

// toAsk returns the types of groups to ask the provider for, sorted: the unknown
// ones, or all.
func (t *instanceTypes) toAsk(all bool) (names []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range t.wanted {
		if _, known := t.archs[name]; all || !known {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// request remembers the types of a request and returns the unknown ones. Types of
// earlier requests are forgotten first, those of groups never.
func (t *instanceTypes) request(names []string) (unknown []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	unknown = slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, known := t.archs[name]; return known })
	t.recent = append(slices.DeleteFunc(t.recent, func(name string) bool { return slices.Contains(unknown, name) }), unknown...)
	for len(t.recent) > max(maxRecentTypes, len(unknown)) {
		oldest := t.recent[0]
		if t.recent = t.recent[1:]; !t.wanted[oldest] {
			delete(t.archs, oldest)
			delete(t.asked, oldest)
		}
	}
	return unknown
}

// setAnswer records what the provider said of names; answered: it did.
func (t *instanceTypes) setAnswer(names []string, archs map[string][]nstance.Arch, answered, asked bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range names {
		if t.asked[name] = t.asked[name] || asked; answered {
			t.archs[name] = archs[name]
		}
	}
}

// of returns what is known of some types.
func (t *instanceTypes) of(names []string) typeArchs {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := typeArchs{}
	for _, name := range names {
		if archs, known := t.archs[name]; known {
			out[name] = archs
		}
	}
	return out
}

// checkRequest refuses instance types of a request that do not suit; types is what
// was looked up for it.
func (t *instanceTypes) checkRequest(types typeArchs, spec *nstance.Group) error {
	if err := types.suit(&spec.Definition); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.archs.suit(&spec.Definition)
}

// check refuses instance types that do not suit. Fails with Unavailable for one
// that the provider, which can tell, has not been asked for yet.
func (t *instanceTypes) check(spec *nstance.Group, canTell bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range spec.Definition.InstanceTypes {
		if _, known := t.archs[name]; !known && !t.asked[name] && canTell {
			return nstance.Errorf(nstance.Unavailable, "instance type %.64q is not known yet: it is being looked for", name)
		}
	}
	return t.archs.suit(&spec.Definition)
}

// recall takes over what was known before this term.
func (t *instanceTypes) recall(known map[string]found) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, f := range known {
		if _, newer := t.archs[name]; !newer {
			t.archs[name] = parseArchs(f.Is)
		}
	}
}

// durable returns what is known of the types of groups, in the form in which it is
// stored; before is what is stored.
func (t *instanceTypes) durable(before map[string]found, now time.Time) (out map[string]found) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, archs := range t.archs {
		if !t.wanted[name] {
			continue
		}
		f, stored := before[name]
		if is := joinArchs(archs); !stored || f.Is != is {
			f = found{is, now}
		}
		if out == nil {
			out = map[string]found{}
		}
		out[name] = f
	}
	return out
}

// unknownToProvider returns the types of groups that the provider does not know,
// and whether groups name any types.
func (t *instanceTypes) unknownToProvider() (names []string, wanted bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, archs := range t.archs {
		if archs == nil && t.wanted[name] {
			names = append(names, name)
		}
	}
	return names, len(t.wanted) > 0
}

// parseArchs is the inverse of joinArchs; nil for none.
func parseArchs(text string) (out []nstance.Arch) {
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' }) {
		out = append(out, nstance.Arch(word))
	}
	return out
}

func joinArchs(archs []nstance.Arch) string {
	words := make([]string, len(archs))
	for i, a := range archs {
		words[i] = string(a)
	}
	return strings.Join(words, ",")
}
