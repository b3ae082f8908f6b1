package agent // a route is plain data

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRoute(t *testing.T) {
	newRoute := func(addrs ...string) *route { return &route{addrs: addrs} }

	t.Run("the first attempt is at once, the next to the next address", func(t *testing.T) {
		r := newRoute("a:1", "b:1")
		addr, wait := r.step()
		require.Equal(t, "a:1", addr)
		require.Zero(t, wait)
		r.failed(0, false)
		addr, _ = r.step()
		require.Equal(t, "b:1", addr)
		r.failed(0, false)
		addr, _ = r.step()
		require.Equal(t, "a:1", addr)
	})
	t.Run("waits have full jitter and never pass 5 s", func(t *testing.T) {
		r := newRoute("a:1")
		var least, most time.Duration = time.Hour, 0
		for range 2000 {
			r.failed(0, false)
			_, wait := r.step()
			least, most = min(least, wait), max(most, wait)
		}
		require.Less(t, least, time.Second)
		require.Greater(t, most, 4*time.Second)
		require.LessOrEqual(t, most, 5*time.Second)
	})
	t.Run("a session that lasted starts the count again", func(t *testing.T) {
		r := newRoute("a:1")
		for range 100 {
			r.failed(0, false)
		}
		r.failed(time.Minute, false)
		for range 100 {
			require.Less(t, r.wait(), firstBackoff)
		}
	})
	t.Run("a refusal by every address is repeated slowly", func(t *testing.T) {
		r := newRoute("a:1", "b:1")
		r.failed(0, true)
		require.LessOrEqual(t, r.wait(), maxBackoff, "the other one has not refused yet")
		r.failed(0, true)
		require.GreaterOrEqual(t, r.wait(), slowBackoff/2)
		require.LessOrEqual(t, r.wait(), slowBackoff)
		r.failed(0, false)
		require.LessOrEqual(t, r.wait(), maxBackoff)
	})
	t.Run("go away means at once, to the suggested addresses first", func(t *testing.T) {
		r := newRoute("a:1")
		r.step()
		r.sent([]string{"leader:1", "not an address", "leader:1", "other:1"}, time.Minute)
		addr, wait := r.step()
		require.Equal(t, "leader:1", addr)
		require.Zero(t, wait)
		r.failed(0, false)
		addr, _ = r.step()
		require.Equal(t, "other:1", addr)
		r.failed(0, false)
		addr, _ = r.step()
		require.Equal(t, "a:1", addr)
	})
	t.Run("go away without address means at once, too", func(t *testing.T) {
		r := newRoute("a:1", "b:1")
		r.step()
		r.sent(nil, time.Minute)
		addr, wait := r.step()
		require.Equal(t, "b:1", addr)
		require.Zero(t, wait)
	})
	t.Run("servers that send agents to each other do not make them spin", func(t *testing.T) {
		r := newRoute("a:1")
		for range maxHops {
			r.sent([]string{"b:1"}, 0)
			_, wait := r.step()
			require.Zero(t, wait)
		}
		waited := time.Duration(0)
		for range 100 {
			r.sent([]string{"b:1"}, 0)
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
		r.sent(many, 0)
		require.LessOrEqual(t, len(r.suggested), maxSuggested)
	})
	t.Run("after a renewal the same server at once", func(t *testing.T) {
		r := newRoute("a:1", "b:1")
		addr, _ := r.step()
		r.again(addr)
		addr, wait := r.step()
		require.Equal(t, "a:1", addr)
		require.Zero(t, wait)
	})
	t.Run("a report is never later than its interval", func(t *testing.T) {
		for range 1000 {
			d := early(time.Minute)
			require.LessOrEqual(t, d, time.Minute)
			require.Greater(t, d, 53*time.Second)
		}
	})
}
