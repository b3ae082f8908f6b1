package files_test

import (
	"context"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/files"
)

func Example() {
	definition := nstance.Definition{
		Vars: map[string]string{"colour": "red"},
		Files: map[string]nstance.File{
			"app.env": {Kind: nstance.FileEnv, Env: map[string]string{"COLOUR": "{{.Vars.colour}}", "GREETING": "it's me"}},
			"name":    {Kind: nstance.FileString, Content: "{{.Instance.ID}}\n"},
		},
	}
	kit := files.Prepare(context.Background(), "v1:sha256:00", definition, files.Common{}, files.Sources{}, nil)
	set := kit.Set(context.Background(), files.Machine{Instance: files.Instance{ID: "web1"}}, nil, nil, time.Now())
	for _, f := range set.Files {
		content, _ := set.Content(f.Digest)
		fmt.Printf("%s: %s", f.Path, content)
	}
	// Output:
	// app.env: COLOUR=red
	// GREETING="it's me"
	// name: web1
}
