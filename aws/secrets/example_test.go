package secrets_test

import (
	"context"
	"fmt"

	"github.com/nstance-go/nstance/aws/secrets"
)

func Example() {
	src, err := secrets.Open(context.Background(), "awssecretsmanager://?region=eu-west-1&prefix=prod/")
	fmt.Println(src != nil, err)
	// Output: true <nil>
}
