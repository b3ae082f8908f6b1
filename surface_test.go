package nstance_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
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
	exported, public := exportData(t)
	packages := importerOf(exported)
	found := map[string]bool{}
	for _, path := range public {
		pkg, err := packages.Import(path)
		require.NoError(t, err)
		for _, name := range pkg.Scope().Names() {
			if obj := pkg.Scope().Lookup(name); obj.Exported() {
				findInternal(found, strings.TrimPrefix(strings.TrimPrefix(path, module), "/")+"."+name, obj)
			}
		}
	}
	for _, exception := range mentionsInternal {
		require.True(t, found[exception.name], "%s mentions no internal type any more: remove it from the list", exception.name)
		delete(found, exception.name)
	}
	require.Empty(t, found, "these mention types of internal packages, which other modules cannot name")
}

// mostNames are how many exported names, declarations and methods, a package may have. Who
// raises one of them changes the table of docs/design/023-surface.md too.
var mostNames = []struct {
	pkg  string
	most int
}{
	{".", 268}, {"reconcile", 85}, {"storage", 31}, {"server/config", 8}, {"registration", 34}, {"provider/simcloud", 66},
}

// mostToLearn is half of what programs had to learn of these packages before 0.2.0.
const mostToLearn = 510 / 2

// TestSurfaceStaysSmall: the packages that are promised to other programs get no name by
// accident.
func TestSurfaceStaysSmall(t *testing.T) {
	exported, _ := exportData(t)
	packages := importerOf(exported)
	contracts := contractsOf(t, packages)
	design := read(t, "docs/design/023-surface.md")
	toLearn := 0
	for _, budget := range mostNames {
		pkg, err := packages.Import(path.Join(module, budget.pkg))
		require.NoError(t, err)
		names := exportedNames(pkg)
		require.LessOrEqual(t, len(names), budget.most, "%s: unexport what other programs do not need, or raise its figure: %v", budget.pkg, slices.Sorted(maps.Keys(names)))
		count := map[nameKind]int{}
		for _, obj := range names {
			count[kindOf(obj, contracts)]++
		}
		toLearn += count[toBeLearnt]
		name := strings.Replace("`"+budget.pkg+"`", "`.`", "root", 1)
		now := fmt.Sprintf("| %d | %d | %d | %d | %d |", len(names), count[typedWord], count[implementation], count[ofAdmin], count[toBeLearnt])
		require.True(t, regexp.MustCompile("(?m)^"+regexp.QuoteMeta("| "+name+" |")+".*"+regexp.QuoteMeta(now)+"$").MatchString(design), "docs/design/023-surface.md: the row of %s ends in %s", name, now)
	}
	require.LessOrEqual(t, toLearn, mostToLearn, "what a program has to learn")
}

// A nameKind is why a name costs those that read it something, or nothing.
type nameKind int

const (
	toBeLearnt     nameKind = iota
	typedWord               // a value of a type that stands for a bare string
	implementation          // a method whose contract is documented elsewhere
	ofAdmin                 // a method that only operators ask for
)

func kindOf(obj types.Object, contracts []*types.Interface) nameKind {
	switch obj := obj.(type) {
	case *types.Const:
		if _, typed := obj.Type().(*types.Named); typed {
			return typedWord
		}
	case *types.Func:
		recv := obj.Signature().Recv()
		switch {
		case recv == nil:
		case implements(recv.Type(), obj.Name(), contracts):
			return implementation
		case strings.HasSuffix(recv.Type().String(), module+"/reconcile.Admin"):
			return ofAdmin
		}
	}
	return toBeLearnt
}

// implements reports whether a type has a method only because a contract asks for it.
func implements(recv types.Type, method string, contracts []*types.Interface) bool {
	switch method {
	case "String", "Error", "Is", "Unwrap", "MarshalText", "UnmarshalText":
		return true
	}
	return slices.ContainsFunc(contracts, func(contract *types.Interface) bool {
		asked, _, _ := types.LookupFieldOrMethod(contract, false, nil, method)
		return asked != nil && (types.Implements(recv, contract) || types.Implements(types.NewPointer(recv), contract))
	})
}

// contractsOf returns the interfaces that packages ask programs to implement.
func contractsOf(t *testing.T, packages types.Importer) (contracts []*types.Interface) {
	for _, name := range []string{".", "storage", "registration"} {
		pkg, err := packages.Import(path.Join(module, name))
		require.NoError(t, err)
		for _, obj := range exportedNames(pkg) {
			if typ, ok := obj.(*types.TypeName); ok && types.IsInterface(typ.Type()) {
				contracts = append(contracts, typ.Type().Underlying().(*types.Interface))
			}
		}
	}
	return contracts
}

// exportedNames returns the exported declarations of a package, and the exported methods of
// its types.
func exportedNames(pkg *types.Package) map[string]types.Object {
	names := map[string]types.Object{}
	for _, name := range pkg.Scope().Names() {
		obj := pkg.Scope().Lookup(name)
		if !obj.Exported() {
			continue
		}
		names[name] = obj
		typ, isType := obj.(*types.TypeName)
		named, isNamed := obj.Type().(*types.Named)
		if !isType || !isNamed || typ.IsAlias() {
			continue
		}
		for method := range named.Methods() {
			if method.Exported() {
				names[name+"."+method.Name()] = method
			}
		}
	}
	return names
}

// exportData returns the files with what each package exports, and the public packages of
// this module.
func exportData(t *testing.T) (files map[string]string, public []string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Export,Name", "./...").Output()
	require.NoError(t, err)
	files = map[string]string{}
	for list := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct{ ImportPath, Export, Name string }
		err := list.Decode(&p)
		if errors.Is(err, io.EOF) {
			return files, public
		}
		require.NoError(t, err)
		files[p.ImportPath] = p.Export
		if strings.HasPrefix(p.ImportPath, module) && p.Name != "main" && !isInternal(p.ImportPath) {
			public = append(public, p.ImportPath)
		}
	}
}

// importerOf reads packages from what exportData returns.
func importerOf(files map[string]string) types.Importer {
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(files[path]) })
}

func isInternal(path string) bool {
	return strings.HasPrefix(path, module+"/") && strings.Contains(path+"/", "/internal/")
}

// findInternal marks name, and those of its methods, that mention an internal type. An
// alias gives such a type a public name.
func findInternal(found map[string]bool, name string, obj types.Object) {
	typ, ok := obj.(*types.TypeName)
	switch {
	case !ok && mentions(obj.Type()):
		found[name] = true
	case !ok || typ.IsAlias():
		return
	case mentions(typ.Type().Underlying()):
		found[name] = true
	}
	for method := range types.NewMethodSet(types.NewPointer(obj.Type())).Methods() {
		if method.Obj().Exported() && mentions(method.Obj().Type()) {
			found[name+"."+method.Obj().Name()] = true
		}
	}
}

// mentions reports whether an internal type is part of a type.
func mentions(t types.Type) bool {
	switch t := t.(type) {
	case *types.Named:
		return t.Obj().Pkg() != nil && isInternal(t.Obj().Pkg().Path())
	case *types.Map:
		return mentions(t.Key()) || mentions(t.Elem())
	case interface{ Elem() types.Type }:
		return mentions(t.Elem())
	case *types.Signature:
		return mentions(t.Params()) || mentions(t.Results())
	case *types.Tuple:
		for v := range t.Variables() {
			if mentions(v.Type()) {
				return true
			}
		}
	case *types.Struct:
		for field := range t.Fields() {
			if field.Exported() && mentions(field.Type()) {
				return true
			}
		}
	case *types.Interface:
		for method := range t.Methods() {
			if mentions(method.Type()) {
				return true
			}
		}
	}
	return false
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
