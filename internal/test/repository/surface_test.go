package repository_test

import (
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent"
	"github.com/nstance-go/nstance/internal/test/repository"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// mentionsInternal are the exported names that mention a type of an internal package.
var mentionsInternal = []struct{ name, reason string }{
	{"reconcile.Admin.Internals", "the server of this module asks more of its reconciler than is promised to other programs: they use the rest of Admin"},
	{"registration.KeysOf", "the server of this module rotates its keys while they are in use; other programs call NewKeys or LoadKeys"},
}

// TestSurfaceIsPublic: what a public package exports mentions no type that other modules
// cannot name.
func TestSurfaceIsPublic(t *testing.T) {
	var found []string
	for _, file := range files(t, "go.mod") {
		dir := path.Dir(file)
		if dir == "examples" || dir == "integration" || strings.HasPrefix(dir, "internal/") {
			continue
		}
		names, err := repository.Mentions(".", dir, path.Join(module, dir))
		require.NoError(t, err)
		found = append(found, names...)
	}
	for _, exception := range mentionsInternal {
		require.Contains(t, found, exception.name, "it mentions no internal type any more: remove it from the list")
		found = slices.DeleteFunc(found, func(name string) bool { return name == exception.name })
	}
	require.Empty(t, found, "these mention types of internal packages, which other modules cannot name")
}

// TestJSONNames: what programs write into JSON has the names of the wire, whatever the
// fields are called in Go.
func TestJSONNames(t *testing.T) {
	seen := map[reflect.Type]bool{}
	for _, v := range []any{
		nstance.Event{}, nstance.Group{}, nstance.Identity{}, nstance.ImageQuery{}, nstance.LoadBalancer{}, nstance.Machine{}, nstance.MachineNotice{},
		nstance.MachineSpec{}, nstance.Report{}, nstance.DrainEvent{},
		plan.View{}, plan.Decision{}, plan.Counts{}, plan.Outlook{},
		reconcile.GroupView{}, reconcile.InstanceView{}, reconcile.OrphanView{}, reconcile.AvoidedPool{}, reconcile.PoolOutlook{}, nstance.ZoneShift{},
		reconcile.GroupPlan{}, reconcile.Impact{}, reconcile.Attention{},
		agent.Status{},
	} {
		requireJSONNames(t, reflect.TypeOf(v), seen)
	}
}

var snakeCase = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

func requireJSONNames(t *testing.T, typ reflect.Type, seen map[reflect.Type]bool) {
	t.Helper()
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		requireJSONNames(t, typ.Elem(), seen)
		return
	case reflect.Struct:
	default:
		return
	}
	if seen[typ] || !strings.HasPrefix(typ.PkgPath(), module) || typ.Implements(reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]()) {
		return
	}
	seen[typ] = true
	for _, field := range reflect.VisibleFields(typ) {
		if !field.IsExported() || len(field.Index) > 1 || field.Type.Kind() == reflect.Func {
			continue
		}
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); !field.Anonymous {
			assert.Regexp(t, snakeCase, name, "%s.%s", typ, field.Name)
		}
		requireJSONNames(t, field.Type, seen)
	}
}

// TestFactsAreListed: the comment of Fact names every type that is one.
func TestFactsAreListed(t *testing.T) {
	source := read(t, "fact.go")
	comment, _, _ := strings.Cut(source, "type Fact interface")
	facts := regexp.MustCompile(`func \((\w+)\) fact\(\)`).FindAllStringSubmatch(source, -1)
	require.NotEmpty(t, facts)
	for _, fact := range facts {
		require.Contains(t, comment, "["+fact[1]+"]")
	}
}
