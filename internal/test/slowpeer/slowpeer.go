// Package slowpeer is one end of a stream whose peer reads only when a test lets it: over
// a socket such a peer first has to fill buffers of megabytes.
package slowpeer

import (
	"context"
	"io"

	"google.golang.org/grpc"
)

// A Stream is the server's end of a stream.
type Stream[Req, Res any] struct {
	grpc.ServerStream
	Ctx  context.Context
	Read chan struct{} // the peer reads one message for each; closed: all of them
	Gone chan struct{} // closed: the connection is
	Sent []*Res        // what the peer has read
}

// New returns a stream whose peer reads nothing yet.
func New[Req, Res any](ctx context.Context) *Stream[Req, Res] {
	return &Stream[Req, Res]{Ctx: ctx, Read: make(chan struct{}), Gone: make(chan struct{})}
}

// Context implements grpc.ServerStream.
func (s *Stream[Req, Res]) Context() context.Context { return s.Ctx }

// Recv blocks until the connection is gone.
func (s *Stream[Req, Res]) Recv() (*Req, error) {
	<-s.Gone
	return nil, io.ErrUnexpectedEOF
}

// Send blocks until the peer reads, or the connection is gone.
func (s *Stream[Req, Res]) Send(m *Res) error {
	select {
	case <-s.Read:
		s.Sent = append(s.Sent, m)
		return nil
	case <-s.Gone:
		return io.ErrUnexpectedEOF
	}
}
