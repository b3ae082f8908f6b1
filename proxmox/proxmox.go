// Package proxmox makes machines on a cluster of Proxmox VE by cloning a
// template.
//
// A clone takes minutes, a call may not: Create returns as soon as the cluster
// has accepted the clone, and the provider then configures, marks and starts the
// machine in the background until Close. Everything that this needs stands in
// the cluster: the user data in an image that is uploaded before the clone, the
// rest in the machine's notes. A provider that finds a half-made machine when it
// reads one finishes it. docs/design/018-proxmox-identities.md says how a machine
// is recognised, although Proxmox VE uses its IDs again.
//
// Proxmox VE has no spot capacity, no load balancers, no addresses that move, no
// count of a subnet's addresses and no history of a machine's console: the
// provider does not offer these abilities, and refuses market spot.
//
// A [Provider] is safe for concurrent use.
package proxmox

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// The limits and rates that Kind tells of.
const (
	maxUserData = 1 << 20          // bytes; ours: an image may be far larger
	consistency = 20 * time.Second // pvestatd looks every 10 s
	createRate  = 1                // a second; clones of one storage wait for its lock
	createBurst = 10
)

// A Provider makes machines on one cluster. It is safe for concurrent use.
type Provider struct {
	api *api
	o   Options
	log *slog.Logger

	life context.Context // of what goes on in the background
	end  context.CancelFunc
	wg   sync.WaitGroup

	mu    sync.Mutex
	works map[nstance.InstanceID]*work
	busy  map[nstance.InstanceID]chan struct{} // calls that change the machine

	unsearched map[string]bool // nodes that are offline and whose images were logged as left behind
}

var (
	_ nstance.Provider      = (*Provider)(nil)
	_ nstance.Parker        = (*Provider)(nil)
	_ nstance.TypeLister    = (*Provider)(nil)
	_ nstance.NoticeWatcher = (*Provider)(nil)
)

// Kind returns what a composition offers of this provider.
func Kind() provider.Kind {
	return provider.Kind{
		Name:    "proxmox",
		Options: &Options{}, Args: &Args{},
		Check: func(s provider.Settings) error {
			_, err := decodeOptions(s.Options)
			return err
		},
		CheckSpec: func(s provider.Settings, spec nstance.MachineSpec) error {
			o, err := decodeOptions(s.Options)
			if err != nil {
				return err
			}
			_, err = o.plan(spec)
			return err
		},
		Open: func(_ context.Context, s provider.Settings) (nstance.Provider, func() error, error) {
			o, err := decodeOptions(s.Options)
			if err != nil {
				return nil, nil, err
			}
			p, err := New(o, nil, s.Log)
			if err != nil {
				return nil, nil, err
			}
			return p, p.Close, nil
		},
		Park: []nstance.ParkMode{nstance.ParkStopped, nstance.ParkHibernated}, Hosts: true,
		Consistency: consistency, MaxUserData: maxUserData, Rate: createRate, Burst: createBurst,
	}
}

// New returns a provider. It reads the token and asks the cluster nothing. A nil
// transport means one of its own, by the options, a nil log discards. Close it.
func New(o Options, base http.RoundTripper, log *slog.Logger) (*Provider, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	a, err := newAPI(o, base)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p := &Provider{api: a, o: o, log: log, works: map[nstance.InstanceID]*work{}, busy: map[nstance.InstanceID]chan struct{}{}, unsearched: map[string]bool{}}
	p.life, p.end = context.WithCancel(context.Background())
	return p, nil
}

// Close ends what goes on in the background and waits for it. The next provider
// goes on with it.
func (p *Provider) Close() error {
	p.end()
	p.wg.Wait()
	p.api.close()
	return nil
}

// lock waits until no other call changes the machine.
func (p *Provider) lock(ctx context.Context, id nstance.InstanceID) (unlock func(), err error) {
	for ctx.Err() == nil {
		p.mu.Lock()
		held := p.busy[id]
		if held == nil {
			mine := make(chan struct{})
			p.busy[id] = mine
			p.mu.Unlock()
			return func() {
				p.mu.Lock()
				delete(p.busy, id)
				p.mu.Unlock()
				close(mine)
			}, nil
		}
		p.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
		}
	}
	return nil, nstance.Errorf(nstance.Unavailable, "nothing was sent: %w", ctx.Err())
}

func decodeOptions(raw json.RawMessage) (Options, error) {
	var o Options
	if err := provider.DecodeOptions(raw, &o); err != nil {
		return o, err
	}
	return o, o.check()
}
