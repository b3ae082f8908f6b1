package confighash

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"text/template/parse"

	"github.com/nstance-go/nstance"
)

// Tracked is what a template has asked to be covered beside the rest. Without
// that it is empty, and no part of the hash.
type Tracked struct {
	Vars     map[string]string `json:"vars,omitempty"`     // those that user data or args name
	Image    string            `json:"image,omitempty"`    // resolved
	UserData string            `json:"userdata,omitempty"` // digest of what was fetched
	Secrets  map[string]string `json:"secrets,omitempty"`  // marks of their contents, by name
}

func trackedOf(d nstance.Definition) Tracked {
	var out Tracked
	if slices.Contains(d.Track, nstance.TrackVars) {
		out.Vars = NamedVars(d)
	}
	if slices.Contains(d.Track, nstance.TrackImage) {
		out.Image = d.Image
	}
	if slices.Contains(d.Track, nstance.TrackUserData) {
		out.UserData = d.UserData.Digest()
	}
	if slices.Contains(d.Track, nstance.TrackSecrets) {
		out.Secrets = d.Secrets
	}
	return out
}

// NamedVars returns those variables of d on which its rendered user data and
// arguments can depend: those that one of these templates names. Where that
// cannot be decided, because a template is broken or passes all of them on, it
// returns all. Nil means none.
func NamedVars(d nstance.Definition) map[string]string {
	w := walker{names: map[string]bool{}}
	if text, err := d.UserData.Template(); err != nil {
		w.all = true
	} else {
		w.template(text)
	}
	w.args(d.Args)
	if w.all {
		return d.Vars
	}
	var out map[string]string
	for name := range w.names {
		if v, ok := d.Vars[name]; ok {
			if out == nil {
				out = map[string]string{}
			}
			out[name] = v
		}
	}
	return out
}

// A walker collects the variables that templates name.
type walker struct {
	names map[string]bool
	all   bool // it cannot be decided
}

// args walks every string within args, as they are rendered.
func (w *walker) args(args json.RawMessage) {
	if !bytes.Contains(args, []byte("{{")) {
		return
	}
	var v any
	if err := json.Unmarshal(args, &v); err != nil {
		w.all = true
		return
	}
	w.value(v)
}

func (w *walker) value(v any) {
	switch v := v.(type) {
	case string:
		w.template(v)
	case map[string]any:
		for _, e := range v {
			w.value(e)
		}
	case []any:
		for _, e := range v {
			w.value(e)
		}
	}
}

// template walks the main template of text. What others are passed is seen
// where they are called.
func (w *walker) template(text string) {
	if !strings.Contains(text, "{{") {
		return
	}
	t := parse.New("x")
	t.Mode = parse.SkipFuncCheck
	if _, err := t.Parse(text, "", "", map[string]*parse.Tree{}); err != nil {
		w.all = true
		return
	}
	w.list(t.Root, true)
}

// list walks nodes. At the root the dot is all data; in the body of with and
// range it is what the pipeline yielded, which was looked at there.
func (w *walker) list(l *parse.ListNode, root bool) {
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
			w.branch(&n.BranchNode, root, root)
		case *parse.WithNode:
			w.branch(&n.BranchNode, root, false)
		case *parse.RangeNode:
			w.branch(&n.BranchNode, root, false)
		}
	}
}

func (w *walker) branch(n *parse.BranchNode, root, within bool) {
	w.pipe(n.Pipe, root)
	w.list(n.List, within)
	w.list(n.ElseList, root)
}

func (w *walker) pipe(p *parse.PipeNode, root bool) {
	if p == nil {
		return
	}
	for _, c := range p.Cmds {
		if name, ok := indexed(c); ok {
			w.field(append([]string{"Vars"}, name), true)
			continue
		}
		for _, arg := range c.Args {
			w.node(arg, root)
		}
	}
}

// indexed returns the name in index .Vars "name".
func indexed(c *parse.CommandNode) (string, bool) {
	if len(c.Args) != 3 {
		return "", false
	}
	f, ok1 := c.Args[0].(*parse.IdentifierNode)
	name, ok2 := c.Args[2].(*parse.StringNode)
	if !ok1 || !ok2 || f.Ident != "index" {
		return "", false
	}
	switch of := c.Args[1].(type) {
	case *parse.FieldNode:
		return name.Text, len(of.Ident) == 1 && of.Ident[0] == "Vars"
	case *parse.VariableNode:
		return name.Text, len(of.Ident) == 2 && of.Ident[0] == "$" && of.Ident[1] == "Vars"
	}
	return "", false
}

func (w *walker) node(n parse.Node, root bool) {
	switch n := n.(type) {
	case *parse.DotNode:
		w.all = w.all || root
	case *parse.FieldNode:
		w.field(n.Ident, root)
	case *parse.VariableNode:
		if n.Ident[0] == "$" { // all data, wherever it stands; others were seen where they are set
			w.field(n.Ident[1:], true)
		}
	case *parse.ChainNode:
		w.node(n.Node, root)
	case *parse.PipeNode:
		w.pipe(n, root)
	}
}

// field takes a path from the root of the data, unless the dot is another.
func (w *walker) field(path []string, root bool) {
	switch {
	case !root:
	case len(path) == 0:
		w.all = true
	case path[0] != "Vars":
	case len(path) == 1:
		w.all = true
	default:
		w.names[path[1]] = true
	}
}
