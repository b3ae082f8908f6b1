package main

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A mutant is a small change to a package.
type mutant struct {
	number int
	where  token.Position
	what   string
}

// String says where a change is, and what.
func (m mutant) String() string {
	return fmt.Sprintf("%s:%d: %s", filepath.Base(m.where.Filename), m.where.Line, m.what)
}

// plant writes copies of a package's files that contain all changes, and an overlay that has go
// use them.
func plant(ctx context.Context, pkg, dir string) (all []mutant, overlay string, err error) {
	found, err := list(ctx, pkg)
	if err != nil {
		return nil, "", err
	}
	replace := map[string]string{}
	for _, name := range found.GoFiles {
		path := filepath.Join(found.Dir, name)
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, "", err
		}
		p := planter{files: token.NewFileSet(), source: source, mutants: all}
		if err := p.plant(path); err != nil {
			return nil, "", err
		}
		all = p.mutants
		replace[path] = filepath.Join(dir, name)
		if err := os.WriteFile(replace[path], p.edited(), 0o600); err != nil {
			return nil, "", err
		}
	}
	helper := filepath.Join(dir, "helper.go")
	replace[filepath.Join(found.Dir, "zz_mutants.go")] = helper
	if err := os.WriteFile(helper, []byte("package "+found.Name+helperSource), 0o600); err != nil {
		return nil, "", err
	}
	content, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return all, overlay, os.WriteFile(overlay, content, 0o600)
}

// helperSource is what the copies call. Its names are unlikely in a package.
const helperSource = `

import (
	"os"
	"strconv"
	"sync"
)

var (
	mutantMade, _    = strconv.Atoi(os.Getenv("` + envMutant + `"))
	mutantsReachedTo = os.Getenv("` + envReached + `")
	mutantsReached   sync.Map
)

// mutantIs reports whether a change is the one that is made.
func mutantIs(number int) bool {
	if mutantsReachedTo != "" {
		if _, known := mutantsReached.LoadOrStore(number, true); !known {
			f, err := os.OpenFile(mutantsReachedTo, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				panic(err)
			}
			f.WriteString(strconv.Itoa(number) + "\n")
			f.Close()
		}
	}
	return mutantMade == number
}

func mutantCondition[B ~bool](number int, is B) B {
	switch {
	case mutantIs(number):
		return true
	case mutantIs(number + 1):
		return false
	}
	return is
}

func mutantOperand[B ~bool](number int, without, is B) B {
	if mutantIs(number) {
		return without
	}
	return is
}
`

// A planter makes the copy of one file.
type planter struct {
	files   *token.FileSet
	source  []byte
	mutants []mutant
	starts  map[int][]string // by offset, the outermost first
	ends    map[int][]string // by offset, the innermost first
}

func (p *planter) plant(path string) error {
	file, err := parser.ParseFile(p.files, path, p.source, 0)
	if err != nil {
		return err
	}
	p.starts, p.ends = map[int][]string{}, map[int][]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			p.condition(n.Cond)
		case *ast.SwitchStmt:
			if n.Tag == nil {
				p.cases(n)
			}
		case *ast.ReturnStmt:
			for _, result := range n.Results {
				p.operands(result)
			}
		case *ast.BlockStmt:
			p.statements(n.List)
		case *ast.CaseClause:
			p.statements(n.Body)
		case *ast.CommClause:
			p.statements(n.Body)
		}
		return true
	})
	return nil
}

func (p *planter) cases(s *ast.SwitchStmt) {
	for _, clause := range s.Body.List {
		for _, cond := range clause.(*ast.CaseClause).List {
			p.condition(cond)
		}
	}
}

// condition has one that is always true, and one that never is.
func (p *planter) condition(cond ast.Expr) {
	number := p.add(cond, "always true: "+p.text(cond))
	p.add(cond, "never true: "+p.text(cond))
	p.insert(cond, fmt.Sprintf("mutantCondition(%d, ", number), ")")
	p.operands(cond)
}

// operands has each operand of && and || left out.
func (p *planter) operands(e ast.Expr) {
	b, ok := ast.Unparen(e).(*ast.BinaryExpr)
	if !ok || b.Op != token.LAND && b.Op != token.LOR {
		return
	}
	for _, operand := range []ast.Expr{b.X, b.Y} {
		if inner, ok := operand.(*ast.BinaryExpr); !ok || inner.Op != b.Op { // whose operands are left out instead
			p.insert(operand, fmt.Sprintf("mutantOperand(%d, %t, ", p.add(operand, "without operand: "+p.text(operand)), b.Op == token.LAND), ")")
		}
		p.operands(operand)
	}
}

// statements has each statement left out without which the others still compile, except locks and
// deferred calls, because tests would hang without them, and log lines, because none are tested.
func (p *planter) statements(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt:
			if text := p.text(s); strings.HasPrefix(text, "panic(") || strings.HasSuffix(text, "ock()") || strings.Contains(text, "log.") {
				continue
			}
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE {
				continue
			}
		case *ast.IncDecStmt, *ast.SendStmt:
		default:
			continue
		}
		p.insert(s, fmt.Sprintf("if !mutantIs(%d) { ", p.add(s, "without: "+p.text(s))), " }")
	}
}

// add returns the number of a new change.
func (p *planter) add(n ast.Node, what string) int {
	number := len(p.mutants) + 1
	p.mutants = append(p.mutants, mutant{number, p.files.Position(n.Pos()), what})
	return number
}

// text is the first line of what a node is.
func (p *planter) text(n ast.Node) string {
	line, _, _ := strings.Cut(string(p.source[p.offset(n.Pos()):p.offset(n.End())]), "\n")
	return line
}

func (p *planter) offset(at token.Pos) int { return p.files.Position(at).Offset }

// insert puts text around a node. Those around others come first.
func (p *planter) insert(n ast.Node, before, after string) {
	start, end := p.offset(n.Pos()), p.offset(n.End())
	p.starts[start] = append(p.starts[start], before)
	p.ends[end] = slices.Insert(p.ends[end], 0, after)
}

func (p *planter) edited() []byte {
	var out []byte
	for at := range len(p.source) + 1 {
		for _, text := range slices.Concat(p.ends[at], p.starts[at]) {
			out = append(out, text...)
		}
		if at < len(p.source) {
			out = append(out, p.source[at])
		}
	}
	return out
}
