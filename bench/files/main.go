// Command files measures how fast a change of files reaches connected machines: from
// the call that reloads the configuration until each agent has the complete new set,
// checked against its digests. Every agent has its own session over mutual TLS. The
// store is in memory.
//
//	go run ./bench/files [-agents 1000] [-rounds 5] [-bytes 16384] [-json files.json]
//
// Each round changes one file of -bytes bytes that is equal on all machines, and one
// small file that differs per machine. Two more files do not change. For comparison a
// server that only sends the same messages on the same kind of streams is measured.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/bench/internal/rig"
)

const target = time.Second // for all agents

func main() {
	agents := flag.Int("agents", 1000, "connected agents")
	rounds := flag.Int("rounds", 5, "changes, one after another")
	size := flag.Int("bytes", 16<<10, "size of the file that changes")
	out := flag.String("json", "", "file for the results as JSON")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if err := run(ctx, *agents, *rounds, *size, *out); err != nil {
		fmt.Fprintln(os.Stderr, "files:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, agents, rounds, size int, out string) (err error) {
	var round, ready atomic.Int64
	r, err := rig.Start(ctx, rig.Options{
		Machines: agents, Template: func() string { return template(int(round.Load()), size) },
		Journal: func(e nstance.Event) {
			if e.Type == nstance.EventReady {
				ready.Add(1)
			}
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Stop()) }()
	certs, err := register(ctx, r)
	if err != nil {
		return err
	}
	floor, err := measureFloor(ctx, r, certs, rounds, size)
	if err != nil {
		return err
	}
	f, err := connect(ctx, r, certs, r.Server.Addresses().Agent)
	if err != nil {
		return err
	}
	pushed, err := f.rounds(ctx, rounds+1, func(n int) error {
		round.Store(int64(n))
		_, err := r.Server.Refresh(ctx)
		return err
	})
	if err != nil {
		return err
	}
	report := rig.Report{Bench: "files", Target: "issue 4", FloorFirst: true, With: map[string]any{"agents": agents, "rounds": rounds, "bytes": size}, Results: []rig.Result{
		rig.Sum("the same messages, no server behind", floor, 0),
		rig.Sum("configuration reloaded, set has come", pushed, target),
	}}
	return report.Show(os.Stdout, out)
}

// template is the files of a round.
func template(round, size int) string {
	if round == 0 {
		return ""
	}
	return fmt.Sprintf(`"files": {
		"big": {"kind": "string", "content": "%s"}, "own": {"kind": "string", "content": "%d {{.Instance.ID}}"},
		"a.json": {"kind": "json", "json": {"a": 1}}, "a.env": {"kind": "env", "env": {"A": "{{.Server.Shard}}"}}
	},`, content(round, size), round)
}

func content(round, size int) string { return strings.Repeat(string(rune('a'+round%26)), size) }

func register(ctx context.Context, r *rig.Rig) ([]*tls.Certificate, error) {
	certs := make([]*tls.Certificate, len(r.Specs))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i, spec := range r.Specs {
		g.Go(func() (err error) {
			certs[i], err = r.Register(gctx, i, spec)
			return err
		})
	}
	return certs, g.Wait()
}

// A fleet is all agents, connected to one server.
type fleet struct {
	size int

	mu        sync.Mutex
	completed map[string][]time.Time // times of complete sets, by hash
	changed   chan struct{}
	failed    error
}

func connect(ctx context.Context, r *rig.Rig, certs []*tls.Certificate, addr string) (*fleet, error) {
	f := &fleet{size: len(certs), completed: map[string][]time.Time{}, changed: make(chan struct{})}
	g := errgroup.Group{}
	g.SetLimit(16)
	for i, cert := range certs {
		g.Go(func() error {
			conn, err := r.Dial(addr, i, cert)
			if err != nil {
				return err
			}
			a, err := newAgent(ctx, conn, f.recordComplete)
			if err != nil {
				return err
			}
			go func() { f.fail(a.run()) }() // ends with its connection, at the end of the program
			return nil
		})
	}
	return f, g.Wait()
}

func (f *fleet) recordComplete(hash string, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.completed[hash] = append(f.completed[hash], at)
	f.signal()
}

func (f *fleet) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = err
	f.signal()
}

func (f *fleet) signal() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// rounds starts a change, waits until every agent has it, and continues with the next.
// The first round is a warm-up: it sends all files.
func (f *fleet) rounds(ctx context.Context, rounds int, begin func(n int) error) (took []time.Duration, err error) {
	for n := 1; n <= rounds; n++ {
		f.mu.Lock()
		f.completed = map[string][]time.Time{}
		f.mu.Unlock()
		began := time.Now()
		if err := begin(n); err != nil {
			return nil, err
		}
		at, err := f.wait(ctx)
		if err != nil {
			return nil, err
		}
		for _, t := range at {
			if n > 1 {
				took = append(took, t.Sub(began))
			}
		}
	}
	return took, nil
}

// wait returns when all agents have the same set.
func (f *fleet) wait(ctx context.Context) ([]time.Time, error) {
	for {
		f.mu.Lock()
		changed, failed := f.changed, f.failed
		for _, at := range f.completed {
			if len(at) == f.size {
				f.mu.Unlock()
				return at, nil
			}
		}
		f.mu.Unlock()
		if failed != nil {
			return nil, failed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// measureFloor measures a server that only sends the same messages.
func measureFloor(ctx context.Context, r *rig.Rig, certs []*tls.Certificate, rounds, size int) ([]time.Duration, error) {
	p, addr, stop, err := newFloorServer(r)
	if err != nil {
		return nil, err
	}
	defer stop()
	f, err := connect(ctx, r, certs, addr)
	if err != nil {
		return nil, err
	}
	fixed := announce("a.json", `{"a": 1}`)
	return f.rounds(ctx, rounds+1, func(n int) error {
		p.data = map[string][]byte{}
		p.begin = &apiv1.FilesBegin{Hash: fmt.Sprintf("v1:sha256:%064d", n), Files: []*apiv1.File{fixed, announce("a.env", "A=s1")}}
		for path, text := range map[string]string{"big": content(n, size), "own": fmt.Sprintf("%d %029d", n, n)} {
			file := announce(path, text)
			p.begin.Files = append(p.begin.Files, file)
			p.data[file.GetDigest()] = []byte(text)
		}
		for path, text := range map[string]string{"a.json": `{"a": 1}`, "a.env": "A=s1"} {
			p.data[announce(path, text).GetDigest()] = []byte(text)
		}
		p.wakeAll()
		return nil
	})
}

func announce(path, text string) *apiv1.File {
	sum := sha256.Sum256([]byte(text))
	return &apiv1.File{Path: path, Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: int64(len(text))}
}
