//go:build servers

package reconcile_test

import (
	"bytes"
	"context"
	"io"
	"iter"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/test/bufconn"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/testcloud"
)

// dropped is a request that never arrives, by a leader that lives on.
const dropped strike = "its request lost"

// A site is a kind of cloud for which the crash enumeration is run on the wire:
// its provider with the real SDK client, against its test cloud. A new one is a
// function that returns this, and a call of crashOnTheWire.
type site struct {
	cloud interface {
		testcloud.Cloud
		http.Handler
	}
	provider    func(url string, client *http.Client) nstance.Provider
	shape       func(*nstance.MachineSpec) // fills in what the stories leave empty
	balancer    nstance.LoadBalancer       // in place of the stories' own
	setCapacity func(n int)
	lacks       []string // words in the names of stories about what this cloud does not do

	// operation names a request, and says whether it changes anything.
	operation func(r *http.Request, body []byte) (name string, changes bool)
}

// latency is how long a request is on its way.
const latency = 50 * time.Millisecond

// A wired is a site in a bubble.
type wired struct {
	w        *world
	site     *site
	provider nstance.Provider
	close    func()

	pastFaults atomic.Bool // the enumeration itself asks

	mu      sync.Mutex
	existed map[nstance.InstanceID]bool
	guests  map[nstance.InstanceID]*wiredGuest
	handles map[nstance.InstanceID]string
}

var _ outside = (*wired)(nil)

// onTheWire puts a site in place of a world's cloud. newSite is given the
// hypervisor that runs the world's agents.
func onTheWire(newSite func(testcloud.Hypervisor) *site) func(*world) {
	return func(w *world) {
		w.cloud.Close()
		o := &wired{w: w, existed: map[nstance.InstanceID]bool{}, guests: map[nstance.InstanceID]*wiredGuest{}, handles: map[nstance.InstanceID]string{}}
		o.site = newSite(o)
		ln := bufconn.Listen(1 << 20)
		server := &http.Server{Handler: o}
		served := make(chan error, 1)
		go func() { served <- server.Serve(ln) }()
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return ln.DialContext(ctx) }}
		o.provider = o.site.provider("http://cloud.test", &http.Client{Transport: transport})
		o.close = func() {
			if p, ok := o.provider.(io.Closer); ok {
				_ = p.Close()
			}
			transport.CloseIdleConnections()
			_ = server.Close()
			<-served
			_ = o.site.cloud.Close()
		}
		w.outside = o
	}
}

// ServeHTTP takes one request through the seam.
func (o *wired) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	<-time.After(latency)
	effect := func(w http.ResponseWriter) {
		request := r.Clone(context.WithoutCancel(r.Context()))
		request.Body = io.NopCloser(bytes.NewReader(body))
		o.site.cloud.ServeHTTP(w, request)
		o.look()
	}
	if v := o.w.outsideSeam(); v != nil && !o.pastFaults.Load() {
		o.strike(v, r, body, effect)
	}
	effect(w)
}

// strike does what the seam says about a request, and does not return if it is
// not to be answered.
func (o *wired) strike(v *view, r *http.Request, body []byte, effect func(http.ResponseWriter)) {
	what, changes := o.site.operation(r, body)
	if changes {
		what = "send " + what
	} else {
		what = "ask " + what
	}
	_, with := v.meet(what)
	discard := func() { effect(discarded{}) }
	switch with {
	case none:
		return
	case before:
		v.kill()
	case after:
		discard()
		v.kill()
	case lost:
		discard()
	case late:
		v.kill()
		v.land(3*time.Second, func(context.Context) error { discard(); return nil })
	}
	panic(http.ErrAbortHandler)
}

type discarded http.Header

func (d discarded) Header() http.Header       { return http.Header(d) }
func (discarded) Write(b []byte) (int, error) { return len(b), nil }
func (discarded) WriteHeader(int)             {}

// outsideSeam returns the last leader's view, if a seam is in place.
func (w *world) outsideSeam() *view {
	w.mu.Lock()
	s, _ := w.watched.(*seam)
	w.mu.Unlock()
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// look remembers which machines there have been.
func (o *wired) look() {
	s, _ := o.w.watched.(*seam)
	for _, m := range o.Machines() {
		o.mu.Lock()
		o.existed[m.ID], o.handles[m.ID] = true, m.ProviderID
		o.mu.Unlock()
		if s != nil {
			s.mu.Lock()
			s.made[m.ID] = true
			s.mu.Unlock()
		}
	}
}

func (o *wired) Machines() []nstance.Machine {
	var out []nstance.Machine
	for _, m := range o.site.cloud.Machines() {
		out = append(out, nstance.Machine{ID: m.ID, ProviderID: m.Handle, Status: m.Status})
	}
	return out
}

// leftovers returns what the cloud still keeps of machines that are gone, where
// it can tell that: interfaces and disks, each as its kind and a name that begins
// with the instance ID.
func (o *wired) leftovers() (out []string) {
	c, ok := o.site.cloud.(interface{ Left() []string })
	if !ok {
		return nil
	}
	machines := o.Machines()
	for _, thing := range c.Left() {
		_, name, _ := strings.Cut(thing, " ")
		if !slices.ContainsFunc(machines, func(m nstance.Machine) bool { return strings.HasPrefix(name, string(m.ID)) }) {
			out = append(out, thing)
		}
	}
	return out
}

func (o *wired) Existed(id nstance.InstanceID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.existed[id]
}

func (o *wired) handle(id nstance.InstanceID) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.handles[id]
}

func (o *wired) Reclaim(id nstance.InstanceID, notice time.Duration) error {
	return o.site.cloud.Reclaim(o.handle(id), notice)
}

func (o *wired) Withdraw(nstance.InstanceID) error { panic("clouds do not withdraw a reclaim") }
func (o *wired) Kill(id nstance.InstanceID) error  { return o.site.cloud.Fail(o.handle(id)) }
func (o *wired) SetCapacity(n int)                 { o.site.setCapacity(n) }
func (o *wired) Severed() []nstance.InstanceID     { return nil }
func (o *wired) Close()                            { o.close() }

func (o *wired) Balanced(string) []string {
	o.pastFaults.Store(true)
	defer o.pastFaults.Store(false)
	members, err := o.BalancerMembers(o.w.ctx, nstance.LoadBalancer{})
	require.NoError(o.w.t, err)
	return members
}

// Account is that of the provider, if it has one.
func (o *wired) Account(ctx context.Context) (string, error) {
	if namer, ok := o.provider.(nstance.AccountNamer); ok {
		return namer.Account(ctx)
	}
	return "nameless", nil
}

func (o *wired) Create(ctx context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
	o.site.shape(&s)
	m, err := o.provider.Create(ctx, s)
	return asAsked(m), err
}

// asAsked shows a machine in the market that the stories ask for, also where
// shape has asked for another one.
func asAsked(m nstance.Machine) nstance.Machine {
	m.Market = nstance.Spot
	return m
}

func (o *wired) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	m, err := o.provider.Get(ctx, id)
	return asAsked(m), err
}

func (o *wired) Delete(ctx context.Context, m nstance.Machine) error {
	return o.provider.Delete(ctx, m)
}

func (o *wired) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		for m, err := range o.provider.List(ctx, owner) {
			if !yield(asAsked(m), err) {
				return
			}
		}
	}
}

func (o *wired) BalancerMembers(ctx context.Context, _ nstance.LoadBalancer) ([]string, error) {
	return o.provider.(nstance.Balancer).BalancerMembers(ctx, o.site.balancer)
}

func (o *wired) JoinBalancer(ctx context.Context, _ nstance.LoadBalancer, machines []nstance.Machine) error {
	return o.provider.(nstance.Balancer).JoinBalancer(ctx, o.site.balancer, machines)
}

func (o *wired) LeaveBalancer(ctx context.Context, _ nstance.LoadBalancer, machines []nstance.Machine) error {
	return o.provider.(nstance.Balancer).LeaveBalancer(ctx, o.site.balancer, machines)
}

// A wiredGuest is an agent in a machine.
type wiredGuest struct {
	id     nstance.InstanceID
	cancel context.CancelFunc

	notices chan nstance.Notice
}

// Start implements [testcloud.Hypervisor].
func (o *wired) Start(b testcloud.Boot) (testcloud.Guest, error) {
	ctx, cancel := context.WithCancel(context.Background())
	g := &wiredGuest{id: b.ID, cancel: cancel, notices: make(chan nstance.Notice, 8)}
	o.mu.Lock()
	o.guests[b.ID] = g
	o.mu.Unlock()
	o.w.agents.Go(func() { o.w.agent(ctx, b.ID, nstance.MachineSpec{ID: b.ID}) })
	return g, nil
}

func (g *wiredGuest) Announce(action string, at time.Time) {
	g.notices <- nstance.Notice{
		Kind: nstance.Reclaim, Action: action, Deadline: at, Source: "test", EventID: string(g.id) + "/" + action, DetectedAt: time.Now(),
	}
}

func (g *wiredGuest) Withdraw() { panic("clouds do not withdraw a reclaim") }
func (g *wiredGuest) Kill()     { g.cancel() }

func (o *wired) Notices(ctx context.Context, id nstance.InstanceID) iter.Seq2[nstance.Notice, error] {
	o.mu.Lock()
	g := o.guests[id]
	o.mu.Unlock()
	return func(yield func(nstance.Notice, error) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case n := <-g.notices:
				if !yield(n, nil) {
					return
				}
			}
		}
	}
}

// crashOnTheWire tells the stories with each request to the cloud struck in
// turn.
func crashOnTheWire(t *testing.T, newSite func(testcloud.Hypervisor) *site) {
	lacks := append(newSite(nil).lacks, "withdrawn") // which no cloud does
	for _, y := range stories {
		if slices.ContainsFunc(lacks, func(word string) bool { return strings.Contains(y.name, word) }) {
			continue
		}
		t.Run(y.name, func(t *testing.T) {
			t.Parallel()
			plain := toldOn(t, y, label{}, none, onTheWire(newSite))
			struck, aimed := 0, 0
			for _, aim := range plain.calls {
				for _, with := range wireStrikes(aim) {
					t.Run(aim.String()+", "+string(with), func(t *testing.T) {
						s := toldOn(t, y, aim, with, onTheWire(newSite))
						aimed++
						if s.struck {
							struck++
						}
						compareOnTheWire(t, y, plain, s)
					})
				}
			}
			t.Logf("%d of %d injections struck", struck, aimed)
			require.GreaterOrEqual(t, float64(struck), 0.95*float64(aimed), "most injections struck")
		})
	}
}

// compareOnTheWire checks that a story with a strike took no more machines than
// without.
func compareOnTheWire(t *testing.T, y story, plain, s *seam) {
	most := len(plain.made)
	if s.with == late {
		most++ // what is on its way cannot be stopped; it is gone by now
	}
	require.LessOrEqual(t, len(s.made), most, "no more machines than without the strike")
	if !y.moody {
		require.GreaterOrEqual(t, len(s.made), len(plain.made), "nor fewer")
	}
}

// wireStrikes are the ways to hit a request.
func wireStrikes(l label) []strike {
	switch kind, _, _ := strings.Cut(l.what, " "); kind {
	case "send":
		return []strike{before, after, dropped, lost, late}
	case "ask":
		return []strike{before, lost}
	}
	return nil // the store's, which the enumeration in memory strikes
}
