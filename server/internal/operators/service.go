// Package operators serves the operators' API: the calls of operators and
// administrators, their watches and their budgets.
package operators

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/drain"
	"github.com/nstance-go/nstance/internal/attention"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/fair"
	"github.com/nstance-go/nstance/internal/keyring"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/internal/loop"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/journal"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/registration"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/lease"
)

// Options configure a Service. All fields are required.
type Options struct {
	Cluster nstance.ClusterID
	Shard   nstance.ShardID
	Version string                // of this server
	Config  func() *config.Config // in force
	Now     func() time.Time
	Store   storage.Store
	Events  journal.Journal
	Ledger  *ledger.Reader
	Keys    clusterKeys
	Ring    *keyring.Keyring
	Issuer  func() string // key that signs certificates of identities now

	// Announce publishes a reclaim on a machine's own metadata service. Fails with
	// Conflict where the provider cannot.
	Announce                 func(id nstance.InstanceID, after time.Duration) error
	InterruptThroughMetadata bool // as if each Interrupt asked for that

	LeaderAddress func() string // where operators reach the leader
	Standbys      func() []*apiv1.Standby
}

// clusterKeys is what is needed of the cluster's keys.
type clusterKeys interface {
	Refresh(ctx context.Context) error
	HandleChanges()
}

// A Service serves nstance.v1.OperatorService.
type Service struct {
	apiv1.UnimplementedOperatorServiceServer
	Options
	budgets      budgets
	calls        *fair.Queue[nstance.TenantID] // of the calls of each tenant, and of the administrators
	plans        *fair.Queue[nstance.TenantID] // of those that compare whole groups
	remembered   atomic.Pointer[[]*apiv1.Interruption]
	journalCache journalCache
}

// NewService returns a service. Calls need a caller in their context: WithCaller.
func NewService(opts Options) *Service {
	return &Service{
		Options: opts,
		calls:   fair.NewQueue[nstance.TenantID](maxCalls, tenantCalls, waitingCalls), plans: fair.NewQueue[nstance.TenantID](maxPlans, 1, waitingCalls),
	}
}

// TermOptions configure a Term. All fields are required.
type TermOptions struct {
	Lease      *lease.Term
	Began      time.Time
	Reconciler *reconcile.Admin
	Internals  loop.Internals // of Reconciler
	Drains     *drain.Coordinator
	Groups     groupEditor
	Agents     agentSessions
	Records    operatorRecords
	Configs    configurations
	Log        *slog.Logger

	// Verify fails where a certificate has been revoked or superseded.
	Verify func(ctx context.Context, id nstance.Identity) (promote bool, err error)
	// Connected returns the identities of operators and administrators that are
	// connected, each once. End ends the connections of one that is not in use any more.
	Connected func() []nstance.Identity
	End       func(id nstance.Identity, why error)
	// Renew returns another certificate.
	Renew func(ctx context.Context, id nstance.Identity, csr []byte) (nstance.Credential, error)
	// Bound returns a context for one request to another party.
	Bound func(ctx context.Context) (context.Context, context.CancelFunc)
	// Journal receives events.
	Journal func(e nstance.Event)
	// Attention returns what operators should see, what is acknowledged last.
	Attention        func() []attention.Entry
	Acknowledgements acknowledgements
}

// acknowledgements are what operators have acknowledged of what needs attention.
type acknowledgements interface {
	Put(ctx context.Context, want attention.Acknowledgement, dryRun bool) (stands attention.Acknowledgement, changed bool, err error)
	Remove(ctx context.Context, kind reconcile.AttentionKind, subject string, dryRun bool) (of string, removed bool, err error)
}

// A groupEditor resolves and changes groups.
type groupEditor interface {
	Create(ctx context.Context, who config.Changer, key nstance.GroupKey, o config.Override, dryRun bool) (nstance.Group, error)
	Update(ctx context.Context, who config.Changer, key nstance.GroupKey, o config.Override, dryRun bool) (spec nstance.Group, unchanged bool, err error)
	Remove(ctx context.Context, who config.Changer, key nstance.GroupKey, dryRun bool) (nstance.Group, error)
	DefineInstance(ctx context.Context, who config.Changer, key nstance.GroupKey, o config.Override) (spec nstance.Group, admit func(onDemand int) error, err error)
	NameBootstrapData(ctx context.Context, data []byte) (string, error)
	PutBootstrapData(ctx context.Context, name string, data []byte) error
	ForgetSoon(key nstance.GroupKey)
	Await(ctx context.Context) error
	Overlaid(key nstance.GroupKey) bool
	PreviewHolds(spec nstance.Group, holds []reconcile.HoldView) []reconcile.HoldView
	LookUpTypes(ctx context.Context, conf *config.Config)
	WhatIf(conf *config.Config, sees func(nstance.TenantID) bool) ([]reconcile.GroupPlan, error)
	WhatIfGroup(spec nstance.Group) ([]reconcile.GroupPlan, error)
}

// agentSessions are the connected agents.
type agentSessions interface {
	CountVisible(sees func(nstance.TenantID) bool) int
	ReceiveNotice(id nstance.InstanceID, n nstance.Notice, ack func())
	Thawed(key nstance.GroupKey)
	RenewalSpread() time.Duration
}

// operatorRecords are the records of operators, and who depends on a key.
type operatorRecords interface {
	Operator(ctx context.Context, tenant nstance.TenantID, name string) (registration.OperatorRegistration, error)
	UpdateOperator(ctx context.Context, tenant nstance.TenantID, name string, change func(*registration.OperatorRegistration) error) (registration.OperatorRegistration, error)
	Operators(ctx context.Context) (list []registration.OperatorRegistration, unreadable map[string]error, err error)
	CountInstances(set string, k keyring.KeyEntry) (n int, until time.Time, known bool)
	Unused(set string) func(context.Context, keyring.KeyEntry) error
}

// configurations are the configuration in force and those that are proposed.
type configurations interface {
	// Status returns which configuration is in force, held and refused.
	Status() config.Status
	// Document returns the configuration in force as it was read.
	Document() (name, digest string, data []byte)
	// Parse returns the configuration in data or, if that is empty, the one that a
	// refresh would read. Fails as a refresh with it would.
	Parse(ctx context.Context, data []byte) (*config.Config, error)
	// Excess says what of a configuration is more than one reload may change; empty:
	// nothing.
	Excess(conf *config.Config) (string, error)
	// Refresh reads the configuration again.
	Refresh(ctx context.Context, why string) (changed bool, err error)
	// Confirm puts the held configuration in force.
	Confirm(ctx context.Context, digest, why string, dryRun bool) error
}

// A Term is what operators work with while this server leads.
type Term struct {
	TermOptions
	service    *Service
	events     *tenantFeeds[watched]
	groupFeeds *tenantFeeds[groupChange]
	streams    streams
}

// NewTerm returns a term. Its reconciler and the other fields of opts may be set
// until the first call.
func (o *Service) NewTerm() *Term {
	return &Term{service: o, events: newTenantFeeds[watched](), groupFeeds: newTenantFeeds[groupChange]()}
}

// caller is who makes a call, and the term that it is made in.
type caller struct {
	nstance.Identity
	service *Service
	term    *Term
}

type callerKey struct{}

// WithCaller returns a context for a call that id makes in a term.
func (o *Service) WithCaller(ctx context.Context, id nstance.Identity, t *Term) context.Context {
	return context.WithValue(ctx, callerKey{}, caller{id, o, t})
}

func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// sees reports whether the caller may know of things of tenant.
func (c caller) sees(tenant nstance.TenantID) bool {
	return c.Role == nstance.RoleAdmin || c.Tenant == tenant
}

// RenewCertificate implements the RPC.
func (*Service) RenewCertificate(ctx context.Context, req *apiv1.OperatorServiceRenewCertificateRequest) (*apiv1.OperatorServiceRenewCertificateResponse, error) {
	c := callerOf(ctx)
	cred, err := c.term.Renew(ctx, c.Identity, req.GetCsr())
	if err != nil {
		return nil, err
	}
	return &apiv1.OperatorServiceRenewCertificateResponse{Credential: wire.Credential(cred)}, nil
}
