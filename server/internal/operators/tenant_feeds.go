package operators

import (
	"sync"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/feed"
)

// tenantBacklog is how many events are kept for the watchers of one tenant. A
// mass reclaim of a few hundred instances fits.
const tenantBacklog = 1024

// tenantFeeds holds the events that watchers read: those of each tenant for its
// operators, and all of them for administrators. Many events of one tenant therefore
// never make the watchers of another start again. It is safe for concurrent use.
type tenantFeeds[T any] struct {
	all *feed.Feed[T]

	mu       sync.Mutex
	byTenant map[nstance.TenantID]*feed.Feed[T]
}

func newTenantFeeds[T any]() *tenantFeeds[T] {
	return &tenantFeeds[T]{all: feed.New[T](0), byTenant: map[nstance.TenantID]*feed.Feed[T]{}}
}

// publish returns the event's number among all events.
func (f *tenantFeeds[T]) publish(tenant nstance.TenantID, v T) nstance.Seq {
	f.tenant(tenant).Publish(v)
	return f.all.Publish(v)
}

// publishToAll sends v to every watcher.
func (f *tenantFeeds[T]) publishToAll(v T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, each := range f.byTenant {
		each.Publish(v)
	}
	f.all.Publish(v)
}

// of returns the feed of what the caller may see.
func (f *tenantFeeds[T]) of(c caller) *feed.Feed[T] {
	if c.Role == nstance.RoleAdmin {
		return f.all
	}
	return f.tenant(c.Tenant)
}

func (f *tenantFeeds[T]) tenant(id nstance.TenantID) *feed.Feed[T] {
	f.mu.Lock()
	defer f.mu.Unlock()
	found := f.byTenant[id]
	if found == nil {
		found = feed.New[T](tenantBacklog)
		f.byTenant[id] = found
	}
	return found
}
