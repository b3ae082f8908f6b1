package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template/parse"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/render"
)

// CheckVars fails with Invalid, naming the variable, if a template of def prints
// a variable as it is whose value in vars is more than a plain word. vars are
// those that were set through the API: what a template prints as it is may be
// part of a script, so nothing in them may mean anything there.
func CheckVars(def nstance.Definition, vars map[string]string) error {
	risky := map[string]bool{}
	for name, value := range vars {
		if !plainWord(value) {
			risky[name] = true
		}
	}
	if len(risky) == 0 {
		return nil
	}
	for _, t := range scripts(def) {
		name, bare := barely(t.text, risky)
		if bare {
			return nstance.FieldError("vars."+name, "use letters, digits and _./:@%+,=- only, or have the template print it through quote, json or base64",
				"%s prints it as it is, and it is more than a plain word", t.path)
		}
	}
	return nil
}

// plainWord reports whether a value means itself, and one word, to shells, in
// JSON, YAML and files of variables, and is no option of a command.
func plainWord(value string) bool {
	const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:@%+,=-"
	return strings.Trim(value, plain) == "" && !strings.HasPrefix(value, "-")
}

// A script is a template whose text may mean anything to what reads it.
type script struct{ path, text string }

// scripts returns the templates of a definition that are more than one value:
// values are encoded where they are put.
func scripts(def nstance.Definition) (out []script) {
	if text, err := def.UserData.Template(); err == nil {
		out = append(out, script{"userdata.content", text})
	}
	out = append(out, embedded("args", def.Args)...)
	for _, path := range sortedFiles(def.Files) {
		f := def.Files[path]
		if f.Kind == nstance.FileString {
			out = append(out, script{"files." + path, f.Content})
		}
		out = append(out, embedded("files."+path, f.JSON)...)
	}
	return out
}

func sortedFiles(files map[string]nstance.File) (paths []string) {
	for path := range files {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

// embedded returns the strings within raw that hold more than one action.
func embedded(path string, raw json.RawMessage) (out []script) {
	var v any
	if len(raw) == 0 || json.Unmarshal(raw, &v) != nil {
		return nil
	}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case string:
			if !oneAction(v) {
				out = append(out, script{path, v})
			}
		case map[string]any:
			for _, key := range sortedKeys(v) {
				walk(join(path, key), v[key])
			}
		case []any:
			for i := range v {
				walk(fmt.Sprintf("%s[%d]", path, i), v[i])
			}
		}
	}
	walk(path, v)
	return out
}

// oneAction reports whether a template is nothing but one value.
func oneAction(text string) bool {
	t, err := render.Parse(text)
	if err != nil || t.Tree() == nil {
		return false
	}
	actions := 0
	for _, n := range t.Tree().Root.Nodes {
		a, ok := n.(*parse.ActionNode)
		switch {
		case !ok || len(a.Pipe.Decl) > 0:
			return false
		case !render.Counts(a):
			actions++
		}
	}
	return actions == 1
}

// barely returns the first of some variables that a template prints as it is, or
// may. What cannot be parsed prints nothing.
func barely(text string, names map[string]bool) (name string, bare bool) {
	if !strings.Contains(text, "{{") {
		return "", false
	}
	t, err := render.Parse(text)
	if err != nil || t.Tree() == nil {
		return "", false
	}
	w := varWalk{names: names}
	w.list(t.Tree().Root, true)
	return w.found, w.found != ""
}

// A varWalk looks for variables that are printed without a function that makes
// their values safe. Where it cannot tell it takes them for printed. What other
// templates and the bodies of with and range are given is looked at where it is
// given.
type varWalk struct {
	names map[string]bool
	found string
}

// list looks at nodes; at the root the dot is all data.
func (w *varWalk) list(l *parse.ListNode, root bool) {
	if l == nil {
		return
	}
	for _, n := range l.Nodes {
		switch n := n.(type) {
		case *parse.ActionNode:
			w.pipe(n.Pipe, root)
		case *parse.TemplateNode:
			w.pipe(n.Pipe, root)
		case *parse.IfNode:
			if len(n.Pipe.Decl) > 0 {
				w.pipe(n.Pipe, root)
			}
			w.bodies(&n.BranchNode, root, root)
		case *parse.WithNode:
			w.pipe(n.Pipe, root)
			w.bodies(&n.BranchNode, false, root)
		case *parse.RangeNode:
			w.pipe(n.Pipe, root)
			w.bodies(&n.BranchNode, false, root)
		}
	}
}

func (w *varWalk) bodies(b *parse.BranchNode, within, root bool) {
	w.list(b.List, within)
	w.list(b.ElseList, root)
}

// pipe looks at what a pipeline yields: nothing, if its last command makes it
// safe.
func (w *varWalk) pipe(p *parse.PipeNode, root bool) {
	if p == nil || len(p.Cmds) == 0 || makesSafe(p.Cmds[len(p.Cmds)-1]) {
		return
	}
	for _, c := range p.Cmds {
		name, indexed := indexedVar(c)
		switch {
		case makesSafe(c):
			continue
		case indexed:
			w.print(name)
			continue
		}
		for _, arg := range c.Args {
			w.node(arg, root)
		}
	}
}

// makesSafe reports whether a command is a function whose result is one word of a
// shell, one JSON value, or plain.
func makesSafe(c *parse.CommandNode) bool {
	if len(c.Args) == 0 {
		return false
	}
	f, ok := c.Args[0].(*parse.IdentifierNode)
	return ok && slices.Contains([]string{"quote", "json", "base64", "urlquery", "len"}, f.Ident)
}

// indexedVar returns the name in index .Vars "name".
func indexedVar(c *parse.CommandNode) (string, bool) {
	if len(c.Args) != 3 {
		return "", false
	}
	f, isCall := c.Args[0].(*parse.IdentifierNode)
	name, isText := c.Args[2].(*parse.StringNode)
	if !isCall || !isText || f.Ident != "index" {
		return "", false
	}
	return name.Text, slices.Contains([]string{".Vars", "$.Vars"}, c.Args[1].String())
}

func (w *varWalk) node(n parse.Node, root bool) {
	switch n := n.(type) {
	case *parse.DotNode:
		if root {
			w.printAll()
		}
	case *parse.FieldNode:
		if root {
			w.path(n.Ident)
		}
	case *parse.VariableNode:
		if n.Ident[0] == "$" {
			w.path(n.Ident[1:])
		}
	case *parse.ChainNode:
		w.node(n.Node, root)
	case *parse.PipeNode:
		w.pipe(n, root)
	}
}

// path takes a path from the root.
func (w *varWalk) path(path []string) {
	switch {
	case len(path) == 0, path[0] == "Vars" && len(path) == 1:
		w.printAll()
	case path[0] == "Vars":
		w.print(path[1])
	}
}

func (w *varWalk) print(name string) {
	if w.names[name] && w.found == "" {
		w.found = name
	}
}

func (w *varWalk) printAll() {
	for _, name := range slices.Sorted(maps.Keys(w.names)) {
		w.print(name)
	}
}
