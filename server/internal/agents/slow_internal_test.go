package agents

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	apiv1 "github.com/nstance-go/nstance/api/v1"
)

// These tests are inside the package because peers that do not read are made
// of streams here: over a socket they first have to fill buffers of megabytes.

// A deaf stream takes a message only when told to.
type deaf[Req, Res any] struct {
	grpc.ServerStream
	ctx  context.Context
	take chan struct{} // one message each; closed: all of them
	gone chan struct{} // closed: the connection is
	sent []*Res
}

func (d *deaf[Req, Res]) Context() context.Context { return d.ctx }
func (d *deaf[Req, Res]) Recv() (*Req, error)      { <-d.gone; return nil, io.ErrUnexpectedEOF }
func (d *deaf[Req, Res]) Send(m *Res) error {
	select {
	case <-d.take:
		d.sent = append(d.sent, m)
		return nil
	case <-d.gone:
		return io.ErrUnexpectedEOF
	}
}

type deafAgent = deaf[apiv1.ConnectRequest, apiv1.ConnectResponse]

func newDeafAgent(t *testing.T) (*session, *deafAgent) {
	d := &deafAgent{ctx: t.Context(), take: make(chan struct{}), gone: make(chan struct{})}
	s := &session{stream: d, closeConnection: func() { close(d.gone) }, limiter: rate.NewLimiter(messagesPerSecond, messageBurst)}
	s.ctx, s.cancel = context.WithCancelCause(d.ctx)
	return s, d
}

func TestAgentThatDoesNotRead(t *testing.T) {
	t.Run("is left when too much waits for it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, d := newDeafAgent(t)
			context.AfterFunc(s.ctx, s.closeConnection)
			for i := range uint64(maxOutbox) + 1 { // one is on its way
				s.acknowledge(i)
				synctest.Wait()
			}
			require.NoError(t, s.ctx.Err())
			s.acknowledge(0)
			require.ErrorIs(t, context.Cause(s.ctx), errSlow)
			s.acknowledge(0) // harmless
			<-d.gone
			s.wg.Wait()
		})
	})
	t.Run("is not heard meanwhile, and left when that lasts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, d := newDeafAgent(t)
			context.AfterFunc(s.ctx, s.closeConnection)
			for i := range uint64(maxOutbox) {
				s.acknowledge(i)
			}
			began := time.Now()
			time.AfterFunc(sendTimeout/2, func() { close(d.take) })
			s.waitForAgent()
			require.Equal(t, sendTimeout/2, time.Since(began), "it has caught up")
			require.Len(t, d.sent, maxOutbox)

			d.take = make(chan struct{})
			for i := range uint64(maxOutbox) {
				s.acknowledge(i)
			}
			began = time.Now()
			s.waitForAgent()
			require.Equal(t, sendTimeout, time.Since(began))
			require.ErrorIs(t, context.Cause(s.ctx), errSlow)
			s.wg.Wait()
		})
	})
	t.Run("keeps no end of a session waiting", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, d := newDeafAgent(t)
			s.acknowledge(1)
			synctest.Wait() // stuck in Send
			began := time.Now()
			s.close(io.EOF)
			require.Equal(t, closeGrace, time.Since(began))
			<-d.gone
		})
	})
}

func TestPaceOfAnAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := newDeafAgent(t)
		close(d.take)
		began := time.Now()
		for range messageBurst {
			s.waitForAgent()
		}
		require.Zero(t, time.Since(began), "a burst is not slowed down")
		for range messagesPerSecond {
			s.waitForAgent()
		}
		require.InDelta(t, 1, time.Since(began).Seconds(), 0.001)
		s.cancel(nil)
	})
}

func TestFinishSendsWhatIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := newDeafAgent(t)
		close(d.take)
		s.finish(errDeleted)
		s.finish(errReplaced) // the first reason counts
		s.acknowledge(7)
		<-time.After(closeGrace - time.Millisecond)
		synctest.Wait()
		require.NoError(t, s.ctx.Err())
		require.EqualValues(t, 7, d.sent[0].GetAcknowledgement().GetNumber())
		<-s.ctx.Done()
		require.ErrorIs(t, context.Cause(s.ctx), errDeleted)
		s.wg.Wait()
	})
}
