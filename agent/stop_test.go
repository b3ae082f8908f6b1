package agent_test

import (
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/spot"
)

// TestStopLeavesTheHookItsTime: SIGTERM of the agent comes with the reclaim on some clouds.
func TestStopLeavesTheHookItsTime(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T, s *testShard, m *machine) (h *hookLog, v *serverSession, deadline time.Time, stopped chan struct{}, stop func()) {
		h = m.hook()
		cloud := imds.New(&imds.Options{Spot: true})
		m.setCloud(cloud)
		_, end := m.start()
		v = s.awaitSession()
		deadline = time.Now().Add(30 * time.Second)
		cloud.Reclaim("terminate", deadline)
		v.awaitMessage(t, isNotice)
		stopped = make(chan struct{})
		return h, v, deadline, stopped, func() { go func() { end(); close(stopped) }() }
	}
	t.Run("one that runs goes on, and its result arrives", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h, v, deadline, stopped, stop := begin(t, s, m)
			v.drain(1, deadline)
			advance(2 * time.Second)
			stop()
			advance(20 * time.Second)
			runs, _, ended := h.log()
			require.Len(t, runs, 1)
			require.Zero(t, ended)
			h.finish <- nstance.OutcomeDrained
			result := v.awaitMessage(t, isResult).GetDrainResult()
			require.EqualValues(t, 1, result.GetGeneration())
			require.Equal(t, "drained", result.GetOutcome())
			<-stopped
			require.Less(t, time.Until(deadline), 10*time.Second)
		})
	})
	t.Run("until its deadline", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h, v, deadline, stopped, stop := begin(t, s, m)
			v.drain(1, deadline)
			advance(2 * time.Second)
			stop()
			<-stopped
			_, _, ended := h.log()
			require.Equal(t, 1, ended)
			require.InDelta(t, 0, time.Until(deadline).Seconds(), 2)
		})
	})
	t.Run("one whose command is on its way runs", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h, v, deadline, stopped, stop := begin(t, s, m)
			stop()
			advance(time.Second)
			v.drain(1, deadline)
			advance(time.Second)
			h.finish <- nstance.OutcomeDrained
			<-stopped
			runs, _, _ := h.log()
			require.Len(t, runs, 1)
		})
	})
	t.Run("one that no server commands runs", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			s.configure(func() { s.withholdAcks = true })
			h, _, _, stopped, stop := begin(t, s, m)
			stop()
			h.finish <- nstance.OutcomeDrained
			<-stopped
			runs, _, _ := h.log()
			require.Len(t, runs, 1)
		})
	})
	t.Run("that comes at the same moment as the notice", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h := m.hook()
			cloud := imds.New(&imds.Options{Protocol: imds.GCP, Spot: true})
			d, err := spot.NewGCP(&spot.Options{BaseURL: "http://metadata.test", Client: &http.Client{Transport: inProcess{cloud}}})
			require.NoError(t, err)
			m.options.Detector = d
			_, end := m.start()
			s.awaitSession()
			advance(time.Minute)
			stopped := make(chan struct{})
			go func() { end(); close(stopped) }()
			synctest.Wait() // the agent knows that it is to stop
			cloud.Reclaim("preempt", time.Now().Add(30*time.Second))
			h.finish <- nstance.OutcomeDrained
			<-stopped
			runs, _, _ := h.log()
			require.Len(t, runs, 1)
		})
	})
	t.Run("one that was acknowledged by servers that are away runs", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h, _, _, stopped, stop := begin(t, s, m)
			advance(time.Second)
			s.stop()
			advance(time.Second)
			stop()
			advance(3 * time.Second) // less than it waits for a server otherwise
			runs, _, _ := h.log()
			require.Len(t, runs, 1)
			h.finish <- nstance.OutcomeDrained
			<-stopped
		})
	})
	t.Run("one that has ended is not waited for", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h, v, deadline, stopped, stop := begin(t, s, m)
			v.drainFor(noticesOf(v.awaitMessage(t, isReport))[0].GetEventId(), 1, deadline)
			h.finish <- nstance.OutcomeDrained
			v.awaitMessage(t, isResult)
			began := time.Now()
			stop()
			<-stopped
			require.Less(t, time.Since(began), 2*time.Second)
		})
	})
	t.Run("one that has ended for another cause is not enough", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h, v, deadline, stopped, stop := begin(t, s, m)
			v.drainFor("another", 1, deadline)
			h.finish <- nstance.OutcomeDrained
			v.awaitMessage(t, isResult)
			stop()
			advance(time.Second)
			v.drain(2, deadline)
			h.finish <- nstance.OutcomeDrained
			<-stopped
			runs, _, _ := h.log()
			require.Len(t, runs, 2)
		})
	})
	t.Run("without a drain it stops at once", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			m.hook()
			_, stop := m.start()
			s.awaitSession()
			began := time.Now()
			stop()
			require.Less(t, time.Since(began), 2*time.Second)
		})
	})
}

// TestDrainWithoutServers: a notice ends in a drain, whatever became of the servers that knew of it.
func TestDrainWithoutServers(t *testing.T) {
	t.Parallel()
	for _, left := range []time.Duration{30 * time.Second, 2 * time.Minute} {
		t.Run("acknowledged before every server went away, "+left.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *testShard, m *machine) {
				h := m.hook()
				cloud := imds.New(&imds.Options{Spot: true})
				m.setCloud(cloud)
				_, stop := m.start()
				v := s.awaitSession()
				cloud.Reclaim("terminate", time.Now().Add(left))
				v.awaitMessage(t, isNotice)
				advance(100 * time.Millisecond)
				s.stop()
				advance(left / 2)
				runs, at, _ := h.log()
				require.Len(t, runs, 1)
				require.Greater(t, runs[0].Deadline.Sub(at[0]), left/2, "time is left")
				h.finish <- nstance.OutcomeDrained
				stop()
			})
		})
		t.Run("cut off by a restart, "+left.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *testShard, m *machine) {
				h := m.hook()
				cloud := imds.New(&imds.Options{Spot: true})
				m.setCloud(cloud)
				_, stop := m.start()
				v := s.awaitSession()
				deadline := time.Now().Add(left)
				cloud.Reclaim("terminate", deadline)
				v.awaitMessage(t, isNotice)
				advance(time.Second)
				saved, err := os.ReadFile(m.path("notices.json")) // as a crash leaves it
				require.NoError(t, err)
				stop()
				s.stop()
				m.writeIdentityFile("notices.json", string(saved))
				before, _, _ := h.log()
				m.setCloud(cloud)
				_, stop = m.start()
				advance(left / 2)
				runs, _, _ := h.log()
				require.Len(t, runs, len(before)+1)
				h.finish <- nstance.OutcomeDrained
				stop()
			})
		})
	}
	t.Run("acknowledged long before every server went away", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h := m.hook()
			cloud := imds.New(&imds.Options{Spot: true})
			m.setCloud(cloud)
			_, stop := m.start()
			v := s.awaitSession()
			cloud.Reclaim("terminate", time.Now().Add(10*time.Minute))
			v.awaitMessage(t, isNotice)
			advance(time.Minute)
			s.stop()
			advance(30 * time.Second)
			runs, _, _ := h.log()
			require.Len(t, runs, 1)
			h.finish <- nstance.OutcomeDrained
			stop()
		})
	})
	t.Run("a server that is away for a moment keeps its drain", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *testShard, m *machine) {
			h := m.hook()
			cloud := imds.New(&imds.Options{Spot: true})
			m.setCloud(cloud)
			_, stop := m.start()
			v := s.awaitSession()
			cloud.Reclaim("terminate", time.Now().Add(time.Hour))
			v.awaitMessage(t, isNotice)
			advance(time.Second)
			v.endWith <- nil
			s.awaitSession()
			advance(time.Minute)
			runs, _, _ := h.log()
			require.Empty(t, runs)
			stop()
		})
	})
}
