// Package machines is what the providers share whose machines run on this host: it
// keeps the machines of one cloud, finds them by ID, handle and marks, gives each a
// folder and a metadata service, and announces reclaims there. What a machine is, a
// process or a virtual machine, is the provider's.
package machines

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/provider"
)

// A Machine is a provider's machine. It embeds a [Part].
type Machine interface {
	comparable
	Base() *Part

	// Create begins the machine, until Stop is called at most. If it fails, it has
	// called [Set.Remove].
	Create() error

	// Stop requests the end of the machine, after which the provider calls
	// [Set.Remove]. It does not block and may be called again. The caller holds
	// the set's lock.
	Stop()
}

// Options are the same for all machines of a set.
type Options struct {
	Root        string // folder of the machines' folders
	Prefix      string // of handles
	Zone        string
	Address     netip.Addr // of every machine
	Protocol    string     // of the metadata services
	MaxMachines int        // 0: no limit
}

// A Set holds the machines of one cloud. It is safe for concurrent use. Its lock
// guards the views, and what the provider guards with it.
type Set[M Machine] struct {
	sync.Mutex
	o        Options
	running  sync.WaitGroup
	closed   bool
	handles  int
	byID     map[nstance.InstanceID]M
	byHandle map[string]M
}

// New returns a set without machines.
func New[M Machine](o Options) *Set[M] {
	return &Set[M]{o: o, byID: map[nstance.InstanceID]M{}, byHandle: map[string]M{}}
}

// A Name replaces what a set chooses for a machine.
type Name struct{ Handle, Zone string }

// Create returns the machine of spec, or creates the one that add returns. It returns
// when the machine's Create has, and fails with Ambiguous when ctx ends before: the
// machine is created all the same. Fails
// with Conflict when the machine exists with other parameters, Capacity when the set is
// full, Unavailable when it is closed.
func (s *Set[M]) Create(ctx context.Context, spec nstance.MachineSpec, name Name, add func(*Part) M) (nstance.Machine, error) {
	m, fresh, err := s.findOrAdd(ctx, spec, name, add)
	if err != nil {
		return nstance.Machine{}, err
	}
	p := m.Base()
	if fresh {
		s.Go(func() {
			p.createErr = m.Create()
			close(p.created)
		})
	}
	select {
	case <-p.created:
	case <-ctx.Done():
		return nstance.Machine{}, nstance.Errorf(nstance.Ambiguous, "machine %s is being created: %w", spec.ID, ctx.Err())
	}
	if p.createErr != nil {
		return nstance.Machine{}, p.createErr
	}
	s.Lock()
	defer s.Unlock()
	return p.snapshot(), nil
}

func (s *Set[M]) findOrAdd(ctx context.Context, spec nstance.MachineSpec, name Name, add func(*Part) M) (m M, fresh bool, err error) {
	s.Lock()
	defer s.Unlock()
	if err := s.Available(ctx); err != nil {
		return m, false, err
	}
	if m, ok := s.byID[spec.ID]; ok {
		if m.Base().fingerprint != provider.Fingerprint(spec) {
			return m, false, nstance.Errorf(nstance.Conflict, "machine %s exists with other parameters", spec.ID)
		}
		return m, false, nil
	}
	if most := s.o.MaxMachines; most > 0 && len(s.byID) >= most {
		return m, false, nstance.Errorf(nstance.Capacity, "there are %d machines already, the number that option max_machines permits", most)
	}
	p := s.newPart(spec, name)
	m = add(p)
	s.byID[spec.ID], s.byHandle[p.View.ProviderID] = m, m
	s.running.Add(1) // until Remove
	return m, true, nil
}

func (s *Set[M]) newPart(spec nstance.MachineSpec, name Name) *Part {
	s.handles++
	view := nstance.Machine{
		ID: spec.ID, ProviderID: cmp.Or(name.Handle, fmt.Sprintf("%s-%d", s.o.Prefix, s.handles)), Owner: spec.Owner, Group: spec.Group,
		CreatedAt: spec.CreatedAt, Epoch: spec.Epoch, Status: nstance.StatusPending, InstanceType: spec.InstanceType,
		Zone: cmp.Or(name.Zone, s.o.Zone), Market: cmp.Or(spec.Market, nstance.OnDemand), Addresses: []netip.Addr{s.o.Address},
	}
	service := &imds.Options{Protocol: s.o.Protocol, Spot: view.Market == nstance.Spot, InstanceID: view.ProviderID, Zone: view.Zone}
	if len(spec.UserData) > 0 {
		service.UserData = spec.UserData
	}
	return &Part{
		View: view, Dir: filepath.Join(s.o.Root, string(spec.ID)), Metadata: imds.New(service), Reclaims: make(chan time.Time, 1),
		fingerprint: provider.Fingerprint(spec), running: &s.running, created: make(chan struct{}),
	}
}

// Available fails with Unavailable when the set is closed or ctx has ended. The caller
// holds the lock.
func (s *Set[M]) Available(ctx context.Context) error {
	if ctx.Err() != nil {
		return nstance.Errorf(nstance.Unavailable, "nothing was done: %w", ctx.Err())
	}
	if s.closed {
		return nstance.Errorf(nstance.Unavailable, "the cloud is closed")
	}
	return nil
}

// Get is the provider's Get.
func (s *Set[M]) Get(ctx context.Context, id nstance.InstanceID) (nstance.Machine, error) {
	s.Lock()
	defer s.Unlock()
	if err := s.Available(ctx); err != nil {
		return nstance.Machine{}, err
	}
	m, ok := s.byID[id]
	if !ok {
		return nstance.Machine{}, nstance.Errorf(nstance.NotFound, "no machine %.64s", id)
	}
	return m.Base().snapshot(), nil
}

// List is the provider's List.
func (s *Set[M]) List(ctx context.Context, owner nstance.Owner) iter.Seq2[nstance.Machine, error] {
	return provider.ListOf(ctx, func() ([]nstance.Machine, error) { return s.owned(ctx, owner) })
}

func (s *Set[M]) owned(ctx context.Context, owner nstance.Owner) ([]nstance.Machine, error) {
	s.Lock()
	defer s.Unlock()
	if err := s.Available(ctx); err != nil {
		return nil, err
	}
	var out []nstance.Machine
	for _, m := range s.byID {
		if p := m.Base(); owner.Owns(p.View.Owner) {
			out = append(out, p.snapshot())
		}
	}
	return out, nil
}

// Delete is the provider's Delete: it stops the machine.
func (s *Set[M]) Delete(ctx context.Context, want nstance.Machine) error {
	s.Lock()
	defer s.Unlock()
	m, err := s.Find(ctx, want)
	if err != nil {
		return err
	}
	m.Stop()
	return nil
}

// Find returns the machine that want names by its handle or, without one, by its ID.
// Fails with Conflict when it does not carry want's marks. The caller holds the lock.
func (s *Set[M]) Find(ctx context.Context, want nstance.Machine) (m M, err error) {
	if err := s.Available(ctx); err != nil {
		return m, err
	}
	found, ok := s.byHandle[want.ProviderID]
	if want.ProviderID == "" {
		found, ok = s.byID[want.ID]
	}
	if !ok {
		return m, nstance.Errorf(nstance.NotFound, "no machine %s %s", want.ProviderID, want.ID)
	}
	if v := found.Base().View; v.ID != want.ID || v.Owner != want.Owner {
		return m, nstance.Errorf(nstance.Conflict, "machine %s is %s of %+v", want.ProviderID, v.ID, v.Owner)
	}
	return found, nil
}

// ByID returns the machine with this ID, if there is one. The caller holds the lock.
func (s *Set[M]) ByID(id nstance.InstanceID) (m M, ok bool) {
	m, ok = s.byID[id]
	return m, ok
}

// Living returns the machine with this ID. Fails with NotFound when there is none,
// Conflict when it has ended or is ending. The caller holds the lock.
func (s *Set[M]) Living(id nstance.InstanceID) (m M, err error) {
	found, ok := s.byID[id]
	if !ok {
		return m, nstance.Errorf(nstance.NotFound, "no machine %.64s", id)
	}
	if status := found.Base().View.Status; status.Dead() {
		return m, nstance.Errorf(nstance.Conflict, "machine %s is %s", id, status)
	}
	return found, nil
}

// Interrupt announces in its metadata service that spot machine id will be reclaimed
// with this action (empty: terminate), and sends the time to Reclaims. For AWS it is
// rounded up to the next full second: the announcement has no finer time. Another
// call sets a new time. Fails as Living does, and with Invalid when the action is not
// known or the machine is not spot.
func (s *Set[M]) Interrupt(id nstance.InstanceID, action string, after time.Duration) error {
	action = cmp.Or(action, "terminate")
	if !slices.Contains([]string{"terminate", "stop", "hibernate"}, action) {
		return nstance.FieldError("action", "use terminate, stop or hibernate", "%.64q is not known", action)
	}
	s.Lock()
	defer s.Unlock()
	m, err := s.Living(id)
	if err != nil {
		return err
	}
	p := m.Base()
	if p.View.Market != nstance.Spot {
		return nstance.FieldError("id", "create it with market spot", "machine %s is not spot capacity", id)
	}
	at := time.Now().Add(max(after, 0))
	if whole := at.Truncate(time.Second); s.o.Protocol == imds.AWS && whole.Before(at) {
		at = whole.Add(time.Second)
	}
	p.Metadata.Reclaim(action, at)
	p.schedule(at)
	return nil
}

// Withdraw withdraws what Interrupt announced, if anything. Fails as Living does.
func (s *Set[M]) Withdraw(id nstance.InstanceID) error {
	s.Lock()
	defer s.Unlock()
	m, err := s.Living(id)
	if err != nil {
		return err
	}
	m.Base().Metadata.Withdraw()
	m.Base().schedule(time.Time{})
	return nil
}

// Go runs f in a goroutine that Wait waits for.
func (s *Set[M]) Go(f func()) { s.running.Go(f) }

// Remove removes what Begin made, and the machine from the set. An error means that the
// folder remains.
func (s *Set[M]) Remove(m M) error {
	defer s.running.Done()
	p := m.Base()
	if p.http != nil {
		_ = p.http.Close()
	}
	err := os.RemoveAll(p.Dir)
	s.Lock()
	defer s.Unlock()
	m.Stop()
	delete(s.byID, p.View.ID)
	delete(s.byHandle, p.View.ProviderID)
	return err
}

// Close stops all machines. Calls after it fail with Unavailable.
func (s *Set[M]) Close() {
	s.Lock()
	defer s.Unlock()
	s.closed = true
	for _, m := range s.byID {
		m.Stop()
	}
}

// Wait waits until all machines have been removed.
func (s *Set[M]) Wait() { s.running.Wait() }
