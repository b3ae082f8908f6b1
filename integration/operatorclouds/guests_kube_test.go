//go:build kube

package operatorclouds_test

import (
	"path"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nstance-go/nstance/agent"
	"github.com/nstance-go/nstance/internal/test/shardtest"
	"github.com/nstance-go/nstance/provider/testcloud"
	"github.com/nstance-go/nstance/spot/spottest"
)

// A hypervisor runs a real agent in each machine of a test cloud, with the detector of that
// cloud and a metadata service to read.
type hypervisor struct {
	*testing.T
	provider string
	shard    atomic.Pointer[shardtest.Shard]
	noNotice atomic.Bool // the cloud announces nothing
}

// Start implements testcloud.Hypervisor.
func (h *hypervisor) Start(b testcloud.Boot) (testcloud.Guest, error) {
	service := spottest.NewServer(h.T, &spottest.Options{Protocol: h.provider, Spot: b.Spot, InstanceID: path.Base(b.Handle), Zone: b.Zone, RequireToken: true})
	stop, err := h.shard.Load().StartAgent(b.UserData, agent.Options{
		InstanceID: b.ID, Provider: h.provider, MetadataURL: service.URL, SpotPollInterval: 100 * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	h.Cleanup(stop) // before the service that it reads
	return &guest{h, service, stop}, nil
}

// A guest is what runs in one machine.
type guest struct {
	hypervisor *hypervisor
	service    *spottest.Server
	stop       func()
}

// Announce implements testcloud.Guest.
func (g *guest) Announce(action string, at time.Time) {
	if !g.hypervisor.noNotice.Load() {
		g.service.Reclaim(action, at)
	}
}

// Withdraw implements testcloud.Guest.
func (g *guest) Withdraw() { g.service.Withdraw() }

// Kill implements testcloud.Guest.
func (g *guest) Kill() { g.stop() }
