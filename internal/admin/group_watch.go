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
)

// A groupWatch is what is known of the groups of one name, of whatever tenant,
// from a stream that is resumed where it broke.
type groupWatch struct {
	name   string
	after  uint64 // what has been seen
	synced bool   // what is known is whole
	known  map[nstance.GroupKey]Group
	next   map[nstance.GroupKey]Group // a snapshot under way
}

// heard is one message of a stream, or why there is none any more.
type heard struct {
	msg *apiv1.WatchGroupsResponse
	err error
}

// open begins or resumes the stream. What arrives goes to the channel until ctx
// ends, and the last is an error: serve, which does that, is for the caller to
// run and to wait for.
func (g *groupWatch) open(ctx context.Context, c *client) (arrivals <-chan heard, serve func(), err error) {
	stream, err := c.WatchGroups(ctx, &apiv1.WatchGroupsRequest{AfterSeq: g.after, Group: g.name})
	if err != nil {
		return nil, nil, explain(c.addr, 0, err)
	}
	g.next = nil
	out := make(chan heard)
	return out, func() { forward(ctx, c.addr, stream, out) }, nil
}

func forward(ctx context.Context, addr string, stream grpc.ServerStreamingClient[apiv1.WatchGroupsResponse], out chan<- heard) {
	for err := error(nil); err == nil; {
		var h heard
		h.msg, err = stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			h.err = nstance.Errorf(nstance.Unavailable, "%s ended the stream", addr)
		case err != nil:
			h.err = explain(addr, 0, err)
		}
		select {
		case out <- h:
		case <-ctx.Done():
			return
		}
	}
}

// take notes a message, and reports whether anything may have changed by it.
func (g *groupWatch) take(msg *apiv1.WatchGroupsResponse) bool {
	switch m := msg.GetMessage().(type) {
	case *apiv1.WatchGroupsResponse_Snapshot:
		if g.next == nil {
			g.next = map[nstance.GroupKey]Group{}
		}
		one := groupOf(m.Snapshot)
		g.next[one.key()] = one
		return false
	case *apiv1.WatchGroupsResponse_Synced:
		g.known, g.next, g.synced, g.after = g.next, nil, true, m.Synced.GetSeq()
	case *apiv1.WatchGroupsResponse_Changed:
		one := groupOf(m.Changed.GetGroup())
		if g.known == nil {
			g.known = map[nstance.GroupKey]Group{}
		}
		g.known[one.key()], g.after = one, m.Changed.GetSeq()
	case *apiv1.WatchGroupsResponse_Removed:
		delete(g.known, nstance.GroupKey{Tenant: nstance.TenantID(m.Removed.GetTenant()), Group: nstance.GroupID(m.Removed.GetGroup())})
		g.after = m.Removed.GetSeq()
	default: // about the certificate, to which the link sees
		return false
	}
	return true
}

// group returns the one that is meant.
func (g *groupWatch) group(tenant nstance.TenantID) (Group, error) {
	return pick(slices.Collect(maps.Values(g.known)), tenant, g.name)
}
