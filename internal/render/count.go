package render

import (
	"fmt"
	"slices"
	"text/template/parse"

	"github.com/nstance-go/nstance/internal/templates"
)

// What count calls. No template can: they are not defined while it is parsed.
const (
	stepFunction  = "_step"
	enterFunction = "_enter"
	leaveFunction = "_leave"

	methodFunction = "_method"
)

// count puts calls into the list of a template, and those below, that account
// for what is executed. called says that other templates call this one.
func count(l *parse.ListNode, called bool) {
	parts := parts(l)
	if !called {
		l.Nodes = slices.Insert(l.Nodes, 0, call("%s %d", stepFunction, parts))
		return
	}
	l.Nodes = slices.Insert(l.Nodes, 0, call("%s %d", enterFunction, parts))
	l.Nodes = append(l.Nodes, call("%s", leaveFunction))
}

// call returns the node of a call.
func call(format string, args ...any) parse.Node {
	known := map[string]any{stepFunction: true, enterFunction: true, leaveFunction: true, methodFunction: true}
	set, err := parse.Parse("call", "{{"+fmt.Sprintf(format, args...)+"}}", "", "", known)
	if err != nil {
		panic("render: a counting call does not parse: " + err.Error()) // a mistake in this file
	}
	return set["call"].Root.Nodes[0]
}

// parts returns of how many parts a list consists that one execution of it may
// execute. The bodies of ranges count by themselves, each time.
func parts(l *parse.ListNode) (n int) {
	if l == nil {
		return 0
	}
	for _, node := range l.Nodes {
		n++
		switch node := node.(type) {
		case *parse.ActionNode:
			n += args(node.Pipe)
		case *parse.TemplateNode:
			n += args(node.Pipe)
		case *parse.IfNode:
			n += args(node.Pipe) + parts(node.List) + parts(node.ElseList)
		case *parse.WithNode:
			n += args(node.Pipe) + parts(node.List) + parts(node.ElseList)
		case *parse.RangeNode:
			node.List.Nodes = slices.Insert(node.List.Nodes, 0, call("%s %d", stepFunction, 1+parts(node.List)))
			n += args(node.Pipe) + parts(node.ElseList)
		}
	}
	return n
}

// args returns how many words a pipeline has.
func args(p *parse.PipeNode) (n int) {
	templates.WalkPipe(p, func(c templates.Command) { n += len(c.Args) })
	return n
}
