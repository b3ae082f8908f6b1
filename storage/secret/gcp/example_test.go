package gcp_test

import (
	"context"
	"fmt"

	"github.com/nstance-go/nstance/storage/secret/gcp"
)

func Example() {
	_, err := gcp.Open(context.Background(), "gcpsecretmanager://payroll")
	fmt.Println(err)
	// Output: shard.secrets.source: names no project (use gcpsecretmanager://projects/PROJECT)
}
