package proxmox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
	"github.com/nstance-go/nstance/provider/providertest"
	"github.com/nstance-go/nstance/provider/testcloud"
	"github.com/nstance-go/nstance/proxmox"
	"github.com/nstance-go/nstance/proxmox/pvetest"
)

// bench is a cluster on a real socket with a provider.
type bench struct {
	*testing.T
	cloud  *pvetest.Cloud
	server *httptest.Server
	p      *proxmox.Provider
	owner  nstance.Owner
	onCall atomic.Pointer[func(*http.Request)] // called before each call
	refuse atomic.Pointer[refusal]             // calls that are answered in place of the cluster
	static bool                                // machines of crashSpec have a static address
	log    *slog.Logger                        // of providers that are opened; nil: discards
}

// A refusal answers calls whose path contains a text.
type refusal struct {
	path   string
	answer http.HandlerFunc
}

func newBench(t *testing.T, o *pvetest.Options) *bench {
	b := &bench{T: t, cloud: pvetest.New(o), owner: nstance.Owner{Installation: "abc", Cluster: "c1", Shard: "s1", Tenant: "default"}}
	b.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := b.onCall.Load(); f != nil {
			(*f)(r)
		}
		if to := b.refuse.Load(); to != nil && strings.Contains(r.URL.Path, to.path) {
			to.answer(w, r)
			return
		}
		b.cloud.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		b.server.Close()
		require.NoError(t, b.cloud.Close())
	})
	b.p = b.open(proxmox.Options{})
	return b
}

// open returns a fresh provider for the cluster.
func (b *bench) open(o proxmox.Options) *proxmox.Provider {
	b.Helper()
	file := filepath.Join(b.TempDir(), "token")
	require.NoError(b, os.WriteFile(file, []byte("root@pam!test=secret\n"), 0o600))
	if o.TokenFile == "" {
		o.TokenFile = file
	}
	if o.Endpoint == "" {
		o.Endpoint = b.server.URL
	}
	o.PollInterval, o.NoticeInterval = provider.Duration(2*time.Millisecond), provider.Duration(2*time.Millisecond)
	if o.AddressPools == nil {
		o.AddressPools = lan
	}
	if o.InstanceTypes == nil {
		o.InstanceTypes = map[string]proxmox.InstanceType{"small": {Cores: 1, Memory: 1024}}
	}
	p, err := proxmox.New(o, nil, b.log)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, p.Close()) })
	return p
}

func (b *bench) spec() nstance.MachineSpec {
	b.Helper()
	now := time.Now().UTC().Truncate(time.Millisecond)
	id, err := nstance.NewInstanceID("web", now)
	require.NoError(b, err)
	return nstance.MachineSpec{ID: id, Owner: b.owner, Group: "web", CreatedAt: now, Epoch: 3, Arch: nstance.AMD64, InstanceType: "small",
		Args: json.RawMessage(`{"template": 9000}`), UserData: []byte("#cloud-config\n"), Token: string(id) + "-x"}
}

func (b *bench) create(s nstance.MachineSpec) nstance.Machine {
	b.Helper()
	m, err := b.p.Create(b.Context(), s)
	require.NoError(b, err)
	return m
}

// running waits until Get shows the machine running.
func (b *bench) running(p *proxmox.Provider, id nstance.InstanceID) (m nstance.Machine) {
	b.Helper()
	b.status(p, id, nstance.StatusRunning)
	m, err := p.Get(b.Context(), id)
	require.NoError(b, err)
	return m
}

func (b *bench) status(p *proxmox.Provider, id nstance.InstanceID, want nstance.MachineStatus) {
	b.Helper()
	b.eventually(func() bool {
		m, err := p.Get(b.Context(), id)
		return err == nil && m.Status == want
	}, "status never became %s", want)
}

func (b *bench) eventually(try func() bool, msg string, args ...any) {
	b.Helper()
	require.Eventually(b, try, time.Minute, 5*time.Millisecond, fmt.Sprintf(msg, args...))
}

// gone deletes a machine until it is not found.
func (b *bench) gone(p *proxmox.Provider, m nstance.Machine) {
	b.Helper()
	var last error
	require.Eventually(b, func() bool {
		last = p.Delete(b.Context(), m)
		return nstance.CodeOf(last) == nstance.NotFound
	}, time.Minute, 5*time.Millisecond, "never not found")
}

func (b *bench) refused(code nstance.Code, err error) {
	b.Helper()
	require.Error(b, err)
	require.Equal(b, code, nstance.CodeOf(err), "%v", err)
}

func TestProvider(t *testing.T) {
	for name, o := range map[string]pvetest.Options{
		"at once": {},
		"slow": {FirstDisk: 20 * time.Millisecond, Clone: 40 * time.Millisecond, Delays: testcloud.Delays{
			Visible: 30 * time.Millisecond, Start: 5 * time.Millisecond, Stop: 5 * time.Millisecond, Delete: 10 * time.Millisecond}},
	} {
		t.Run(name, func(t *testing.T) {
			providertest.Run(t, func(t *testing.T) providertest.Subject {
				b := newBench(t, &o)
				return providertest.Subject{
					Break: b.cloud.Faults().Outage, Provider: b.p, Park: b.p.ParkModes(),
					Again: func() nstance.Provider { return b.open(proxmox.Options{}) },
					Shape: func(s *nstance.MachineSpec) {
						s.Args, s.InstanceType = json.RawMessage(`{"template": 9000}`), "small"
					},
					UserData: func(ctx context.Context, m nstance.Machine) ([]byte, error) {
						for ctx.Err() == nil {
							if data := b.cloud.UserData(m.ProviderID); data != nil {
								return data, nil
							}
							select {
							case <-ctx.Done():
							case <-time.After(2 * time.Millisecond):
							}
						}
						return nil, ctx.Err()
					},
					BadArgs: map[string]json.RawMessage{
						"template":   json.RawMessage(`{"template": "9000"}`),
						"vmid":       json.RawMessage(`{"template": 9000, "vmid": 100}`),
						"cores":      json.RawMessage(`{"template": 9000, "cores": -1}`),
						"seed_drive": json.RawMessage(`{"template": 9000, "seed_drive": "floppy0"}`),
						"storage":    json.RawMessage(`{"template": 9000, "storage": "local"}`),
					},
					Types: []string{"small"},
				}
			})
		})
	}
}
