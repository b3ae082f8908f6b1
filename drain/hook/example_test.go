//go:build unix

package hook_test

import (
	"context"
	"fmt"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/drain/hook"
)

func Example() {
	h, err := hook.New([]string{"/bin/sh", "-c", "echo emptied $NSTANCE_INSTANCE_ID because of $NSTANCE_DRAIN_REASON"}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	outcome, message := h.Run(context.Background(), nstance.Drain{
		Instance: "web06dx9xy919t3v9kzd2xdsyzb3g",
		Deadline: time.Now().Add(2 * time.Minute),
		Causes:   []nstance.Cause{{Kind: nstance.CauseNotice}},
	})
	fmt.Println(outcome)
	fmt.Println(message)
	// Output:
	// drained
	// emptied web06dx9xy919t3v9kzd2xdsyzb3g because of notice
}
