package lease

import (
	"context"
	"sync"
)

// A watchMessage is an announcement of the holder, or the end of its stream.
type watchMessage struct {
	Announcement
	broken bool
}

// A watch listens to the holder for as long as one campaign lasts.
type watch struct {
	lease    *Lease
	ctx      context.Context
	messages chan watchMessage // nil: there is no watch
	holder   Holder
	stop     context.CancelFunc
	wg       sync.WaitGroup
}

func (w *watch) begin(ctx context.Context, l *Lease) {
	w.lease, w.ctx, w.stop = l, ctx, func() {}
	if l.opts.Watch != nil {
		w.messages = make(chan watchMessage)
	}
}

func (w *watch) end() {
	w.stop()
	w.wg.Wait()
}

// follow listens to h from now on.
func (w *watch) follow(h Holder) {
	if w.messages == nil || h.Self || h.Released || h.Peer == "" {
		h = Holder{}
	}
	if h == w.holder {
		return
	}
	w.stop()
	w.holder, w.stop = h, func() {}
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
			if err != nil || !w.send(ctx, watchMessage{Announcement: a}) {
				break
			}
		}
		if !w.send(ctx, watchMessage{broken: true}) || !sleep(ctx, w.lease.clock, w.lease.opts.Poll) {
			return
		}
	}
}

func (w *watch) send(ctx context.Context, m watchMessage) bool {
	select {
	case w.messages <- m:
		return true
	case <-ctx.Done():
		return false
	}
}
