package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/bench/internal/rig"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/internal/session"
	"github.com/nstance-go/nstance/internal/sleep"
)

// settleTime is how long a process gets for its start, and the agent for its drain to
// be under way, before it is measured.
const settleTime = 5 * time.Second

// A bench is a server with one machine, and the two programs that are compared.
type bench struct {
	rig.Changes
	dir          string
	rig          *rig.Rig
	cloud        *imds.Server
	stops        []func()
	agent, floor *exec.Cmd
	beside       *exec.Cmd // nil: none
	ready        bool
	draining     bool
}

func start(ctx context.Context, protocol, beside string) (b *bench, err error) {
	b = &bench{cloud: imds.New(&imds.Options{Protocol: protocol, Spot: true, RequireToken: protocol == imds.AWS})}
	defer func() {
		if err != nil {
			b.stop()
		}
	}()
	if b.dir, err = os.MkdirTemp("", "nstance-bench-"); err != nil {
		return b, err
	}
	for name, pkg := range map[string]string{"nstance-agent": "cmd/nstance-agent", "floor": "bench/agent/floor"} {
		build := exec.CommandContext(ctx, "go", "build", "-tags", "grpcnotrace", "-trimpath", "-ldflags", "-s -w", "-o", b.path(name), "github.com/nstance-go/nstance/"+pkg)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := build.CombinedOutput(); err != nil {
			return b, fmt.Errorf("build %s: %w: %s", pkg, err, text)
		}
	}
	if b.rig, err = rig.Start(ctx, rig.Options{Machines: 1, Journal: b.journal}); err != nil {
		return b, err
	}
	if err := b.startFloor(ctx); err != nil {
		return b, err
	}
	metadata, err := b.serveMetadata(ctx)
	if err != nil {
		return b, err
	}
	if err := b.startAgent(ctx, protocol, metadata); err != nil {
		return b, err
	}
	if beside != "" {
		if b.beside, err = b.run(ctx, append(os.Environ(), "INSTANCE_METADATA_URL="+metadata), beside); err != nil {
			return b, err
		}
	}
	if err := b.Wait(ctx, func() bool { return b.ready }); err != nil {
		return b, fmt.Errorf("the agent did not become ready: %w", err)
	}
	return b, nil
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

// journal is called by the server.
func (b *bench) journal(e nstance.Event) {
	switch e.Type {
	case nstance.EventReady:
		b.Do(func() { b.ready = true })
	case nstance.EventDrainStarted:
		b.Do(func() { b.draining = true })
	}
}

func (b *bench) stop() {
	for i := len(b.stops) - 1; i >= 0; i-- {
		b.stops[i]()
	}
	if b.rig != nil {
		_ = b.rig.Stop()
	}
	_ = os.RemoveAll(b.dir)
}

// startFloor runs the program that is only a gRPC client, and a server for it.
func (b *bench) startFloor(ctx context.Context) error {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(session.Enforcement()))
	go server.Serve(ln) //nolint:errcheck // it ends with Stop
	b.stops = append(b.stops, server.Stop)
	b.floor, err = b.run(ctx, nil, b.path("floor"), ln.Addr().String())
	return err
}

// serveMetadata starts the machine's metadata service and returns its URL.
func (b *bench) serveMetadata(ctx context.Context) (url string, err error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	web := &http.Server{Handler: b.cloud, ReadHeaderTimeout: time.Minute}
	go web.Serve(ln) //nolint:errcheck // it ends with Close
	b.stops = append(b.stops, func() { _ = web.Close() })
	return "http://" + ln.Addr().String(), nil
}

// startAgent runs the agent of the machine, with a hook that hangs.
func (b *bench) startAgent(ctx context.Context, protocol, metadata string) (err error) {
	spec, identity := b.rig.Specs[0], b.path("identity")
	if err := os.Mkdir(identity, 0o700); err != nil {
		return err
	}
	for name, data := range map[string][]byte{"nonce.jwt": spec.UserData, "ca.crt": b.rig.Keys.Identity.CertPEM()} {
		if err := os.WriteFile(filepath.Join(identity, name), data, 0o600); err != nil {
			return err
		}
	}
	addrs := b.rig.Server.Addresses()
	b.agent, err = b.run(ctx, []string{
		"NSTANCE_INSTANCE_ID=" + string(spec.ID), "NSTANCE_SERVER_REGISTRATION_ADDR=" + addrs.Registration, "NSTANCE_SERVER_AGENT_ADDR=" + addrs.Agent,
		"NSTANCE_IDENTITY_DIR=" + identity, "NSTANCE_KEYS_DIR=" + b.path("keys"), "NSTANCE_RECV_DIR=" + b.path("recv"),
		"NSTANCE_PROVIDER=" + protocol, "NSTANCE_METADATA_URL=" + metadata, "NSTANCE_DRAIN_HOOK=/bin/sleep 600",
	}, b.path("nstance-agent"))
	return err
}

// run starts a process that ends with the bench.
func (b *bench) run(ctx context.Context, env []string, path string, args ...string) (*exec.Cmd, error) {
	ctx, end := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = env
	in, err := cmd.StdinPipe() // the floor ends with it
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		end()
		return nil, err
	}
	b.stops = append(b.stops, func() {
		_ = in.Close()
		end()
		_ = cmd.Wait()
	})
	return cmd, nil
}

// measureIdle measures all processes over the same time: the floor, the agent, and the
// other program if there is one.
func (b *bench) measureIdle(ctx context.Context, d time.Duration) (used []usage, err error) {
	sleep.For(ctx, settleTime)
	processes := []*exec.Cmd{b.floor, b.agent}
	if b.beside != nil {
		processes = append(processes, b.beside)
	}
	before := make([]time.Duration, len(processes))
	for i, p := range processes {
		if before[i], err = rig.ProcessorTime(p.Process.Pid); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	sleep.For(ctx, d)
	used = make([]usage, len(processes))
	for i, p := range processes {
		if used[i], err = b.usageSince(p, before[i], began); err != nil {
			return nil, err
		}
	}
	return used, ctx.Err()
}

// measureDrain measures the agent while its hook runs.
func (b *bench) measureDrain(ctx context.Context) (u usage, err error) {
	before, err := rig.ProcessorTime(b.agent.Process.Pid)
	if err != nil {
		return u, err
	}
	began := time.Now()
	b.cloud.Reclaim("terminate", time.Now().Add(2*time.Minute))
	if err := b.Wait(ctx, func() bool { return b.draining }); err != nil {
		return u, errors.Join(errors.New("no drain started"), err)
	}
	sleep.For(ctx, settleTime)
	return b.usageSince(b.agent, before, began)
}

func (*bench) usageSince(p *exec.Cmd, before time.Duration, began time.Time) (u usage, err error) {
	after, err := rig.ProcessorTime(p.Process.Pid)
	if err != nil {
		return u, err
	}
	u.CPU = 100 * float64(after-before) / float64(time.Since(began))
	resident, err := rig.ResidentBytes(p.Process.Pid)
	u.Resident = mib(resident)
	return u, err
}

func (b *bench) programSize() (float64, error) {
	info, err := os.Stat(b.path("nstance-agent"))
	if err != nil {
		return 0, err
	}
	return mib(int(info.Size())), nil
}
