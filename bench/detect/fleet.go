package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/agent"
	"github.com/nstance-go/nstance/bench/internal/rig"
	"github.com/nstance-go/nstance/internal/imds"
)

// A fleet is every machine's agent and metadata service.
type fleet struct {
	dir    string
	clouds map[nstance.InstanceID]*imds.Server
	web    []*http.Server
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	errs   []error
}

// newFleet starts an agent for every machine of the rig.
func newFleet(ctx context.Context, r *rig.Rig, protocol string, poll time.Duration) (*fleet, error) {
	dir, err := os.MkdirTemp("", "nstance-bench-")
	if err != nil {
		return nil, err
	}
	f := &fleet{dir: dir, clouds: map[nstance.InstanceID]*imds.Server{}}
	ctx, f.cancel = context.WithCancel(ctx)
	for i, spec := range r.Specs {
		if err := f.add(ctx, r, i, spec, &agent.Options{Provider: protocol, SpotPollInterval: poll}); err != nil {
			return nil, errors.Join(err, f.stop())
		}
	}
	return f, nil
}

func (f *fleet) add(ctx context.Context, r *rig.Rig, n int, spec nstance.MachineSpec, o *agent.Options) error {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	cloud := imds.New(&imds.Options{Protocol: o.Provider, Spot: true, RequireToken: o.Provider == imds.AWS})
	web := &http.Server{Handler: cloud, ReadHeaderTimeout: time.Minute}
	f.clouds[spec.ID], f.web = cloud, append(f.web, web)
	f.wg.Go(func() { f.failed(web.Serve(lis)) })

	addrs, dir := r.Server.Addresses(), filepath.Join(f.dir, string(spec.ID))
	o.InstanceID, o.MetadataURL, o.Dial = spec.ID, "http://"+lis.Addr().String(), rig.From(n)
	o.RegistrationAddrs, o.AgentAddrs = []string{addrs.Registration}, []string{addrs.Agent}
	o.IdentityDir, o.KeysDir, o.RecvDir = dir, filepath.Join(dir, "keys"), filepath.Join(dir, "recv")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, data := range map[string][]byte{"nonce.jwt": spec.UserData, "ca.crt": r.Keys.Identity.CertPEM()} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return err
		}
	}
	a, err := agent.New(o)
	if err != nil {
		return err
	}
	f.wg.Go(func() { f.failed(a.Run(ctx)) })
	return nil
}

func (f *fleet) failed(err error) {
	if err == nil || errors.Is(err, http.ErrServerClosed) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs = append(f.errs, err)
}

// stop ends everything and returns what went wrong meanwhile.
func (f *fleet) stop() error {
	f.cancel()
	for _, w := range f.web {
		f.failed(w.Close())
	}
	f.wg.Wait()
	return errors.Join(append(f.errs, os.RemoveAll(f.dir))...)
}
