package dirwatch_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/nstance-go/nstance/internal/test/dirwatch"
)

func ExampleWatch() {
	dir, err := os.MkdirTemp("", "dirwatch")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	w, err := dirwatch.New(dir)
	if err != nil {
		panic(err)
	}
	defer w.Close()
	_ = os.WriteFile(filepath.Join(dir, "next"), []byte("x"), 0o600)
	_ = os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "file"))
	_ = os.WriteFile(filepath.Join(dir, "file"), []byte("y"), 0o600)
	_ = os.Remove(filepath.Join(dir, "file"))
	fmt.Println(w.Of("file"))
	// Output: [moved written removed] <nil>
}
