// Package templates reads templates of user data, files and arguments. It
// executes nothing: package render does.
package templates

import (
	"slices"
	"text/template/parse"
)

// A Command is one command of a pipeline, and where it stands.
type Command struct {
	*parse.CommandNode
	Piped   bool // receives the result of the command before it
	AtRoot  bool // the dot is all data
	Printed bool // its result may be printed as it is
}

// Walk calls visit with each command below l, outer ones first. The bodies of
// other templates are not below l: what they are passed is.
func Walk(l *parse.ListNode, visit func(Command)) { walk(l, Command{AtRoot: true}, visit) }

// WalkPipe calls visit with each command of a pipeline at the root.
func WalkPipe(p *parse.PipeNode, visit func(Command)) { walkPipe(p, Command{AtRoot: true}, visit) }

// walk gives each command the place at. Within with and range the dot is what
// the pipeline yields, which is visited before.
func walk(l *parse.ListNode, at Command, visit func(Command)) {
	if l == nil {
		return
	}
	printed, within := at, at
	printed.Printed, within.AtRoot = true, false
	for _, n := range l.Nodes {
		switch n := n.(type) {
		case *parse.ActionNode:
			walkPipe(n.Pipe, printed, visit)
		case *parse.TemplateNode:
			walkPipe(n.Pipe, printed, visit)
		case *parse.IfNode: // prints no condition, unless a variable keeps it
			condition := printed
			condition.Printed = len(n.Pipe.Decl) > 0
			walkBranch(&n.BranchNode, condition, at, at, visit)
		case *parse.WithNode:
			walkBranch(&n.BranchNode, printed, within, at, visit)
		case *parse.RangeNode:
			walkBranch(&n.BranchNode, printed, within, at, visit)
		}
	}
}

func walkBranch(b *parse.BranchNode, pipe, body, other Command, visit func(Command)) {
	walkPipe(b.Pipe, pipe, visit)
	walk(b.List, body, visit)
	walk(b.ElseList, other, visit)
}

func walkPipe(p *parse.PipeNode, at Command, visit func(Command)) {
	if p == nil || len(p.Cmds) == 0 {
		return
	}
	at.Printed = at.Printed && !encodes(p.Cmds[len(p.Cmds)-1])
	for i, c := range p.Cmds {
		cmd := at
		cmd.CommandNode, cmd.Piped, cmd.Printed = c, i > 0, at.Printed && !encodes(c)
		visit(cmd)
		for _, arg := range c.Args {
			if chain, ok := arg.(*parse.ChainNode); ok {
				arg = chain.Node
			}
			if nested, ok := arg.(*parse.PipeNode); ok {
				walkPipe(nested, cmd, visit)
			}
		}
	}
}

// encodes reports whether the result of a command is one word of a shell, one
// JSON value, or plain, whatever its arguments are.
func encodes(c *parse.CommandNode) bool {
	if len(c.Args) == 0 {
		return false
	}
	f, ok := c.Args[0].(*parse.IdentifierNode)
	return ok && slices.Contains([]string{"quote", "json", "base64", "urlquery", "len"}, f.Ident)
}
