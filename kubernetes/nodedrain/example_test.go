package nodedrain_test

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
)

// A program that starts drains has the nodes of a cluster drained as well.
func Example() {
	cfg := &rest.Config{Host: "https://cluster.example.com:6443"} // or rest.InClusterConfig()
	drainer, err := nodedrain.New(cfg, drain.New(nil), &nodedrain.Options{Margin: 5 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	stop() // the program's end
	fmt.Println(drainer.Run(ctx))
	// Output:
	// <nil>
}
