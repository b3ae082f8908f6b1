package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent"
)

// demonstrate plays the cloud and the server for one daemon: the machine
// registers, the cloud announces that it takes the machine, the server asks for
// a drain, the daemon says that it is empty and leaves.
func demonstrate(ctx context.Context, out io.Writer) error {
	dir, err := os.MkdirTemp("", "agent-in-your-daemon-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// In a moment everything will have happened; if not, something is wrong.
	ctx, cancel := context.WithTimeoutCause(ctx, 20*time.Second, errors.New("the demonstration took too long"))
	defer cancel()

	id, err := nstance.NewInstanceID("dmo", time.Now())
	if err != nil {
		return err
	}
	cloud := make(pretendCloud, 1)
	done := make(chan struct{})
	s, err := newServer(id, story{out: out, announce: cloud.announce, done: func() { close(done) }})
	if err != nil {
		return err
	}
	defer s.stop()
	if err := s.userData(dir); err != nil {
		return err
	}
	over := make(chan error, 1)
	daemonCtx, leave := context.WithCancel(ctx)
	defer leave()
	go func() {
		over <- daemon(daemonCtx, &agent.Options{
			InstanceID: id, IdentityDir: dir, Detector: cloud,
			RegistrationAddrs: []string{s.registration.Addr().String()},
			AgentAddrs:        []string{s.sessions.Addr().String()},
		}, out)
	}()
	select {
	case err := <-over:
		return errors.Join(errors.New("the daemon ended early"), err, context.Cause(ctx))
	case <-done:
	}
	leave()
	return errors.Join(<-over, context.Cause(ctx)) // a daemon that is stopped finishes what it has in hand, too
}

// userData writes what a machine's user data would.
func (s *server) userData(dir string) error {
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "ca.crt"), s.keys.CertPEM(), 0o600),
		os.WriteFile(filepath.Join(dir, "nonce.jwt"), []byte(s.nonce), 0o600),
	)
}

// A pretendCloud is the detector of a machine whose cloud says what we like.
type pretendCloud chan nstance.Notice

var _ nstance.SpotDetector = pretendCloud(nil)

func (c pretendCloud) announce() {
	c <- nstance.Notice{
		Kind: nstance.Reclaim, Action: "terminate", Source: "pretend/spot", EventID: "reclaim-1",
		Deadline: time.Now().Add(2 * time.Minute), DetectedAt: time.Now(),
	}
}

func (pretendCloud) Interruptible(context.Context) (bool, error) { return true, nil }

func (c pretendCloud) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	return func(yield func(nstance.Notice, error) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case n := <-c:
				if !yield(n, nil) {
					return
				}
			}
		}
	}
}

// A story is what the demonstration's server tells and does.
type story struct {
	out      io.Writer
	announce func() // the cloud takes the machine
	done     func() // the machine is empty
}

func (s story) say(format string, args ...any) { fmt.Fprintf(s.out, "server: "+format+"\n", args...) }
