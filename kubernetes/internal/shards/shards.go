// Package shards follows the shards of a cluster: it keeps a copy of their
// groups and instances by watching, and mirrors their drains.
//
// A watch that ends is resumed after the last event that was seen. What a lost
// event would have said is found by listing everything again from time to time.
package shards

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/operatorapi"
	"github.com/nstance-go/nstance/internal/pki"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/internal/wire"
)

// Times of a connection.
const (
	callTimeout   = 20 * time.Second
	firstRetry    = 200 * time.Millisecond
	maxRetry      = 10 * time.Second
	resync        = 10 * time.Minute // between two lists of everything
	refreshWidth  = 8                // instances asked for one by one; if there are more, all are listed
	throttleWait  = time.Second      // after questions failed
	questionLimit = 5 * time.Second  // of one about an instance
	renewalSpread = time.Minute      // at least, before a certificate is renewed that the server wants renewed
)

// An Identity is what the operator shows to every shard of a cluster.
type Identity struct {
	Cluster nstance.ClusterID
	Tenant  nstance.TenantID
	Key     ed25519.PrivateKey
	Chain   [][]byte // DER, leaf first
	Roots   [][]byte // DER, the authorities that sign servers

	RenewAt  time.Time // two thirds of the certificate's life are over
	NotAfter time.Time // of the certificate
}

// Certificate returns the certificate that shards see, as DER; nil: there is none.
func (id Identity) Certificate() []byte {
	if len(id.Chain) == 0 {
		return nil
	}
	return id.Chain[0]
}

// tls returns how servers of a shard are connected to.
func (id Identity) tls(shard nstance.ShardID) (*tls.Config, error) {
	certs, err := pki.ParseCertificates(pki.MarshalCertificates(id.Chain...))
	if err != nil {
		return nil, err
	}
	pair, err := pki.Pair(id.Key, certs...)
	if err != nil {
		return nil, err
	}
	roots, err := pki.NewPool(id.Roots...)
	if err != nil {
		return nil, err
	}
	return pki.ClientTLS(roots, pair, shard, id.Cluster), nil
}

// Options say what a Shard is of, and who hears of its changes. Identity and
// Servers are required.
type Options struct {
	Name     nstance.ShardID
	Servers  func() []string            // host:port of the operators' API, as they are now
	Identity func() Identity            // as it is now
	Renew    func(within time.Duration) // the server wants the certificate renewed within that time; nil: ignored
	Drains   *drain.Coordinator         // mirrors the shard's drains; nil: they are only looked at

	// InstanceChanged and GroupChanged are called when the copy has changed, with
	// what has changed, and Connection when the shard is reached, with a complete
	// copy, or lost. They must not block, and may call the Shard.
	InstanceChanged func(nstance.InstanceID, nstance.GroupID)
	GroupChanged    func(nstance.GroupID)
	Connection      func(connected bool, why error)

	// Gone is called with an instance whose machine the provider says does not exist any
	// more, and the provider ID of its Node, as the other functions are.
	Gone func(id nstance.InstanceID, providerID string)

	Log *slog.Logger // nil: discarded
}

// A Shard is the operator's copy of one shard. It is safe for concurrent use.
type Shard struct {
	opts Options

	mu        sync.Mutex
	api       apiv1.OperatorServiceClient // nil: not connected
	after     watched
	listed    listed
	executor  bool                    // of the shard's drains
	restart   context.CancelCauseFunc // ends the present attempt and its watches; nil: Run has not begun
	instances map[nstance.InstanceID]*apiv1.Instance
	groups    map[nstance.GroupID]*apiv1.Group
	stale     map[nstance.InstanceID]bool // to be asked for
	wake      chan struct{}
}

// watched numbers the last events that were seen.
type watched struct{ instances, groups uint64 }

// listed says of what there is a complete copy, if an old one.
type listed struct{ instances, groups bool }

func (l listed) all() bool { return l.instances && l.groups }

// New returns a Shard that knows nothing yet.
func New(opts Options) *Shard {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Shard{
		opts: opts, wake: make(chan struct{}, 1), stale: map[nstance.InstanceID]bool{},
		instances: map[nstance.InstanceID]*apiv1.Instance{}, groups: map[nstance.GroupID]*apiv1.Group{},
	}
}

// Name returns the shard's name.
func (s *Shard) Name() nstance.ShardID { return s.opts.Name }

// Run follows the shard until ctx ends. It keeps trying.
func (s *Shard) Run(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		attempt, cancel := context.WithCancelCause(ctx)
		s.mu.Lock()
		s.restart = cancel
		s.mu.Unlock()
		reached, err := s.follow(attempt)
		if failures++; reached {
			failures = 0
		}
		if attempt.Err() == nil {
			s.disconnected(err)
			sleep.For(attempt, sleep.Jitter(sleep.Backoff(failures, firstRetry, maxRetry)))
		}
		cancel(nil)
	}
}

func (s *Shard) disconnected(err error) {
	s.mu.Lock()
	s.api = nil
	s.mu.Unlock()
	s.opts.Log.Info("shard lost", "shard", s.opts.Name, "error", err)
	if s.opts.Connection != nil {
		s.opts.Connection(false, err)
	}
}

// follow watches the leader until a watch ends. reached reports whether there was a
// leader.
func (s *Shard) follow(ctx context.Context) (reached bool, err error) {
	id := s.opts.Identity()
	conn, err := s.connect(ctx, id)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	api := apiv1.NewOperatorServiceClient(conn)
	s.mu.Lock()
	s.api = api
	s.mu.Unlock()
	if s.Synced() {
		s.connected()
	}
	s.mu.Lock()
	executor := s.executor
	s.mu.Unlock()
	return true, s.copy(ctx, api, executor)
}

// copy keeps the copy as the leader says until a watch or a call fails.
func (s *Shard) copy(ctx context.Context, api apiv1.OperatorServiceClient, executor bool) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.watchInstances(ctx, api, executor) })
	g.Go(func() error { return s.watchGroups(ctx, api) })
	g.Go(func() error { return s.refresh(ctx, api) })
	g.Go(func() error { return s.resync(ctx, api) })
	return g.Wait()
}

// SetExecutor says whether the shard's drains are carried out here: those whose
// executor is an operator.
func (s *Shard) SetExecutor(executor bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.executor == executor {
		return
	}
	if s.executor = executor; s.restart != nil {
		s.restart(errRestart)
	}
}

// Reconnect connects again, to the servers and with the identity as they are now. Until a renewed certificate is
// used, the rotation of the key that signed the former one cannot be finished.
func (s *Shard) Reconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.restart != nil {
		s.restart(errRestart)
	}
}

// connected is called when there is a leader, and the copy is complete.
func (s *Shard) connected() {
	if s.opts.Connection != nil {
		s.opts.Connection(true, nil)
	}
}

// complete notes that a first snapshot is complete.
func (s *Shard) complete(note func(*listed)) {
	s.mu.Lock()
	before := s.listed.all()
	note(&s.listed)
	now := s.listed.all()
	s.mu.Unlock()
	if now && !before {
		s.connected()
	}
}

// connect returns a connection to the leader. Fails with a Refusal where the shard does not
// accept the certificate.
func (s *Shard) connect(ctx context.Context, id Identity) (*grpc.ClientConn, error) {
	cfg, err := id.tls(s.opts.Name)
	if err != nil {
		return nil, err
	}
	return operatorapi.Leader(ctx, s.opts.Servers(), func(ctx context.Context, addr string) (*grpc.ClientConn, error) {
		conn, err := operatorapi.Dial(addr, cfg, grpc.WithUnaryInterceptor(limited))
		if err != nil {
			return nil, err
		}
		if _, err := apiv1.NewOperatorServiceClient(conn).GetShardStatus(ctx, &apiv1.GetShardStatusRequest{}); err != nil {
			_ = conn.Close() // nothing is under way
			return nil, id.refused(err)
		}
		return conn, nil
	})
}

// limited gives every call a deadline, and returns domain errors.
func limited(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return wire.ErrorOf(invoke(ctx, method, req, reply, conn, opts...))
}

// API returns the leader's API. Fails with Unavailable while there is none. Calls
// fail with domain errors, and end after 20 s.
func (s *Shard) API() (apiv1.OperatorServiceClient, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.api == nil {
		return nil, nstance.Errorf(nstance.Unavailable, "shard %s is not connected", s.opts.Name)
	}
	return s.api, nil
}

// Synced reports whether the copy was complete once. It may be old.
func (s *Shard) Synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listed.all()
}

// Instance returns the copy of an instance. It must not be changed.
func (s *Shard) Instance(id nstance.InstanceID) (*apiv1.Instance, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.instances[id]
	return i, ok
}

// Instances returns the copies of a group's instances, sorted by ID. They must not
// be changed.
func (s *Shard) Instances(group nstance.GroupID) []*apiv1.Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*apiv1.Instance
	for _, id := range slices.Sorted(maps.Keys(s.instances)) {
		if i := s.instances[id]; i.GetGroup() == string(group) {
			out = append(out, i)
		}
	}
	return out
}

// AllInstances returns the copies of all instances, in no order. They must not be changed.
func (s *Shard) AllInstances() []*apiv1.Instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.instances))
}

// Fresh asks the shard for an instance as it is now, or was when it ended. Fails with
// NotFound when the shard knows nothing of it, Unavailable while the shard is away.
func (s *Shard) Fresh(ctx context.Context, id nstance.InstanceID) (*apiv1.Instance, error) {
	api, err := s.API()
	if err != nil {
		return nil, err
	}
	resp, err := api.GetInstance(ctx, &apiv1.GetInstanceRequest{Id: string(id)})
	return resp.GetInstance(), err
}

// GiveUpDrains withdraws the mirrored drains that only the shard wants: it is not followed any more,
// and nothing else would end them. What the cloud takes back is drained until its deadline.
func (s *Shard) GiveUpDrains(ctx context.Context) {
	for _, i := range s.AllInstances() {
		if d, ok := s.opts.Drains.Of(nstance.InstanceID(i.GetId())); ok && !slices.ContainsFunc(d.Causes, ofCloud) {
			_ = s.opts.Drains.Cancel(ctx, d.Instance, d.Generation) // never fails
		}
	}
}

func ofCloud(c nstance.Cause) bool {
	return c.Kind == nstance.CauseNotice || c.Kind == nstance.CauseGone
}

// An End is how an instance has ended.
type End struct {
	Deleted bool // its machine, if there was one
	Failed  bool // its create was refused: there never was a machine
	Cause   nstance.CauseKind
	Message string
}

// End asks the shard how an instance has ended. Nil: it has not. The zero End is of one
// that the shard knows nothing of. Fails with Unavailable while the shard is away.
func (s *Shard) End(ctx context.Context, id nstance.InstanceID) (*End, error) {
	api, err := s.API()
	if err != nil {
		return nil, err
	}
	resp, err := api.GetInstance(ctx, &apiv1.GetInstanceRequest{Id: string(id)})
	if errors.Is(err, nstance.NotFound) {
		return &End{}, nil
	} else if err != nil {
		return nil, err
	}
	end := &End{}
	switch nstance.State(resp.GetInstance().GetState()) {
	case nstance.Deleted:
		end.Deleted = true
	case nstance.Failed:
		end.Failed = true
	default:
		s.ask(id)
		return nil, nil //nolint:nilnil // it has not ended
	}
	for _, e := range resp.GetEvents() {
		switch nstance.EventType(e.GetType()) {
		case nstance.EventDeleteRequested:
			end.Message = e.GetReason()
			kind, _, _ := strings.Cut(e.GetReason(), ":")
			end.Cause = nstance.CauseKind(kind)
		case nstance.EventCreateFailed:
			end.Message = cmp.Or(e.GetError(), e.GetReason())
		}
	}
	return end, nil
}

// Group returns the copy of a group. It must not be changed.
func (s *Shard) Group(group nstance.GroupID) (*apiv1.Group, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, ok := s.groups[group]
	return g, ok
}

// errEnded ends a watch that the server ended, errRestart one that begins again at once.
var (
	errEnded   = errors.New("the server ended the watch")
	errRestart = errors.New("the watch begins again")
)
