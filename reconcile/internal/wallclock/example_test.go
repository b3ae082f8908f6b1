package wallclock_test

import (
	"fmt"
	"time"

	"github.com/nstance-go/nstance/reconcile/internal/wallclock"
)

func Example() {
	wall, elapsed := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Duration(0)
	clock := wallclock.New(wallclock.Options{
		Wall:    func() time.Time { return wall },
		Elapsed: func() time.Duration { return elapsed },
	})
	wall, elapsed = wall.Add(time.Hour), time.Second // the clock was set
	clock.Look()
	fmt.Println(clock.Distrust())
	// Output:
	// this server's clock was set 59m59s forward since it leads, and storage has none to compare with: set it back if that was wrong, else restart the server
}
