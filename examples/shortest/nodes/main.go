// Command nodes drains Kubernetes nodes within two minutes, and past disruption budgets
// rather than later: nodes i-0123456789abcdef0 drains the node with that provider ID in
// the cluster of $KUBECONFIG. Without arguments it does nothing.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/kubernetes/nodedrain"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, drains, waiting := context.Background(), drain.New(nil), len(os.Args)-1
	if waiting == 0 {
		return
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		log.Fatal(err)
	}
	drainer, err := nodedrain.New(cfg, drains, nil)
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = drainer.Run(ctx) }() // nil, when ctx ends
	for _, id := range os.Args[1:] {
		d := nstance.Drain{Instance: nstance.InstanceID(id), ProviderID: id, Generation: 1, Deadline: time.Now().Add(2 * time.Minute), Executor: nstance.ExecutorOperator}
		if err := drains.Start(ctx, d); err != nil {
			log.Fatal(err)
		}
	}
	for e, err := range drains.Watch(ctx, "", 0) {
		if err != nil {
			log.Fatal(err)
		}
		if e.Ack == nil {
			continue
		}
		fmt.Println(e.Drain.ProviderID, e.Ack.Outcome, e.Ack.Message)
		if waiting--; waiting == 0 {
			return
		}
	}
}
