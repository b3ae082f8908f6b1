package operators

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/internal/feed"
	"github.com/nstance-go/nstance/server/internal/ports"
)

const (
	// parallelWatches is how many watches of one tenant are sent something at a time.
	// The others hold nothing meanwhile: a message that a watcher does not read costs
	// up to 64 KiB within gRPC.
	parallelWatches = 2

	maxAdminWatches = 256  // of all administrators
	maxIdleTenants  = 1000 // whose usage is remembered

	// Calls that are served at a time: of one tenant, or of the administrators together,
	// and of all. Those that wait take turns by tenant.
	tenantCalls  = 16
	maxCalls     = 256
	waitingCalls = 128
	maxPlans     = 2 // each compares up to all groups of a tenant
)

// party is under whose name the caller's calls wait: its tenant, or the empty name for
// administrators.
func (c caller) party() nstance.TenantID {
	if c.Role == nstance.RoleAdmin {
		return ""
	}
	return c.Tenant
}

// Serve waits until a call of the caller in ctx may be served; done must be called after
// it. Fails with Throttled where too many calls of its tenant wait.
func (o *Service) Serve(ctx context.Context) (done func(), err error) {
	return o.calls.Acquire(ctx, callerOf(ctx).party())
}

// budgets counts what the operators of each tenant, and the administrators together,
// use of this server.
type budgets struct {
	mu sync.Mutex
	of map[nstance.TenantID]*usage // administrators: under the empty name
}

// usage is what one tenant uses.
type usage struct {
	requests *rate.Limiter
	watches  int
	turns    watchTurn
	drains   watchTurn // of drain executors: slow watchers must not delay them
}

// usage returns what a tenant uses. It needs the lock.
func (b *budgets) usage(id nstance.TenantID) *usage {
	if u := b.of[id]; u != nil {
		return u
	}
	if len(b.of) >= maxIdleTenants {
		maps.DeleteFunc(b.of, func(_ nstance.TenantID, u *usage) bool {
			return u.watches == 0 && u.requests.Tokens() >= float64(u.requests.Burst())
		})
	}
	if b.of == nil {
		b.of = map[nstance.TenantID]*usage{}
	}
	u := &usage{requests: rate.NewLimiter(rate.Inf, 1), turns: make(watchTurn, parallelWatches), drains: make(watchTurn, parallelWatches)}
	b.of[id] = u
	return u
}

// AllowRequest counts one call of an operator. Fails with Throttled beyond the tenant's
// budget.
func (o *Service) AllowRequest(tenant nstance.TenantID) error {
	return o.budgets.request(o.Config().Budget(tenant))
}

// request counts one call. Fails with Throttled beyond the budget.
func (b *budgets) request(budget config.Budget) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.usage(budget.Tenant)
	if limit := rate.Limit(budget.RequestsPerSecond); u.requests.Limit() != limit || u.requests.Burst() != budget.RequestBurst {
		u.requests = rate.NewLimiter(limit, budget.RequestBurst)
	}
	if u.requests.Allow() {
		return nil
	}
	return budget.Exceeded(nstance.Throttled, "requests_per_second", fmt.Sprintf("sends more than %g requests a second", budget.RequestsPerSecond))
}

// watch counts one watch, until done is called. Fails with Quota beyond the
// budget.
func (b *budgets) watch(id nstance.TenantID, limit int, refuse func() error) (done func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.usage(id)
	if u.watches >= limit {
		return nil, refuse()
	}
	u.watches++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		u.watches--
	}, nil
}

// AdminWatches returns how many watches administrators hold open.
func (o *Service) AdminWatches() int {
	o.budgets.mu.Lock()
	defer o.budgets.mu.Unlock()
	return o.budgets.usage("").watches
}

// beginWatch counts a watch of the caller, until done is called.
func (c caller) beginWatch() (done func(), err error) {
	s := c.service
	if c.Role == nstance.RoleAdmin {
		return s.budgets.watch("", maxAdminWatches, func() error {
			return &nstance.Error{Code: nstance.Quota, Msg: fmt.Sprintf("administrators hold %d watches open", maxAdminWatches), Remedy: "end some"}
		})
	}
	budget := s.Config().Budget(c.Tenant)
	return s.budgets.watch(c.Tenant, budget.MaxWatches, func() error {
		return budget.Exceeded(nstance.Quota, "max_watches", fmt.Sprintf("holds %d watches open", budget.MaxWatches))
	})
}

// watchTurn returns what limits how many watches of the caller are sent something at
// a time.
func (c caller) watchTurn(executor bool) feed.Turn {
	b, id := &c.service.budgets, c.Tenant
	if c.Role == nstance.RoleAdmin {
		id = ""
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if executor {
		return b.usage(id).drains
	}
	return b.usage(id).turns
}

// A watchTurn implements feed.Turn. Its capacity is how many turns there are.
type watchTurn chan struct{}

// Take implements feed.Turn.
func (w watchTurn) Take(ctx context.Context) error {
	select {
	case w <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Give implements feed.Turn.
func (w watchTurn) Give() { <-w }

// sendInTime sends a message to a watcher. A watcher that does not read loses its
// connection.
func sendInTime[M any](stream grpc.ServerStreamingServer[M], m *M) error {
	defer time.AfterFunc(ports.SendTimeout, ports.CloseConnection(stream.Context())).Stop()
	return stream.Send(m)
}
