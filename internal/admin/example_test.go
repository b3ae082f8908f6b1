package admin_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nstance-go/nstance/internal/admin"
)

func Example() {
	dir, err := os.MkdirTemp("", "nstance-admin-example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	nonce := filepath.Join(dir, "nonce.jwt")
	code := admin.Main(context.Background(), nil, []string{
		"cluster", "nonce", "--storage", "file://" + filepath.Join(dir, "storage"), "--key-provider", "none",
		"--cluster", "prod", "--kind", "admin", "--output", nonce,
	}, strings.NewReader(""), os.Stdout, &strings.Builder{}, os.Getenv)
	token, err := os.ReadFile(nonce)
	fmt.Println(code, strings.Count(string(token), "."), err)

	// Output: 0 2 <nil>
}
