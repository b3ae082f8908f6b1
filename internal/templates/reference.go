package templates

import (
	"strings"
	"text/template/parse"
)

// A Reference is a use of the data in a template. Where the use cannot be
// decided, it counts as one of all data.
type Reference struct {
	Path    []string // from the root of the data; none: all data
	Printed bool     // the value may be printed as it is
	node    parse.Node
	tree    *parse.Tree
}

// References returns the uses of the data in the main template of text. Errors
// are those of text/template; unknown functions are none.
func References(text string) (refs []Reference, err error) {
	tree, err := parseText(text)
	if err != nil || tree == nil {
		return nil, err
	}
	Walk(tree.Root, func(c Command) {
		if name, ok := indexedVar(c.CommandNode); ok {
			refs = append(refs, Reference{[]string{"Vars", name}, c.Printed, c, tree})
			return
		}
		for _, arg := range c.Args {
			if path, ok := pathOf(arg, c.AtRoot); ok {
				refs = append(refs, Reference{path, c.Printed, arg, tree})
			}
		}
	})
	return refs, nil
}

// Var returns the variable that the reference names, or all of them for one to
// more than a variable. Neither means that it uses no variable.
func (r Reference) Var() (name string, all bool) {
	switch {
	case len(r.Path) == 0:
		return "", true
	case r.Path[0] != "Vars":
		return "", false
	case len(r.Path) == 1:
		return "", true
	}
	return r.Path[1], false
}

// Place returns line, column and text of the reference.
func (r Reference) Place() string {
	where, _ := r.tree.ErrorContext(r.node)
	return strings.TrimPrefix(where, "text:")
}

// IsOneAction reports whether text is nothing but one value.
func IsOneAction(text string) bool {
	tree, err := parseText(text)
	if err != nil || tree == nil || len(tree.Root.Nodes) != 1 {
		return false
	}
	a, ok := tree.Root.Nodes[0].(*parse.ActionNode)
	return ok && len(a.Pipe.Decl) == 0
}

// parseText returns the tree of the main template, nil for none.
func parseText(text string) (*parse.Tree, error) {
	if !strings.Contains(text, "{{") {
		return nil, nil
	}
	t := parse.New("text")
	t.Mode = parse.SkipFuncCheck
	return t.Parse(text, "", "", map[string]*parse.Tree{})
}

// pathOf returns the path of an argument that uses the data.
func pathOf(n parse.Node, atRoot bool) ([]string, bool) {
	switch n := n.(type) {
	case *parse.DotNode:
		return nil, atRoot
	case *parse.FieldNode:
		return n.Ident, atRoot
	case *parse.VariableNode: // others than $ count where they are set
		return n.Ident[1:], n.Ident[0] == "$"
	}
	return nil, false
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
	of := c.Args[1].String()
	return name.Text, of == ".Vars" || of == "$.Vars"
}
