// Command detector announces a reclaim once a file exists, and withdraws it when the
// file is gone.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/spot"
)

// A file is the notice of a machine's eviction.
type file string

// Interruptible implements [nstance.SpotDetector].
func (f file) Interruptible(context.Context) (bool, error) { return true, nil }

// Watch implements [nstance.SpotDetector].
func (f file) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	return spot.Poll(ctx, 100*time.Millisecond, func(context.Context) ([]nstance.Notice, error) {
		info, err := os.Stat(string(f))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, nstance.Errorf(nstance.Unavailable, "eviction: %w", err)
		}
		id := fmt.Sprintf("file/%d", info.ModTime().UnixNano())
		return []nstance.Notice{{Kind: nstance.Reclaim, Action: "poweroff", Source: "file", EventID: id}}, nil
	})
}

func main() {
	var detector nstance.SpotDetector = file(filepath.Join(os.TempDir(), fmt.Sprintf("eviction-%d", os.Getpid())))
	path := string(detector.(file))
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		log.Fatal(err)
	}
	for n, err := range detector.Watch(context.Background()) {
		fmt.Println(n.Kind, n.Action, "withdrawn:", n.Cancelled, err)
		if n.Cancelled || os.Remove(path) != nil {
			return
		}
	}
}
