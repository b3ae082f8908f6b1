package azure

import (
	"context"
	"net/http"
	"strings"
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// nicTries is how often a change of an interface is begun again after it has lost
// against another operation.
const nicTries = 5

// changeNIC reads an interface, lets change decide about it, and puts the whole of
// it back: Azure has no smaller change of one. It returns when Azure has carried it
// out. One writer at a time changes an interface; whether Azure honours If-Match
// there is not documented. change reports whether there is anything to put.
func (p *Provider) changeNIC(ctx context.Context, group, name string, change func(*armnetwork.Interface) (bool, error)) error {
	unlock, err := p.writers.lock(ctx, strings.ToLower(group+"/"+name))
	if err != nil {
		return readError(err)
	}
	defer unlock()
	for try := 1; ; try++ {
		err := p.changeOnce(ctx, group, name, change)
		if nstance.CodeOf(err) != nstance.Conflict || try == nicTries {
			return err
		}
		if !sleep.For(ctx, nicPause) {
			return err
		}
	}
}

func (p *Provider) changeOnce(ctx context.Context, group, name string, change func(*armnetwork.Interface) (bool, error)) error {
	got, err := p.nics.Get(ctx, group, name, nil)
	if err != nil {
		return readError(err)
	}
	if todo, err := change(&got.Interface); !todo || err != nil {
		return err
	}
	if got.Etag != nil {
		ctx = policy.WithHTTPHeader(ctx, http.Header{"If-Match": {*got.Etag}})
	}
	if _, err := p.nics.BeginCreateOrUpdate(ctx, group, name, got.Interface, nil); err != nil {
		return readError(err)
	}
	return p.settleNIC(ctx, group, name)
}

// settleNIC waits until Azure has carried out the last change of an interface.
func (p *Provider) settleNIC(ctx context.Context, group, name string) error {
	for {
		got, err := p.nics.Get(ctx, group, name, nil)
		switch {
		case err != nil:
			return readError(err)
		case shownNIC(&got.Interface).ready():
			return nil
		case shownNIC(&got.Interface).failed():
			return nstance.Errorf(nstance.Unavailable, "the last change of network interface %s has failed", name)
		}
		if !sleep.For(ctx, nicPause) {
			return readError(ctx.Err())
		}
	}
}

// writers let one change at a time at each name.
type writers struct {
	mu   sync.Mutex
	held map[string]chan struct{} // closed when the writer of that name is done
}

func (w *writers) lock(ctx context.Context, name string) (unlock func(), err error) {
	for {
		w.mu.Lock()
		other := w.held[name]
		if other == nil {
			break
		}
		w.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	defer w.mu.Unlock()
	if w.held == nil {
		w.held = map[string]chan struct{}{}
	}
	done := make(chan struct{})
	w.held[name] = done
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.held, name)
		close(done)
	}, nil
}
