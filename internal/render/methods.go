package render

import (
	"fmt"
	"text/template"
	"text/template/parse"

	"github.com/nstance-go/nstance/internal/templates"
)

// A methodCall is a field with arguments: it would be a method, whose result is not
// bounded.
type methodCall struct {
	templates.Command
	tree *parse.Tree
}

func (c methodCall) refuse() error {
	where, what := c.tree.ErrorContext(c.CommandNode)
	if c.Piped {
		return fmt.Errorf("template: %s: %s takes no arguments from a pipeline", where, what)
	}
	return fmt.Errorf("template: %s: %s takes no arguments", where, what)
}

func methodCalls(t *template.Template) (calls []methodCall) {
	for _, each := range t.Templates() {
		if each.Tree == nil {
			continue
		}
		templates.Walk(each.Root, func(c templates.Command) {
			if len(c.Args) == 0 || !c.Piped && len(c.Args) == 1 {
				return
			}
			switch c.Args[0].(type) {
			case *parse.FieldNode, *parse.ChainNode, *parse.VariableNode:
				calls = append(calls, methodCall{c, each.Tree})
			}
		})
	}
	return calls
}

func refuseMethodCalls(t *template.Template) error {
	for _, c := range methodCalls(t) {
		return c.refuse()
	}
	return nil
}

// boundMethodCalls passes the result of each method call to the function that accounts for
// it. What a pipeline passes on would be the argument of that function: it is refused.
func boundMethodCalls(t *template.Template) error {
	for _, c := range methodCalls(t) {
		if c.Piped {
			return c.refuse()
		}
		method := *c.CommandNode
		bound := call("%s (0)", methodFunction).(*parse.ActionNode).Pipe.Cmds[0]
		bound.Args[1].(*parse.PipeNode).Cmds = []*parse.CommandNode{&method}
		c.Args = bound.Args
	}
	return nil
}
