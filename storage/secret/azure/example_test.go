package azure_test

import (
	"context"
	"fmt"

	"github.com/nstance-go/nstance/storage/secret/azure"
)

func Example() {
	src, err := azure.Open(context.Background(), "azurekeyvault://payroll?prefix=prod-")
	fmt.Println(src != nil, err)
	// Output: true <nil>
}
