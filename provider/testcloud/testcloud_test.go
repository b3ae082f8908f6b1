package testcloud_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/provider/testcloud"
)

func TestBucket(t *testing.T) {
	now := time.Unix(0, 0)
	b := testcloud.Bucket{Burst: 2, PerSecond: 4}
	require.True(t, b.Take(now))
	require.True(t, b.Take(now))
	require.False(t, b.Take(now))
	require.False(t, b.Take(now.Add(200*time.Millisecond)))
	require.True(t, b.Take(now.Add(250*time.Millisecond)))
	require.True(t, b.Take(now.Add(time.Hour)))
	require.True(t, b.Take(now.Add(time.Hour)))
	require.False(t, b.Take(now.Add(time.Hour)), "no more than the burst")
}

func TestCapacity(t *testing.T) {
	var c testcloud.Capacity
	s := testcloud.Shape{Type: "m5.large", Zone: "a", Spot: true}
	require.True(t, c.Take(s))
	c.Set(s, 1)
	require.True(t, c.Take(s))
	require.False(t, c.Take(s))
	require.True(t, c.Take(testcloud.Shape{Type: "m5.large", Zone: "a"}), "another market")
	c.Release(s)
	require.True(t, c.Take(s))
}

func TestFaults(t *testing.T) {
	var f testcloud.Faults
	var effects atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.Serve(w, r, "Op", func(http.ResponseWriter, *http.Request) { effects.Add(1) })
	}))
	t.Cleanup(server.Close)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // which would repeat a lost read
	call := func() error {
		r, err := client.Get(server.URL)
		if err == nil {
			defer r.Body.Close()
			require.Equal(t, http.StatusOK, r.StatusCode)
		}
		return err
	}
	f.Next("Op", testcloud.Fault{}, testcloud.Fault{Lost: testcloud.LostRequest}, testcloud.Fault{Lost: testcloud.LostAnswer})
	require.NoError(t, call())
	require.EqualValues(t, 1, effects.Load())
	require.Error(t, call())
	require.EqualValues(t, 1, effects.Load())
	require.Error(t, call())
	require.EqualValues(t, 2, effects.Load())
	require.NoError(t, call())
	require.Equal(t, map[string]int{"Op": 4}, f.Calls())
}
