package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent"
	"github.com/nstance-go/nstance/bench/internal/rig"
)

// An order is one line that a process of agents reads. It answers none but a question.
type order struct {
	Start  *machine             `json:"start,omitempty"`
	Notice []nstance.InstanceID `json:"notice,omitempty"` // that are taken back in two minutes
	End    nstance.InstanceID   `json:"end,omitempty"`
	Ask    bool                 `json:"ask,omitempty"` // how many are connected
}

// A machine is one that runs and has no agent yet.
type machine struct {
	ID           nstance.InstanceID `json:"id"`
	Number       int                `json:"number"` // of its address
	Nonce        []byte             `json:"nonce"`
	CA           []byte             `json:"ca"`
	Registration []string           `json:"registration"`
	Agent        []string           `json:"agent"`
}

// A process has many agents.
type process struct {
	cmd *exec.Cmd
	out *bufio.Reader
	mu  sync.Mutex // one order, with its answer, at a time
	in  io.WriteCloser
}

func startAgents(dir string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// Real agents have processors of their own: these take what the servers leave.
	p := &process{cmd: exec.Command("nice", "-n", "19", self, "agents", dir)}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	return p, p.cmd.Start()
}

func (p *process) send(o order) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return json.NewEncoder(p.in).Encode(o)
}

// connected asks how many agents are connected.
func (p *process) connected() (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := json.NewEncoder(p.in).Encode(order{Ask: true}); err != nil {
		return 0, err
	}
	_, err = fmt.Fscanln(p.out, &n)
	return n, err
}

func (p *process) stop() error {
	_ = p.in.Close()
	return p.cmd.Wait()
}

// agents is what a process of agents does, until its input ends.
func agents(ctx context.Context, dir string) error {
	ctx, cancel := context.WithCancel(ctx)
	f := &fleet{dir: dir, members: map[nstance.InstanceID]*member{}}
	var err error
	for in := json.NewDecoder(os.Stdin); err == nil; {
		var o order
		if err = in.Decode(&o); err == nil {
			err = f.obey(ctx, o)
		}
	}
	cancel()
	f.running.Wait()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// A fleet is the agents of one process.
type fleet struct {
	dir     string
	running sync.WaitGroup
	members map[nstance.InstanceID]*member
}

// A member is an agent, and what its cloud announces.
type member struct {
	*agent.Agent
	end     context.CancelFunc
	notices chan nstance.Notice
}

func (f *fleet) obey(ctx context.Context, o order) error {
	switch {
	case o.Start != nil:
		return f.start(ctx, *o.Start)
	case o.End != "":
		if m := f.members[o.End]; m != nil {
			m.end()
			delete(f.members, o.End)
		}
	case o.Ask:
		n := 0
		for _, m := range f.members {
			if m.Status().Connected {
				n++
			}
		}
		fmt.Println(n)
	}
	now := time.Now()
	for _, id := range o.Notice {
		f.members[id].notices <- nstance.Notice{
			Kind: nstance.Reclaim, Action: "terminate", Deadline: now.Add(2 * time.Minute), Source: "bench/spot", EventID: string(id), DetectedAt: now,
		}
	}
	return nil
}

func (f *fleet) start(ctx context.Context, m machine) error {
	dir := filepath.Join(f.dir, string(m.ID))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, data := range map[string][]byte{"nonce.jwt": m.Nonce, "ca.crt": m.CA} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return err
		}
	}
	own := &member{notices: make(chan nstance.Notice, 1)}
	var err error
	own.Agent, err = agent.New(&agent.Options{
		InstanceID: m.ID, RegistrationAddrs: m.Registration, AgentAddrs: m.Agent,
		IdentityDir: dir, KeysDir: filepath.Join(dir, "keys"), RecvDir: filepath.Join(dir, "recv"),
		Detector: announcements(own.notices),
		Drain:    func(context.Context, nstance.Drain) (nstance.Outcome, string) { return nstance.OutcomeDrained, "" },
		Dial:     func(ctx context.Context, addr string) (net.Conn, error) { return rig.From(m.Number)(ctx, addr) },
	})
	if err != nil {
		return err
	}
	ctx, own.end = context.WithCancel(ctx)
	f.members[m.ID] = own
	f.running.Go(func() {
		if err := own.Run(ctx); err != nil {
			fmt.Fprintln(os.Stderr, m.ID, err)
		}
	})
	return nil
}

// announcements are a detector.
type announcements chan nstance.Notice

// Interruptible implements nstance.SpotDetector.
func (announcements) Interruptible(context.Context) (bool, error) { return true, nil }

// Watch implements nstance.SpotDetector.
func (a announcements) Watch(ctx context.Context) iter.Seq2[nstance.Notice, error] {
	return func(yield func(nstance.Notice, error) bool) {
		for {
			select {
			case n := <-a:
				if !yield(n, nil) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}
