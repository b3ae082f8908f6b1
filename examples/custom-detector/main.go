// Custom-detector shows how to bring a spot detector of your own.
//
// FileDetector, in detector.go, is what a team with its own orchestrator would
// write: the orchestrator drops a JSON file on each machine and the detector
// turns it into notices. detector_test.go has it checked by spot/spottest. This
// program plays one eviction through it: announced, moved forward, withdrawn.
//
//	go run ./custom-detector
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/nstance-go/nstance"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	err := run(ctx, os.Stdout)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "custom-detector:", err)
		os.Exit(1)
	}
}

// run is the whole program. The reader reacts to each notice, and the reaction
// is what makes the orchestrator, played here by the script, go on.
func run(ctx context.Context, out io.Writer) error {
	dir, err := os.MkdirTemp("", "custom-detector-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "eviction.json")
	noon := time.Date(2130, 1, 1, 12, 0, 0, 0, time.UTC)
	script := []*eviction{
		{ID: "ev-17", Action: "poweroff", At: noon},
		{ID: "ev-17", Action: "poweroff", At: noon.Add(-time.Hour)},
		nil, // withdrawn
	}
	if err := publish(path, true, nil); err != nil {
		return err
	}

	// To an agent it is one option: agent.Options{Detector: detector}.
	var detector nstance.SpotDetector = &FileDetector{Path: path, Interval: 20 * time.Millisecond}
	spot, err := detector.Interruptible(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "spot capacity:", spot)

	if err := publish(path, true, script[0]); err != nil {
		return err
	}
	for n, err := range detector.Watch(ctx) {
		if err != nil {
			fmt.Fprintln(out, "trouble:", err) // the watch goes on
			continue
		}
		fmt.Fprintln(out, describe(n))
		if script = script[1:]; len(script) == 0 {
			return nil
		}
		if err := publish(path, true, script[0]); err != nil {
			return err
		}
	}
	return fmt.Errorf("the watch ended early: %w", ctx.Err())
}

func describe(n nstance.Notice) string {
	if n.Cancelled {
		return n.EventID + " is withdrawn"
	}
	return fmt.Sprintf("%s: %s by %s at %s", n.EventID, n.Kind, n.Action, n.Deadline.Format(time.RFC3339))
}

// publish is the orchestrator's part: write beside, then rename.
func publish(path string, spot bool, e *eviction) error {
	content, err := json.Marshal(document{Spot: &spot, Eviction: e})
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
