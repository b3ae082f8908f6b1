package aws_test

import (
	"context"
	"fmt"

	"github.com/nstance-go/nstance/storage/secret/aws"
)

func Example() {
	src, err := aws.Open(context.Background(), "awssecretsmanager://?region=eu-west-1&prefix=prod/")
	fmt.Println(src != nil, err)
	// Output: true <nil>
}
