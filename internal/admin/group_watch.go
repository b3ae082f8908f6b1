package admin

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"

	"google.golang.org/grpc"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// A groupWatch holds the groups of one name, of all tenants, from a stream that is
// resumed after it broke.
type groupWatch struct {
	name   string
	after  uint64 // sequence number of the last message
	synced bool   // known is complete
	known  map[nstance.GroupKey]*apiv1.Group
	next   map[nstance.GroupKey]*apiv1.Group // a snapshot under way
}

// A groupMessage is one message of a stream, or the error that ended it.
type groupMessage struct {
	msg *apiv1.WatchGroupsResponse
	err error
}

// open begins or resumes the stream. serve, which the caller runs and waits for,
// sends its messages to the channel until ctx ends; the last one is an error.
func (g *groupWatch) open(ctx context.Context, c *client) (arrivals <-chan groupMessage, serve func(), err error) {
	stream, err := c.WatchGroups(ctx, &apiv1.WatchGroupsRequest{AfterSeq: g.after, Group: g.name})
	if err != nil {
		return nil, nil, explain(c.addr, noTimeout, err)
	}
	g.next = nil
	out := make(chan groupMessage)
	return out, func() { forward(ctx, c.addr, stream, out) }, nil
}

func forward(ctx context.Context, addr string, stream grpc.ServerStreamingClient[apiv1.WatchGroupsResponse], out chan<- groupMessage) {
	for err := error(nil); err == nil; {
		var h groupMessage
		h.msg, err = stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			h.err = nstance.Errorf(nstance.Unavailable, "%s ended the stream", addr)
		case err != nil:
			h.err = explain(addr, noTimeout, err)
		}
		select {
		case out <- h:
		case <-ctx.Done():
			return
		}
	}
}

// handleMessage applies a message, and reports whether it may have changed a group.
func (g *groupWatch) handleMessage(msg *apiv1.WatchGroupsResponse) bool {
	switch m := msg.GetMessage().(type) {
	case *apiv1.WatchGroupsResponse_Snapshot:
		if g.next == nil {
			g.next = map[nstance.GroupKey]*apiv1.Group{}
		}
		g.next[wire.GroupKeyOf(m.Snapshot)] = m.Snapshot
		return false
	case *apiv1.WatchGroupsResponse_Synced:
		g.known, g.next, g.synced, g.after = g.next, nil, true, m.Synced.GetSeq()
	case *apiv1.WatchGroupsResponse_Changed:
		one := m.Changed.GetGroup()
		if g.known == nil {
			g.known = map[nstance.GroupKey]*apiv1.Group{}
		}
		g.known[wire.GroupKeyOf(one)], g.after = one, m.Changed.GetSeq()
	case *apiv1.WatchGroupsResponse_Removed:
		delete(g.known, wire.GroupKeyOf(m.Removed))
		g.after = m.Removed.GetSeq()
	default: // about the certificate, which the link handles
		return false
	}
	return true
}

// group returns the group of the tenant.
func (g *groupWatch) group(tenant nstance.TenantID) (*apiv1.Group, error) {
	return pick(slices.Collect(maps.Values(g.known)), tenant, g.name)
}
