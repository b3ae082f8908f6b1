package render

import (
	"fmt"
	"slices"
	"text/template"
	"text/template/parse"
)

// What count calls. No template can: they are not defined while it is parsed.
const (
	stepFunction  = "_step"
	enterFunction = "_enter"
	leaveFunction = "_leave"
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
	known := map[string]any{stepFunction: true, enterFunction: true, leaveFunction: true}
	set, err := parse.Parse("call", "{{"+fmt.Sprintf(format, args...)+"}}", "", "", known)
	if err != nil {
		panic("render: a counting call does not parse: " + err.Error()) // a mistake in this file
	}
	return set["call"].Root.Nodes[0]
}

// Counts reports whether Parse put a node into a template.
func Counts(n parse.Node) bool {
	a, ok := n.(*parse.ActionNode)
	if !ok || len(a.Pipe.Cmds) != 1 {
		return false
	}
	f, ok := a.Pipe.Cmds[0].Args[0].(*parse.IdentifierNode)
	return ok && (f.Ident == stepFunction || f.Ident == enterFunction || f.Ident == leaveFunction)
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
	if p == nil {
		return 0
	}
	for _, c := range p.Cmds {
		for _, arg := range c.Args {
			n++
			if chain, ok := arg.(*parse.ChainNode); ok {
				arg = chain.Node
			}
			if pipe, ok := arg.(*parse.PipeNode); ok {
				n += args(pipe)
			}
		}
	}
	return n
}

// checkCalls refuses fields with arguments: they would be methods, whose results
// are not bounded.
func checkCalls(t *template.Template) (err error) {
	for _, each := range t.Templates() {
		if each.Tree == nil {
			continue
		}
		pipes(each.Root, func(p *parse.PipeNode) {
			for i, c := range p.Cmds {
				if len(c.Args) == 0 || i == 0 && len(c.Args) == 1 || err != nil {
					continue
				}
				switch c.Args[0].(type) {
				case *parse.FieldNode, *parse.ChainNode, *parse.VariableNode:
					where, what := each.ErrorContext(c)
					err = fmt.Errorf("template: %s: %s takes no arguments", where, what)
				}
			}
		})
	}
	return err
}

// pipes calls do with every pipeline below l.
func pipes(l *parse.ListNode, do func(*parse.PipeNode)) {
	if l == nil {
		return
	}
	for _, node := range l.Nodes {
		switch node := node.(type) {
		case *parse.ActionNode:
			nested(node.Pipe, do)
		case *parse.TemplateNode:
			nested(node.Pipe, do)
		case *parse.IfNode:
			branch(&node.BranchNode, do)
		case *parse.WithNode:
			branch(&node.BranchNode, do)
		case *parse.RangeNode:
			branch(&node.BranchNode, do)
		}
	}
}

func branch(b *parse.BranchNode, do func(*parse.PipeNode)) {
	nested(b.Pipe, do)
	pipes(b.List, do)
	pipes(b.ElseList, do)
}

func nested(p *parse.PipeNode, do func(*parse.PipeNode)) {
	if p == nil {
		return
	}
	do(p)
	for _, c := range p.Cmds {
		for _, arg := range c.Args {
			if chain, ok := arg.(*parse.ChainNode); ok {
				arg = chain.Node
			}
			if pipe, ok := arg.(*parse.PipeNode); ok {
				nested(pipe, do)
			}
		}
	}
}
