package secrets_test

import (
	"context"
	"fmt"
	"os"

	"github.com/nstance-go/nstance/clouds/secrets"
)

func Example() {
	_ = os.Setenv("APP_SECRET_DB", "correct horse")
	src, err := secrets.Open(context.Background(), "env://APP_SECRET_")
	if err != nil {
		fmt.Println(err)
		return
	}
	data, err := src.Get(context.Background(), "db")
	fmt.Println(string(data), err)
	// Output: correct horse <nil>
}
