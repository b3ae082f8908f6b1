// Package reconcile keeps groups of machines at their size: observe, plan, act.
//
// [Plan] is the pure heart: one group's desired values, members and history
// in, actions out. The [Reconciler] around it owns the state of a shard in
// memory, takes note of facts, plans whichever group they touch, and carries
// the actions out: first durably in storage, then at the provider. It can be
// embedded in any program; it knows nothing of gRPC, SQL, clouds or Kubernetes.
//
// A Reconciler is safe for concurrent use; groups and views are values.
package reconcile

import (
	"sync"
	"sync/atomic"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/feed"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/provider"
)

// A Reconciler works for one shard during one leadership term. Its own methods do the
// I/O and take the lock; what they find out they put into the shard, which decides. They
// may be called concurrently; Run is called once.
type Reconciler struct {
	provider *provider.Client
	records  *records.Records
	states   *records.Doc[shardState]
	events   *feed.Feed[nstance.Event]

	orphanLock chan struct{}  // has room for one: whose turn it is to deal with orphans
	known      chan struct{}  // closed once members are known
	over       chan struct{}  // closed when Run has ended
	started    atomic.Bool    // Run was called
	lookUps    sync.WaitGroup // the first questions to the provider, which plans do not wait for

	mu sync.Mutex
	shard
}

var _ nstance.Reconciler = (*Reconciler)(nil)
