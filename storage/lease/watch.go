package lease

import (
	"context"
	"sync"
)

// heard is what a watch says.
type heard struct {
	Announcement
	broken bool
}

// A watch listens to the holder for as long as one campaign lasts.
type watch struct {
	lease *Lease
	ctx   context.Context
	heard chan heard // nil: nobody watches
	to    Holder
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

func (w *watch) begin(ctx context.Context, l *Lease) {
	w.lease, w.ctx, w.stop = l, ctx, func() {}
	if l.opts.Watch != nil {
		w.heard = make(chan heard)
	}
}

func (w *watch) end() {
	w.stop()
	w.wg.Wait()
}

// follow listens to h from now on.
func (w *watch) follow(h Holder) {
	if w.heard == nil || h.Self || h.Released || h.Peer == "" {
		h = Holder{}
	}
	if h == w.to {
		return
	}
	w.stop()
	w.to, w.stop = h, func() {}
	if h == (Holder{}) {
		return
	}
	ctx, stop := context.WithCancel(w.ctx)
	w.stop = stop
	w.wg.Go(func() { w.run(ctx, h) })
}

func (w *watch) run(ctx context.Context, h Holder) {
	for {
		for a, err := range w.lease.opts.Watch(ctx, h) {
			if err != nil || !w.tell(ctx, heard{Announcement: a}) {
				break
			}
		}
		if !w.tell(ctx, heard{broken: true}) || !sleep(ctx, w.lease.clock, w.lease.opts.Poll) {
			return
		}
	}
}

func (w *watch) tell(ctx context.Context, h heard) bool {
	select {
	case w.heard <- h:
		return true
	case <-ctx.Done():
		return false
	}
}
