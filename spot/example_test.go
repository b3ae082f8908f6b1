package spot_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/spot"
)

func Example() {
	// In place of http://169.254.169.254, a service that announces a reclaim.
	cloud := imds.New(&imds.Options{Spot: true, RequireToken: true})
	web := httptest.NewServer(cloud)
	defer web.Close()
	cloud.Reclaim("terminate", time.Date(2124, 1, 1, 12, 0, 0, 0, time.UTC))

	ctx := context.Background()
	detector, err := spot.Detect(ctx, &spot.DetectOptions{Options: spot.Options{BaseURL: web.URL}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for notice, err := range detector.Watch(ctx) {
		if err != nil {
			fmt.Println(err) // for the log; the watch goes on
			continue
		}
		fmt.Println(notice.Kind, notice.Action, notice.Deadline.Format(time.RFC3339))
		fmt.Println(notice.EventID)
		break
	}
	// Output:
	// reclaim terminate 2124-01-01T12:00:00Z
	// aws/spot/terminate@2124-01-01T12:00:00Z
}

// A source that is read at intervals needs only a function that returns everything
// that it announces now.
func ExamplePoll() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	reads := 0
	read := func(context.Context) ([]nstance.Notice, error) {
		if reads++; reads > 2 {
			return nil, nil // withdrawn
		}
		return []nstance.Notice{{Kind: nstance.Reclaim, Action: "poweroff", Source: "rack", EventID: "rack/17"}}, nil
	}
	for n, err := range spot.Poll(ctx, 10*time.Millisecond, read) {
		fmt.Println(n.EventID, n.Action, "cancelled:", n.Cancelled, err)
		if n.Cancelled {
			return
		}
	}
	// Output:
	// rack/17 poweroff cancelled: false <nil>
	// rack/17 poweroff cancelled: true <nil>
}
