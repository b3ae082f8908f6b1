package reconcile_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile"
	"github.com/nstance-go/nstance/storage/storagetest"
)

// TestStoreThatHangs: whichever call the store does not answer, it holds up the loop for its
// limit of time only.
func TestStoreThatHangs(t *testing.T) {
	for skip := range 20 {
		t.Run(fmt.Sprint(skip), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, simcloud.Options{})
				defer w.close()
				faulty := storagetest.NewFaulty(w.store)
				faulty.Inject(storagetest.Fault{Mode: storagetest.Hang, Skip: skip})
				w.wrap = func(o *leaderEnv) { o.store = faulty }
				w.startLeader(webGroup(3))
				w.advance(4 * time.Minute)
				require.Len(t, w.cloud.Machines(), 3)
				require.Len(t, w.ready(), 3)
				w.setGroups(webGroup(0))
				w.advance(4 * time.Minute)
				require.Empty(t, w.cloud.Machines())
				require.Empty(t, w.stored(layout.InstancePrefix("s1")))
				require.Greater(t, faulty.Count(""), skip, "it has hung")
			})
		})
	}
}

// hangingDrains is a coordinator whose nth call that changes a drain has no answer.
type hangingDrains struct {
	nstance.DrainCoordinator
	left *atomic.Int32
}

func (d hangingDrains) hang(ctx context.Context) error {
	if d.left.Add(-1) != 0 {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (d hangingDrains) Start(ctx context.Context, is nstance.Drain) error {
	if err := d.hang(ctx); err != nil {
		return err
	}
	return d.DrainCoordinator.Start(ctx, is)
}

func (d hangingDrains) Cancel(ctx context.Context, id nstance.InstanceID, generation uint64) error {
	if err := d.hang(ctx); err != nil {
		return err
	}
	return d.DrainCoordinator.Cancel(ctx, id, generation)
}

func (d hangingDrains) End(ctx context.Context, id nstance.InstanceID) error {
	if err := d.hang(ctx); err != nil {
		return err
	}
	return d.DrainCoordinator.End(ctx, id)
}

// hangingBootstrap has no answer to its first request.
type hangingBootstrap struct{ left *atomic.Int32 }

func (b hangingBootstrap) Render(ctx context.Context, req reconcile.RenderRequest) (reconcile.Rendered, error) {
	if b.left.Add(-1) == 0 {
		<-ctx.Done()
		return reconcile.Rendered{}, ctx.Err()
	}
	return reconcile.Rendered{UserData: []byte(req.Definition.UserData.Content)}, nil
}

// TestPartsThatHang: neither does a coordinator or a bootstrap that does not answer.
func TestPartsThatHang(t *testing.T) {
	for nth := range int32(8) {
		for name, part := range map[string]func(o *reconcile.Options, left *atomic.Int32){
			"drains":    func(o *reconcile.Options, left *atomic.Int32) { o.Drains = hangingDrains{o.Drains, left} },
			"bootstrap": func(o *reconcile.Options, left *atomic.Int32) { o.Bootstrap = hangingBootstrap{left} },
		} {
			t.Run(fmt.Sprint(name, " ", nth), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					var left atomic.Int32
					left.Store(nth + 1)
					w := newWorld(t, simcloud.Options{})
					defer w.close()
					w.wrap = func(o *leaderEnv) { o.options = func(o *reconcile.Options) { part(o, &left) } }
					w.startLeader(webGroup(4))
					w.advance(4 * time.Minute)
					require.Len(t, w.ready(), 4)
					require.NoError(t, w.cloud.Reclaim(w.ready()[0], 2*time.Minute))
					w.advance(4 * time.Minute)
					require.Len(t, w.cloud.Machines(), 4)
					w.setGroups(webGroup(0))
					w.advance(8 * time.Minute)
					require.Empty(t, w.cloud.Machines())
					require.Empty(t, w.stored(layout.InstancePrefix("s1")))
					if name == "drains" || nth < 5 {
						require.LessOrEqual(t, left.Load(), int32(0), "it has hung")
					}
				})
			})
		}
	}
}
