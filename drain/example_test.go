package drain_test

import (
	"context"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain"
)

// One side starts a drain and receives its end; the other watches, drains the machine
// and acknowledges.
func Example() {
	ctx := context.Background()
	c := drain.New(nil)
	err := c.Start(ctx, nstance.Drain{
		Instance:   "web06dx9xy919t3v9kzd2xdsyzb3g",
		Generation: 1,
		Deadline:   time.Now().Add(2 * time.Minute),
		Executor:   nstance.ExecutorOperator,
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	for e, err := range c.Watch(ctx, "", 0) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(e.Type)
		switch e.Type {
		case nstance.DrainSnapshot, nstance.DrainRequested:
			ack := nstance.Ack{
				Instance:   e.Drain.Instance,
				Generation: e.Drain.Generation,
				By:         nstance.ExecutorOperator,
				Outcome:    nstance.OutcomeDrained,
			}
			if err := c.Acknowledge(ctx, ack); err != nil {
				fmt.Println(err)
			}
		case nstance.DrainAcknowledged:
			fmt.Println("may be deleted:", e.Ack.Instance)
			return
		}
	}
	// Output:
	// snapshot
	// synced
	// acknowledged
	// may be deleted: web06dx9xy919t3v9kzd2xdsyzb3g
}
