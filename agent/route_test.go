package agent // tests routes without sessions

import (
	"cmp"
	"container/heap"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRoute(t *testing.T) {
	t.Parallel()
	newRoute := func(addrs ...string) *route { return &route{addrs: addrs} }

	t.Run("the first attempt is at once, the next to the next address", func(t *testing.T) {
		r := newRoute("a:1", "b:1")
		addr, wait := r.step()
		require.Equal(t, "a:1", addr)
		require.Zero(t, wait)
		r.recordFailure(0, false)
		addr, _ = r.step()
		require.Equal(t, "b:1", addr)
		r.recordFailure(0, false)
		addr, _ = r.step()
		require.Equal(t, "a:1", addr)
	})
	t.Run("waits have full jitter, of up to 5 s and in a long outage of up to a minute", func(t *testing.T) {
		least, most := make([]time.Duration, 20), make([]time.Duration, 20)
		for range 2000 {
			r := newRoute("a:1")
			for i := range least {
				r.recordFailure(0, false)
				_, wait := r.step()
				least[i], most[i] = min(cmp.Or(least[i], time.Hour), wait), max(most[i], wait)
			}
		}
		for i, limit := range []int{1, 2, 4, 5, 5, 5, 5, 5, 5, 5, 10, 20, 40, 60, 60, 60, 60, 60, 60, 60} {
			require.Less(t, least[i], time.Duration(limit)*time.Second/10, "failure %d", i+1)
			require.Greater(t, most[i], time.Duration(limit)*time.Second*9/10, "failure %d", i+1)
			require.LessOrEqual(t, most[i], time.Duration(limit)*time.Second, "failure %d", i+1)
		}
	})
	t.Run("an answer at the other port ends the long outage", func(t *testing.T) {
		r := newRoute("a:1")
		for range 100 {
			r.recordFailure(0, false)
		}
		r.shortenBackoff()
		for range 100 {
			require.LessOrEqual(t, r.wait(), maxBackoff)
		}
	})
	t.Run("a session that lasted starts the count again", func(t *testing.T) {
		r := newRoute("a:1")
		for range 100 {
			r.recordFailure(0, false)
		}
		r.recordFailure(time.Minute, false)
		for range 100 {
			require.Less(t, r.wait(), firstBackoff)
		}
	})
	t.Run("a refusal by every address is repeated slowly", func(t *testing.T) {
		r := newRoute("a:1", "b:1")
		r.recordFailure(0, true)
		require.LessOrEqual(t, r.wait(), maxBackoff, "the other one has not refused yet")
		r.recordFailure(0, true)
		require.GreaterOrEqual(t, r.wait(), slowBackoff/2)
		require.LessOrEqual(t, r.wait(), slowBackoff)
		r.recordFailure(0, false)
		require.LessOrEqual(t, r.wait(), maxBackoff)
	})
	t.Run("go away reconnects at once, to the suggested addresses first", func(t *testing.T) {
		r := newRoute("a:1")
		r.step()
		r.redirect([]string{"leader:1", "not an address", "leader:1", "other:1"}, time.Minute)
		addr, wait := r.step()
		require.Equal(t, "leader:1", addr)
		require.Zero(t, wait)
		r.recordFailure(0, false)
		addr, _ = r.step()
		require.Equal(t, "other:1", addr)
		r.recordFailure(0, false)
		addr, _ = r.step()
		require.Equal(t, "a:1", addr)
	})
	t.Run("go away without address reconnects at once", func(t *testing.T) {
		r := newRoute("a:1", "b:1")
		r.step()
		r.redirect(nil, time.Minute)
		addr, wait := r.step()
		require.Equal(t, "b:1", addr)
		require.Zero(t, wait)
	})
	t.Run("servers that redirect agents to each other cause no loop", func(t *testing.T) {
		r := newRoute("a:1")
		for range maxRedirects {
			r.redirect([]string{"b:1"}, 0)
			_, wait := r.step()
			require.Zero(t, wait)
		}
		waited := time.Duration(0)
		for range 100 {
			r.redirect([]string{"b:1"}, 0)
			_, wait := r.step()
			waited += wait
		}
		require.Greater(t, waited, 100*time.Second)
	})
	t.Run("suggestions are bounded", func(t *testing.T) {
		r := newRoute("a:1")
		var many []string
		for port := range 100 {
			many = append(many, "h:"+time.Duration(port + 1).String()[:1])
		}
		r.redirect(many, 0)
		require.LessOrEqual(t, len(r.suggested), maxSuggested)
	})
	t.Run("after a renewal the same server is dialled at once", func(t *testing.T) {
		r := newRoute("a:1", "b:1")
		addr, _ := r.step()
		r.reconnectNow(addr)
		addr, wait := r.step()
		require.Equal(t, "a:1", addr)
		require.Zero(t, wait)
	})
	t.Run("a report is never later than its interval", func(t *testing.T) {
		for range 1000 {
			d := shortened(time.Minute)
			require.LessOrEqual(t, d, time.Minute)
			require.Greater(t, d, 53*time.Second)
		}
	})
}

// A nextDial is the time of an agent's next dial.
type nextDial struct {
	at    time.Duration
	route *route
}

// A dialQueue is a heap of dials by time.
type dialQueue []nextDial

func (d dialQueue) Len() int           { return len(d) }
func (d dialQueue) Less(i, j int) bool { return d[i].at < d[j].at }
func (d dialQueue) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *dialQueue) Push(x any)        { *d = append(*d, x.(nextDial)) }
func (d *dialQueue) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}

// TestFleetInLongOutage simulates an hour of 10,000 agents that lost their servers at
// the same time. Each dials every 30 s on average, together 333 times per second.
func TestFleetInLongOutage(t *testing.T) {
	t.Parallel()
	const (
		agents, limit = 10_000, 400
		window, end   = 10 * time.Second, time.Hour
		settled       = 5 * time.Minute // by then every agent is in the long outage
	)
	for name, refusal := range map[string]bool{"that do not answer, or do not lead": false, "that refuse": true} {
		t.Run("servers "+name, func(t *testing.T) {
			var queue dialQueue
			for range agents {
				r := &route{addrs: []string{"a:1", "b:1"}}
				r.recordFailure(time.Hour, refusal) // after a healthy session
				_, wait := r.step()
				heap.Push(&queue, nextDial{wait, r})
			}
			counts := make([]int, end/window)
			for queue[0].at < end {
				next, _ := heap.Pop(&queue).(nextDial)
				counts[next.at/window]++
				next.route.recordFailure(0, refusal)
				_, wait := next.route.step()
				heap.Push(&queue, nextDial{next.at + wait, next.route})
			}
			for i := int(settled / window); i < len(counts); i++ {
				require.Less(t, counts[i], limit*int(window/time.Second), "from %v on", time.Duration(i)*window)
				require.Positive(t, counts[i])
			}
		})
	}
}
