package agents

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/test/slowpeer"
)

type slowAgent = slowpeer.Stream[apiv1.ConnectRequest, apiv1.ConnectResponse]

func newSlowAgent(t *testing.T) (*session, *slowAgent) {
	d := slowpeer.New[apiv1.ConnectRequest, apiv1.ConnectResponse](t.Context())
	s := &session{stream: d, closeConnection: func() { close(d.Gone) }, limiter: rate.NewLimiter(messagesPerSecond, messageBurst)}
	s.ctx, s.cancel = context.WithCancelCause(d.Ctx)
	return s, d
}

func TestAgentThatDoesNotRead(t *testing.T) {
	t.Run("is left when too much waits for it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, d := newSlowAgent(t)
			context.AfterFunc(s.ctx, s.closeConnection)
			for i := range uint64(maxOutbox) + 1 { // one is on its way
				s.send(drainCancel(i))
				synctest.Wait()
			}
			require.NoError(t, s.ctx.Err())
			s.send(drainCancel(0))
			require.ErrorIs(t, context.Cause(s.ctx), errSlow)
			s.send(drainCancel(0)) // harmless
			<-d.Gone
			s.wg.Wait()
		})
	})
	t.Run("is not heard meanwhile, and left when that lasts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, d := newSlowAgent(t)
			context.AfterFunc(s.ctx, s.closeConnection)
			for i := range uint64(maxOutbox) {
				s.send(drainCancel(i))
			}
			began := time.Now()
			time.AfterFunc(sendTimeout/2, func() { close(d.Read) })
			s.waitForAgent()
			require.Equal(t, sendTimeout/2, time.Since(began), "it has caught up")
			require.Len(t, d.Sent, maxOutbox)

			d.Read = make(chan struct{})
			for i := range uint64(maxOutbox) {
				s.send(drainCancel(i))
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
			s, d := newSlowAgent(t)
			s.send(drainCancel(1))
			synctest.Wait() // stuck in Send
			began := time.Now()
			s.close(io.EOF)
			require.Equal(t, closeGrace, time.Since(began))
			<-d.Gone
		})
	})
}

func TestPaceOfAnAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := newSlowAgent(t)
		close(d.Read)
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
		s, d := newSlowAgent(t)
		close(d.Read)
		s.finish(ErrDeleted)
		s.finish(errReplaced) // the first reason counts
		s.send(drainCancel(7))
		<-time.After(closeGrace - time.Millisecond)
		synctest.Wait()
		require.NoError(t, s.ctx.Err())
		require.EqualValues(t, 7, d.Sent[0].GetDrainCancel().GetGeneration())
		<-s.ctx.Done()
		require.ErrorIs(t, context.Cause(s.ctx), ErrDeleted)
		s.wg.Wait()
	})
}
