package secrets_test

import (
	"context"
	"fmt"

	"github.com/nstance-go/nstance/gcp/secrets"
)

func Example() {
	_, err := secrets.Open(context.Background(), "gcpsecretmanager://payroll")
	fmt.Println(err)
	// Output: shard.secrets.source: names no project (use gcpsecretmanager://projects/PROJECT)
}
