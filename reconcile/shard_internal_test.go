package reconcile

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestShardDoesNoIO: no method of shard has a context or makes one, and none takes the
// lock that its caller holds.
func TestShardDoesNoIO(t *testing.T) {
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	methods := 0
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(gotoken.NewFileSet(), f.Name(), nil, 0)
		require.NoError(t, err)
		for _, d := range parsed.Decls {
			method, ok := d.(*ast.FuncDecl)
			if !ok || method.Recv == nil || receiver(method) != "shard" {
				continue
			}
			methods++
			ast.Inspect(method, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					require.NotContains(t, []string{"context", "Reconciler", "mu"}, id.Name, "%s: %s", f.Name(), method.Name.Name)
				}
				return true
			})
		}
	}
	require.NotZero(t, methods)
}

func receiver(method *ast.FuncDecl) string {
	pointer, ok := method.Recv.List[0].Type.(*ast.StarExpr)
	if !ok {
		return ""
	}
	name, _ := pointer.X.(*ast.Ident)
	return name.Name
}
