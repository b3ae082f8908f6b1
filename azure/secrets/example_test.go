package secrets_test

import (
	"context"
	"fmt"

	"github.com/nstance-go/nstance/azure/secrets"
)

func Example() {
	src, err := secrets.Open(context.Background(), "azurekeyvault://payroll?prefix=prod-")
	fmt.Println(src != nil, err)
	// Output: true <nil>
}
