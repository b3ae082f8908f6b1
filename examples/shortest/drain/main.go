// Command drain has a machine emptied before its deadline: one side starts the drain and
// learns its end, the other one watches, empties the machine and acknowledges.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
)

func main() {
	ctx, drains := context.Background(), drain.New(nil)
	d := nstance.Drain{Instance: "web06dx9xy919t3v9kzd2xdsyzb3g", Generation: 1, Deadline: time.Now().Add(2 * time.Minute), Executor: nstance.ExecutorOperator}
	if err := drains.Start(ctx, d); err != nil {
		log.Fatal(err)
	}
	for e, err := range drains.Watch(ctx, "", 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(e.Type)
		switch e.Type {
		case nstance.DrainSnapshot, nstance.DrainRequested: // empty the machine here
			ack := nstance.Ack{Instance: e.Drain.Instance, Generation: e.Drain.Generation, By: nstance.ExecutorOperator, Outcome: nstance.OutcomeDrained}
			if err := drains.Acknowledge(ctx, ack); err != nil {
				log.Fatal(err)
			}
		case nstance.DrainAcknowledged:
			return
		}
	}
}
