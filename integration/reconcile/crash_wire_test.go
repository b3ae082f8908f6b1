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
	"github.com/nstance-go/nstance/provider/testcloud"
)

// dropped is a request that never arrives; the leader continues.
const dropped strike = "its request lost"

// A site is a cloud for which the crash enumeration runs over HTTP: its provider with
// the real SDK client, against its test cloud.
type site struct {
	cloud       siteCloud
	provider    func(url string, client *http.Client) nstance.Provider
	shape       func(*nstance.MachineSpec) // sets the fields that the stories leave empty
	balancer    nstance.LoadBalancer       // replaces the load balancer of the stories
	setCapacity func(n int)
	capacity    *testcloud.Capacity // of shapes, where it can be set for each
	unsupported []string            // substrings of the names of stories that the cloud does not support

	front func(http.Handler) http.Handler // stands before the cloud; may be nil

	// operation names a request and reports whether it mutates.
	operation func(r *http.Request, body []byte) (name string, changes bool)
}

// A siteCloud is a test cloud that speaks HTTP.
type siteCloud interface {
	testcloud.Cloud
	http.Handler
}

// latency is the duration of a request.
const latency = 50 * time.Millisecond

// wireCloud is a site in a bubble.
type wireCloud struct {
	w        *world
	site     *site
	provider nstance.Provider
	close    func()

	pastFaults atomic.Bool // requests of the test itself

	mu      sync.Mutex
	existed map[nstance.InstanceID]bool
	guests  map[nstance.InstanceID]*wiredGuest
	handles map[nstance.InstanceID]string
}

var _ outside = (*wireCloud)(nil)

// overHTTP replaces a world's cloud by a site. newSite is given the hypervisor that
// runs the world's agents.
func overHTTP(newSite func(testcloud.Hypervisor) *site) func(*world) {
	return func(w *world) {
		w.cloud.Close()
		o := &wireCloud{w: w, existed: map[nstance.InstanceID]bool{}, guests: map[nstance.InstanceID]*wiredGuest{}, handles: map[nstance.InstanceID]string{}}
		o.site = newSite(o)
		ln := bufconn.Listen(1 << 20)
		var connections sync.WaitGroup // Close does not wait for what they serve
		server := &http.Server{Handler: o, ConnState: func(_ net.Conn, s http.ConnState) {
			switch s {
			case http.StateNew:
				connections.Add(1)
			case http.StateClosed, http.StateHijacked:
				connections.Done()
			}
		}}
		if o.site.front != nil {
			server.Handler = o.site.front(o)
		}
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
			connections.Wait()
			_ = o.site.cloud.Close()
		}
		w.outside = o
	}
}

// ServeHTTP passes one request through the seam.
func (o *wireCloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	<-time.After(latency)
	effect := func(w http.ResponseWriter) {
		request := r.Clone(context.WithoutCancel(r.Context()))
		request.Body = io.NopCloser(bytes.NewReader(body))
		o.site.cloud.ServeHTTP(w, request)
		o.recordMachines()
	}
	if v := o.w.outsideSeam(); v != nil && !o.pastFaults.Load() {
		o.strike(v, r, body, effect)
	}
	effect(w)
}

// strike applies the seam's strike to a request. It does not return if the request must
// not be answered.
func (o *wireCloud) strike(v *view, r *http.Request, body []byte, effect func(http.ResponseWriter)) {
	what, changes := o.site.operation(r, body)
	if changes {
		what = "send " + what
	} else {
		what = "ask " + what
	}
	_, with := v.number(what)
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
		v.executeLate(3*time.Second, func(context.Context) error { discard(); return nil })
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
	s, _ := w.watch.(*seam)
	w.mu.Unlock()
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// recordMachines records the machines that have existed.
func (o *wireCloud) recordMachines() {
	s, _ := o.w.watch.(*seam)
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

func (o *wireCloud) Machines() []nstance.Machine {
	var out []nstance.Machine
	for _, m := range o.site.cloud.Machines() {
		out = append(out, nstance.Machine{ID: m.ID, ProviderID: m.Handle, Status: m.Status})
	}
	return out
}

// leftovers returns the interfaces and disks of machines that are gone, where the cloud
// can list them: each as its kind and a name that begins with the instance ID.
func (o *wireCloud) leftovers() (out []string) {
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

func (o *wireCloud) Existed(id nstance.InstanceID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.existed[id]
}

func (o *wireCloud) handle(id nstance.InstanceID) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.handles[id]
}

func (o *wireCloud) Reclaim(id nstance.InstanceID, notice time.Duration) error {
	return o.site.cloud.Reclaim(o.handle(id), notice)
}

func (o *wireCloud) Withdraw(nstance.InstanceID) error        { panic("clouds do not withdraw a reclaim") }
func (o *wireCloud) Kill(id nstance.InstanceID) error         { return o.site.cloud.Fail(o.handle(id)) }
func (o *wireCloud) SetCapacity(n int)                        { o.site.setCapacity(n) }
func (o *wireCloud) DeletedWhileMember() []nstance.InstanceID { return nil }
func (o *wireCloud) Close()                                   { o.close() }

func (o *wireCloud) AttachedTo(string) []string {
	o.pastFaults.Store(true)
	defer o.pastFaults.Store(false)
	members, err := o.BalancerMembers(o.w.ctx, nstance.LoadBalancer{})
	require.NoError(o.w.t, err)
	return members
}

// Account is that of the provider, if it has one.
func (o *wireCloud) Account(ctx context.Context) (string, error) {
	if namer, ok := o.provider.(nstance.AccountNamer); ok {
		return namer.Account(ctx)
	}
	return "nameless", nil
}

func (o *wireCloud) Create(ctx context.Context, s nstance.MachineSpec) (nstance.Machine, error) {
	o.site.shape(&s)
	m, err := o.provider.Create(ctx, s)
	return withStoryMarket(m), err
}

// withStoryMarket shows a machine in the market of the story, also where shape has changed it.
func withStoryMarket(m nstance.Machine) nstance.Machine {
	m.Market = nstance.Spot
	return m
}

func (o *wireCloud) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	m, err := o.provider.Get(ctx, id)
	return withStoryMarket(m), err
}

func (o *wireCloud) Delete(ctx context.Context, m nstance.Machine) error {
	return o.provider.Delete(ctx, m)
}

func (o *wireCloud) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return func(yield func(nstance.Machine, error) bool) {
		for m, err := range o.provider.List(ctx, owner) {
			if !yield(withStoryMarket(m), err) {
				return
			}
		}
	}
}

func (o *wireCloud) BalancerMembers(ctx context.Context, _ nstance.LoadBalancer) ([]string, error) {
	return o.provider.(nstance.Balancer).BalancerMembers(ctx, o.site.balancer)
}

func (o *wireCloud) JoinBalancer(ctx context.Context, _ nstance.LoadBalancer, machines []nstance.Machine) error {
	return o.provider.(nstance.Balancer).JoinBalancer(ctx, o.site.balancer, machines)
}

func (o *wireCloud) LeaveBalancer(ctx context.Context, _ nstance.LoadBalancer, machines []nstance.Machine) error {
	return o.provider.(nstance.Balancer).LeaveBalancer(ctx, o.site.balancer, machines)
}

// wiredGuest is an agent in a machine.
type wiredGuest struct {
	id     nstance.InstanceID
	cancel context.CancelFunc

	notices chan nstance.Notice
}

// Start implements [testcloud.Hypervisor].
func (o *wireCloud) Start(b testcloud.Boot) (testcloud.Guest, error) {
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

func (o *wireCloud) Notices(ctx context.Context, id nstance.InstanceID) iter.Seq2[nstance.Notice, error] {
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

// crashOverHTTP runs the stories with each request to the cloud struck in turn.
func crashOverHTTP(t *testing.T, newSite func(testcloud.Hypervisor) *site) {
	lacks := append(newSite(nil).unsupported, "withdrawn") // on every cloud
	for _, y := range stories {
		if slices.ContainsFunc(lacks, func(word string) bool { return strings.Contains(y.name, word) }) {
			continue
		}
		t.Run(y.name, func(t *testing.T) {
			t.Parallel()
			plain := runStoryOn(t, y, label{}, none, overHTTP(newSite))
			struck, aimed := 0, 0
			for _, aim := range plain.calls {
				for _, with := range wireStrikes(aim) {
					t.Run(aim.String()+", "+string(with), func(t *testing.T) {
						s := runStoryOn(t, y, aim, with, overHTTP(newSite))
						aimed++
						if s.struck {
							struck++
						}
						compareOverHTTP(t, y, plain, s)
					})
				}
			}
			t.Logf("%d of %d injections struck", struck, aimed)
			require.GreaterOrEqual(t, float64(struck), 0.95*float64(aimed), "most injections struck")
		})
	}
}

// compareOverHTTP checks that a story with a strike created no more machines than
// without.
func compareOverHTTP(t *testing.T, y story, plain, s *seam) {
	most := len(plain.made)
	if s.with == late {
		most++ // a request in flight cannot be stopped; its machine is gone by now
	}
	require.LessOrEqual(t, len(s.made), most, "no more machines than without the strike")
	if !y.timingDependent {
		require.GreaterOrEqual(t, len(s.made), len(plain.made), "no fewer either")
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
	return nil // store calls: struck by the enumeration in memory
}
