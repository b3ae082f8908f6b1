package proxmox_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/testcloud"
	"github.com/nstance-go/nstance/provider/testcloud/inmemory"
	"github.com/nstance-go/nstance/proxmox"
	"github.com/nstance-go/nstance/proxmox/pvetest"
)

// A silence keeps connections open without an answer. Calls are named by method, host and path.
type silence struct {
	base   http.RoundTripper
	method string
	part   string // of host and path
	body   bool   // only the body is missing
	on     atomic.Bool
}

func (s *silence) RoundTrip(r *http.Request) (*http.Response, error) {
	if !s.on.Load() || r.Method != s.method || !strings.Contains(r.URL.Host+r.URL.Path, s.part) {
		return s.base.RoundTrip(r)
	}
	if s.body {
		return &http.Response{StatusCode: http.StatusOK, Body: silentBody{r}}, nil
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

type silentBody struct{ r *http.Request }

func (b silentBody) Read([]byte) (int, error) {
	<-b.r.Context().Done()
	return 0, b.r.Context().Err()
}

func (silentBody) Close() error { return nil }

// inSilence runs test in a bubble, with a cluster of two endpoints behind s, whose silence
// has not begun.
func inSilence(t *testing.T, s *silence, test func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cloud := pvetest.New(nil)
		s.base = inmemory.Transport{Handler: cloud, Latency: 10 * time.Millisecond}
		t.Setenv(proxmox.TokenVariable, "root@pam!test=secret")
		p, err := proxmox.New(proxmox.Options{
			Endpoint: "http://pve1.example", FallbackEndpoints: []string{"http://pve2.example"},
			InstanceTypes: map[string]proxmox.InstanceType{"small": {Cores: 1, Memory: 1024}},
		}, s, nil)
		require.NoError(t, err)
		defer func() {
			require.NoError(t, p.Close())
			require.NoError(t, cloud.Close())
		}()
		test(&bench{T: t, cloud: cloud, p: p, owner: nstance.Owner{Installation: "abc", Cluster: "c1", Shard: "s1", Tenant: "default"}})
	})
}

// TestDeleteWithoutAnswer: a delete that gets no answer is repeated, and says so.
func TestDeleteWithoutAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		s    *silence
		code nstance.Code
		text string
	}{
		"configuration":      {&silence{method: "GET", part: "/config"}, nstance.Unavailable, "no answer"},
		"body":               {&silence{method: "GET", part: "/config", body: true}, nstance.Unavailable, "no answer: context deadline exceeded"},
		"stop":               {&silence{method: "POST", part: "/status/stop"}, nstance.Ambiguous, "no answer"},
		"destroy":            {&silence{method: "DELETE", part: "/qemu/"}, nstance.Ambiguous, "no answer"},
		"end of the stop":    {&silence{method: "GET", part: ":qmstop:"}, nstance.NotFound, "no machine"}, // the machine is seen to be stopped
		"end of the destroy": {&silence{method: "GET", part: ":qmdestroy:"}, nstance.NotFound, "no machine"},
		"one endpoint":       {&silence{method: "GET", part: "pve1.example"}, nstance.NotFound, "no machine"},
	} {
		t.Run(name, func(t *testing.T) {
			inSilence(t, c.s, func(b *bench) {
				m := b.create(b.spec())
				<-time.After(time.Minute) // its creation is over
				require.NoError(t, b.p.Delete(b.Context(), m))
				c.s.on.Store(true)
				<-time.After(3 * time.Minute)
				err := b.p.Delete(b.Context(), m)
				b.refused(c.code, err)
				require.ErrorContains(t, err, c.text)
				c.s.on.Store(false)
				b.gone(b.p, m)
				require.Empty(t, b.cloud.Machines())
			})
		})
	}
}

// TestCreateWithoutAnswer: a machine that gets no answer while it is made says so, and is
// finished.
func TestCreateWithoutAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		s    *silence
		text string // of the cause
	}{
		"clone":         {&silence{method: "GET", part: ":qmclone:"}, ""}, // the machine is seen to be cloned
		"configuration": {&silence{method: "POST", part: "/config"}, "no answer"},
		"start":         {&silence{method: "POST", part: "/status/start"}, "no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			inSilence(t, c.s, func(b *bench) {
				c.s.on.Store(true)
				m := b.create(b.spec())
				<-time.After(3 * time.Minute)
				m, err := b.p.Get(b.Context(), m.ID)
				require.NoError(t, err)
				require.Contains(t, m.CauseText, c.text)
				c.s.on.Store(false)
				<-time.After(time.Minute)
				b.running(b.p, m.ID)
			})
		})
	}
}

// TestUpload: an image may take longer than another call, and not for ever.
func TestUpload(t *testing.T) {
	const call = "POST /nodes/{node}/storage/{storage}/upload"
	inSilence(t, &silence{}, func(b *bench) {
		held := make(chan struct{})
		time.AfterFunc(time.Minute, func() { close(held) })
		b.cloud.Faults().Next(call, testcloud.Fault{Held: held})
		m := b.create(b.spec())
		b.running(b.p, m.ID)
	})
	s := &silence{method: "POST", part: "/upload"}
	inSilence(t, s, func(b *bench) {
		s.on.Store(true)
		_, err := b.p.Create(b.Context(), b.spec())
		b.refused(nstance.Ambiguous, err)
		require.ErrorContains(t, err, "no answer")
	})
}

// TestParkWithoutAnswer: the call after a change of power that got no answer says so.
func TestParkWithoutAnswer(t *testing.T) {
	s := &silence{method: "POST", part: "/status/shutdown"}
	inSilence(t, s, func(b *bench) {
		m := b.create(b.spec())
		<-time.After(time.Minute) // its creation is over
		s.on.Store(true)
		require.NoError(t, b.p.Park(b.Context(), m, nstance.ParkStopped))
		<-time.After(40 * time.Second)
		b.refused(nstance.Unavailable, b.p.Park(b.Context(), m, nstance.ParkStopped))
		s.on.Store(false)
		require.NoError(t, b.p.Park(b.Context(), m, nstance.ParkStopped))
		b.status(b.p, m.ID, nstance.StatusStopped)
	})
}

// TestNoticesWithoutAnswer: a listing without an answer delays notices, and is reported.
func TestNoticesWithoutAnswer(t *testing.T) {
	s := &silence{method: "GET", part: "/cluster/resources"}
	inSilence(t, s, func(b *bench) {
		m := b.create(b.spec())
		b.running(b.p, m.ID)
		b.cloud.SetMaintenance("pve1", true)
		s.on.Store(true)
		var errs int
		for n, err := range b.p.WatchNotices(b.Context(), b.owner) {
			if err != nil {
				errs++
				s.on.Store(false)
				continue
			}
			require.Equal(t, m.ID, n.ID)
			require.Equal(t, "proxmox/maintenance", n.Notice.Source)
			break
		}
		require.Equal(t, 1, errs)
	})
}

// TestEndpointWithoutAnswer: after a call without an answer the next endpoint is called,
// whatever kept the answer away.
func TestEndpointWithoutAnswer(t *testing.T) {
	s := &silence{method: "GET", part: "pve1.example"}
	inSilence(t, s, func(b *bench) {
		s.on.Store(true)
		began := time.Now()
		_, err := b.p.Get(b.Context(), b.spec().ID)
		b.refused(nstance.Unavailable, err)
		require.LessOrEqual(t, time.Since(began), 30*time.Second)
		_, err = b.p.Get(b.Context(), b.spec().ID)
		b.refused(nstance.NotFound, err)
	})
	inSilence(t, s, func(b *bench) { // such as a handshake that is not answered
		s.base = lostAt{s.base, "pve1.example"}
		s.on.Store(false)
		_, err := b.p.Get(b.Context(), b.spec().ID)
		b.refused(nstance.Unavailable, err)
		_, err = b.p.Get(b.Context(), b.spec().ID)
		b.refused(nstance.NotFound, err)
	})
}

// TestOlderAnswer: the answer to a request that began before an endpoint fell silent does not
// make that endpoint the first again.
func TestOlderAnswer(t *testing.T) {
	s := &silence{method: "GET", part: "pve1.example"}
	inSilence(t, s, func(b *bench) {
		get := func() error {
			_, err := b.p.Get(b.Context(), b.spec().ID)
			return err
		}
		unanswered, answered := make(chan error, 1), make(chan error, 1)
		s.on.Store(true)
		go func() { unanswered <- get() }()
		<-time.After(10 * time.Second)
		s.on.Store(false)
		held := make(chan struct{})
		time.AfterFunc(25*time.Second, func() { close(held) })
		b.cloud.Faults().Next(callList, testcloud.Fault{Held: held})
		go func() { answered <- get() }()
		b.refused(nstance.Unavailable, <-unanswered)
		b.refused(nstance.NotFound, <-answered)
		s.on.Store(true)
		b.refused(nstance.NotFound, get())
	})
}

// lostAt breaks connections to a host.
type lostAt struct {
	http.RoundTripper
	host string
}

func (l lostAt) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host == l.host {
		return nil, io.ErrUnexpectedEOF
	}
	return l.RoundTripper.RoundTrip(r)
}

// An unreachable takes no connections of some hosts for calls that change something.
type unreachable struct {
	base  http.RoundTripper
	hosts string
}

func (u *unreachable) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet || !strings.Contains(u.hosts, r.URL.Host) {
		return u.base.RoundTrip(r)
	}
	if r.Body != nil {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
	}
	return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
}

// TestUnreachableForWrites: what one endpoint does not take is sent to the next one, whole. What
// none takes has changed nothing.
func TestUnreachableForWrites(t *testing.T) {
	for hosts, want := range map[string]nstance.Code{"pve1.example": "", "pve1.example pve2.example": nstance.Unavailable} {
		s := &silence{}
		inSilence(t, s, func(b *bench) {
			s.base = &unreachable{s.base, hosts}
			m, err := b.p.Create(b.Context(), b.spec())
			require.Equal(b, want, nstance.CodeOf(err), "%v", err)
			if want == "" {
				b.running(b.p, m.ID)
			}
		})
	}
}

// TestListWithHangingNode: a node that keeps its calls waiting is waited for once, and not for each
// machine.
func TestListWithHangingNode(t *testing.T) {
	s := &silence{method: "GET", part: "/nodes/pve1/qemu/"}
	inSilence(t, s, func(b *bench) {
		var all []nstance.Machine
		for range 5 {
			all = append(all, b.create(b.spec()))
		}
		b.eventually(func() bool { return b.allFinished(5) }, "half made")
		for _, m := range all {
			require.NoError(b, b.cloud.Fail(m.ProviderID))
		}
		s.on.Store(true)
		began, seen := time.Now(), 0
		for m, err := range b.p.List(b.Context(), b.owner) {
			require.NoError(b, err)
			if m.Zone == "pve1" {
				require.Equal(b, nstance.StatusUnknown, m.Status)
			}
			seen++
		}
		require.Equal(b, 5, seen)
		require.LessOrEqual(b, time.Since(began), 40*time.Second)
		s.on.Store(false)
	})
}
