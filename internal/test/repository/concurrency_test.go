package repository_test

import (
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// concurrency matches a sentence about concurrent use.
var concurrency = regexp.MustCompile(`(?i)\bconcurren(t|tly)\b|\bgoroutines?\b`)

// TestConcurrencyIsDocumented: the comment of each public package, interface and struct
// that has a state says whether it may be used concurrently.
func TestConcurrencyIsDocumented(t *testing.T) {
	for _, dir := range publicFolders(t) {
		list, err := build.Default.ImportDir(dir, 0)
		require.NoError(t, err)
		path, files := path.Join(module, dir), list.GoFiles
		if list.Name == "main" || path == module+"/api/v1" || strings.HasPrefix(dir, "examples/") {
			continue
		}
		pkg := parsePackage(t, path, dir, files)
		requireConcurrency(t, path, pkg.Doc)
		for _, typ := range pkg.Types {
			if keepsState(typ) {
				requireConcurrency(t, path+"."+typ.Name, typ.Doc)
			}
		}
	}
}

func requireConcurrency(t *testing.T, name, comment string) {
	t.Helper()
	require.Regexp(t, concurrency, comment, "%s: the comment does not say whether it may be used concurrently", name)
}

func parsePackage(t *testing.T, path, dir string, names []string) *doc.Package {
	t.Helper()
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		file, err := parser.ParseFile(set, filepath.Join(dir, name), nil, parser.ParseComments)
		require.NoError(t, err)
		files = append(files, file)
	}
	pkg, err := doc.NewFromFiles(set, files, path)
	require.NoError(t, err)
	return pkg
}

// keepsState reports whether a type is an interface or a struct with unexported fields.
func keepsState(typ *doc.Type) bool {
	spec, ok := typ.Decl.Specs[0].(*ast.TypeSpec)
	if !ok || spec.Assign.IsValid() {
		return false
	}
	switch t := spec.Type.(type) {
	case *ast.InterfaceType:
		return true
	case *ast.StructType:
		return t.Incomplete // doc.New has removed unexported fields
	}
	return false
}
