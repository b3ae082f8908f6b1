package reconcile

import (
	"errors"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"go/types"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nstance-go/nstance/reconcile/internal/history"
	"github.com/stretchr/testify/require"
)

// TestShardDoesNoIO: no method of shard has a context or makes one, and none takes the
// lock that its caller holds.
func TestShardDoesNoIO(t *testing.T) {
	count := 0
	for _, method := range methods(t) {
		if receiver(method) != "shard" {
			continue
		}
		count++
		ast.Inspect(method, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				require.NotContains(t, []string{"context", "Reconciler", "mu"}, id.Name, method.Name.Name)
			}
			return true
		})
	}
	require.NotZero(t, count)
}

// TestReadsKnowNoShard: what computes on copies has neither the shard nor its lock, and the shard
// takes no census.
func TestReadsKnowNoShard(t *testing.T) {
	forbidden := map[string][]string{"shard": {"NewCensus"}}
	for _, read := range []string{"snapshot", "shardSnapshot", "instancesCopy", "comparison"} {
		forbidden[read] = []string{"shard", "member", "Reconciler", "mu", "locked"}
	}
	found := map[string]bool{}
	for _, method := range methods(t) {
		of := receiver(method)
		found[of] = true
		ast.Inspect(method, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				require.NotContains(t, forbidden[of], id.Name, method.Name.Name)
			}
			return true
		})
	}
	for of := range forbidden {
		require.True(t, found[of], of)
	}
}

// TestChangesAskPermit: every method that changes a machine at the provider asks permit first.
func TestChangesAskPermit(t *testing.T) {
	changing := map[string]bool{}
	for _, method := range methods(t) {
		asked := false
		ast.Inspect(method, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			asked = asked || call.Sel.Name == "permit"
			switch of := types.ExprString(call.X) + "." + call.Sel.Name; of {
			case "r.provider.Create", "r.provider.Delete", "parking.Park", "parking.Wake":
				changing[of] = true
				require.True(t, asked, "%s calls %s", method.Name.Name, of)
			}
			return true
		})
	}
	require.Len(t, changing, 4)
}

// TestPermit: the table of what a freeze, and the end of the term, permit.
func TestPermit(t *testing.T) {
	r, specs := newIdleShard(t, 1, 1)
	g := r.groups[specs[0].Key]
	over := errors.New("the term is over")
	goesOn := []stepKind{stepDrain, stepCancel, stepDelete, stepWriteNotices}
	for step := stepNone; step <= stepBalance; step++ {
		for _, frozen := range []*history.Freeze{nil, {Reason: "audit"}} {
			g.history.Frozen = frozen
			r.opts.Check = func() error { return over }
			require.Equal(t, over, r.permit(g.members[0], step), step)
			r.opts.Check = func() error { return nil }
			if frozen == nil || slices.Contains(goesOn, step) {
				require.NoError(t, r.permit(g.members[0], step), step)
			} else {
				require.Equal(t, errAgain, r.permit(g.members[0], step), step)
			}
		}
	}
}

// methods returns the methods of this package.
func methods(t *testing.T) (out []*ast.FuncDecl) {
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(gotoken.NewFileSet(), f.Name(), nil, 0)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			if method, ok := d.(*ast.FuncDecl); ok && method.Recv != nil {
				out = append(out, method)
			}
		}
	}
	return out
}

func receiver(method *ast.FuncDecl) string {
	pointer, ok := method.Recv.List[0].Type.(*ast.StarExpr)
	if !ok {
		return ""
	}
	name, _ := pointer.X.(*ast.Ident)
	return name.Name
}
