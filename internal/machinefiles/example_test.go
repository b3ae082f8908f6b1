package machinefiles_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/nstance-go/nstance/internal/machinefiles"
)

func Example() {
	dir, err := os.MkdirTemp("", "files")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	recv := filepath.Join(dir, "recv")
	store := machinefiles.New(machinefiles.Options{Dir: recv, KeysDir: filepath.Join(dir, "keys"), Applied: func(hash string) error {
		fmt.Println("in place:", hash)
		return nil
	}})
	defer store.Close()

	content := []byte("hello\n")
	wanted, err := store.Begin(machinefiles.Set{Hash: "h1", Files: []machinefiles.File{
		{Path: "app/motd", Digest: machinefiles.Digest(content), Size: int64(len(content))},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, digest := range wanted { // the server sends what is lacking
		if err := store.Write(digest, 0, content); err != nil {
			fmt.Println(err)
		}
	}
	if err := store.Commit("h1"); err != nil {
		fmt.Println(err)
	}
	data, err := os.ReadFile(filepath.Join(recv, "app", "motd"))
	fmt.Printf("%s%v\n", data, err)
	// Output:
	// in place: h1
	// hello
	// <nil>
}
