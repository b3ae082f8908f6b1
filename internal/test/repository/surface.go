// Package repository checks how the packages of this repository depend on each other, and
// what they export, for a test in each module. Exported names are read from the sources
// without compiling anything, and what other repositories provide is left open. So a test can
// look at every package, on a fresh machine too, within a second.
//
// Its functions may be called concurrently.
package repository

import (
	"errors"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Repository is the import path of the repository's root.
const Repository = "github.com/nstance-go/nstance"

// Mentions returns the exported names of the public packages below dir, the directory of a
// module of this repository, that mention a type of an internal package: each as its
// package's path below [Repository], a dot and the name. Modules within it are left out.
// module is its import path, root the repository's directory.
func Mentions(root, dir, module string) ([]string, error) {
	public, err := packagesBelow(dir, module)
	if err != nil {
		return nil, err
	}
	r := &reader{fset: token.NewFileSet(), root: root, read: map[string]*types.Package{}}
	found := map[string]bool{}
	for _, importPath := range public {
		pkg, err := r.Import(importPath)
		if err != nil {
			return nil, err
		}
		for _, name := range pkg.Scope().Names() {
			if obj := pkg.Scope().Lookup(name); obj.Exported() && pkg.Name() != "main" {
				findInternal(found, strings.TrimPrefix(strings.TrimPrefix(importPath, Repository), "/")+"."+name, obj)
			}
		}
	}
	var out []string
	for name := range found {
		out = append(out, name)
	}
	slices.Sort(out)
	return out, nil
}

// packagesBelow returns the public packages of the module in dir.
func packagesBelow(dir, module string) (out []string, err error) {
	err = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if file != dir && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "internal" || exists(filepath.Join(file, "go.mod"))) {
			return filepath.SkipDir
		}
		if _, err := build.Default.ImportDir(file, 0); err != nil {
			return ignoreNoGo(err)
		}
		below, err := filepath.Rel(dir, file)
		out = append(out, path.Join(module, filepath.ToSlash(below)))
		return err
	})
	return out, err
}

func ignoreNoGo(err error) error {
	if _, none := errors.AsType[*build.NoGoError](err); none {
		return nil
	}
	return err
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// A reader type-checks declarations of this repository's packages.
type reader struct {
	fset *token.FileSet
	root string
	read map[string]*types.Package
}

// Import implements types.Importer. A package of another repository is empty.
func (r *reader) Import(importPath string) (*types.Package, error) {
	if pkg := r.read[importPath]; pkg != nil {
		return pkg, nil
	}
	below, own := strings.CutPrefix(importPath+"/", Repository+"/")
	if !own {
		pkg := types.NewPackage(importPath, path.Base(importPath))
		pkg.MarkComplete()
		r.read[importPath] = pkg
		return pkg, nil
	}
	dir := filepath.Join(r.root, filepath.FromSlash(below))
	list, err := build.Default.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, name := range list.GoFiles {
		file, err := parser.ParseFile(r.fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	conf := types.Config{Importer: r, IgnoreFuncBodies: true, Error: func(error) {}} // of what other repositories provide
	pkg, _ := conf.Check(importPath, r.fset, files, nil)
	r.read[importPath] = pkg
	return pkg, nil
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

func isInternal(importPath string) bool {
	return strings.HasPrefix(importPath, Repository+"/") && strings.Contains(importPath+"/", "/internal/")
}
