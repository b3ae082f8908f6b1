package opener_test

import (
	"context"
	"fmt"
	"os"

	"github.com/nstance-go/nstance/internal/opener"
)

func Example() {
	_ = os.Setenv("APP_SECRET_DB", "correct horse")
	src, err := opener.Open(context.Background(), "env://APP_SECRET_")
	if err != nil {
		fmt.Println(err)
		return
	}
	data, err := src.Get(context.Background(), "db")
	fmt.Println(string(data), err)
	// Output: correct horse <nil>
}
