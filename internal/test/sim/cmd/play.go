package main

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nstance-go/nstance/internal/test/sim"
)

// outcome is the result of one seed's process.
type outcome struct {
	sim.Result
	Hash string // of everything that happened
}

// play runs one seed and exits. It prints the outcome as JSON.
func play(args []string) {
	cfg := sim.Config{Idle: runtime.GC}
	f := flag.NewFlagSet("play", flag.ExitOnError)
	f.Uint64Var(&cfg.Seed, "seed", 1, "the seed")
	f.DurationVar(&cfg.Faults, "faults", 0, "virtual time with faults")
	f.IntVar(&cfg.Size, "size", 0, "initial size of the group")
	trace := f.String("trace", "", "file for everything that happened")
	_ = f.Parse(args) // it exits
	hash, text := sha256.New(), &bytes.Buffer{}
	if cfg.Trace = hash; *trace != "" {
		cfg.Trace = io.MultiWriter(hash, text)
	}
	rand.Reader = newSeeded(cfg.Seed)
	time.Local = time.UTC // reading the zone's file later would change the order of goroutines
	os.Args = os.Args[:1] // the rest is not for the testing package
	testing.Init()
	// A bubble needs a test around it, in a program too.
	testing.Main(func(_, _ string) (bool, error) { return true, nil }, []testing.InternalTest{{
		Name: "seed",
		F: func(t *testing.T) {
			var out outcome
			synctest.Test(t, func(*testing.T) { out.Result = sim.Run(cfg) })
			out.Hash = hex.EncodeToString(hash.Sum(nil))
			os.Exit(finish(out, *trace, text.Bytes())) // before the test prints its own last line
		},
	}}, nil, nil)
}

func finish(out outcome, trace string, text []byte) int {
	err := json.NewEncoder(os.Stdout).Encode(out)
	if err == nil && trace != "" {
		err = os.WriteFile(trace, text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		return 1
	}
	return 0
}

// seeded replaces the system's randomness.
type seeded struct {
	mu  sync.Mutex
	rng *mathrand.ChaCha8
}

func newSeeded(seed uint64) *seeded {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	return &seeded{rng: mathrand.NewChaCha8(key)}
}

func (s *seeded) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rng.Read(p)
}
