package program

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/nstance-go/nstance/internal/sleep"
)

// retryTerm is between a term that failed and the next campaign.
const retryTerm = 5 * time.Second

// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=nstance-system,resources=leases,verbs=get;create;update

// lead runs term after term until ctx ends: a lost Lease ends a term, not the process.
func (p *program) lead(ctx context.Context) {
	for ctx.Err() == nil {
		run := p.serveTerm
		if p.leaderElect {
			run = p.campaign
		}
		if failed := run(ctx); failed {
			sleep.For(ctx, retryTerm)
		}
	}
}

// serveTerm runs one term, and reports whether it ended with an error.
func (p *program) serveTerm(ctx context.Context) (failed bool) {
	p.log.Info("term starts")
	if err := p.term(ctx); err != nil && ctx.Err() == nil {
		p.log.Error("term failed", "err", err, "next_campaign", retryTerm)
		return true
	}
	p.log.Info("term ended")
	return false
}

// campaign waits for the Lease, and runs one term while it is held. The Lease is
// renewed until the controllers have stopped, and released then.
func (p *program) campaign(ctx context.Context) (failed bool) {
	l, err := p.newLock()
	if err != nil {
		p.log.Error("campaign failed", "err", err, "next_campaign", retryTerm)
		return true
	}
	granted := make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: l, Name: p.name, LeaseDuration: p.leaseDuration, RenewDeadline: p.renewDeadline(), RetryPeriod: p.leaseDuration * 2 / 15,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) { granted <- held },
			OnStoppedLeading: func() {},
			OnNewLeader:      func(identity string) { p.log.Info("leader observed", "identity", identity) },
		},
	})
	if err != nil {
		p.log.Error("campaign failed", "err", err, "next_campaign", retryTerm)
		return true
	}
	renewing, stopRenewing := context.WithCancel(context.WithoutCancel(ctx))
	var electing sync.WaitGroup
	electing.Go(func() { elector.Run(renewing) })
	select {
	case held := <-granted:
		failed = p.serveGranted(ctx, held, l)
	case <-ctx.Done():
	}
	stopRenewing()
	electing.Wait()
	l.release(context.WithoutCancel(ctx), p.renewDeadline())
	return failed
}

// renewDeadline leaves controllers a third of the Lease's duration to stop.
func (p *program) renewDeadline() time.Duration { return p.leaseDuration * 2 / 3 }

// serveGranted runs one term until ctx ends, or the Lease is not held any more.
func (p *program) serveGranted(ctx, held context.Context, l *lock) (failed bool) {
	term, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(held, end)()
	l.taken.Store(&end)
	defer l.taken.Store(nil)
	return p.serveTerm(term)
}

// A lock is the Lease. It is safe for concurrent use.
type lock struct {
	resourcelock.Interface
	taken atomic.Pointer[context.CancelFunc] // ends the term when another replica has the Lease
}

func (p *program) newLock() (*lock, error) {
	c := rest.CopyConfig(p.config)
	c.Timeout = p.renewDeadline() / 2 // of one request, so that one that hangs does not lose the Lease
	api, err := coordinationv1.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	return &lock{Interface: &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: p.ownNamespace, Name: p.name}, Client: api,
		LockConfig: resourcelock.ResourceLockConfig{Identity: p.identity},
	}}, nil
}

// Get implements resourcelock.Interface. The elector itself would go on until its
// deadline for renewals after another replica was granted the Lease.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err == nil && record.HolderIdentity != "" && record.HolderIdentity != l.Identity() {
		if end := l.taken.Load(); end != nil {
			(*end)()
		}
	}
	return record, raw, err
}

// release lets other replicas have the Lease at once. One that is not released
// expires.
func (l *lock) release(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	record, _, err := l.Interface.Get(ctx)
	if err != nil || record.HolderIdentity != l.Identity() {
		return
	}
	record.HolderIdentity, record.LeaseDurationSeconds = "", 1
	_ = l.Update(ctx, *record)
}
