package azure_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"net"
	"net/http"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure"
	"github.com/nstance-go/nstance/azure/armtest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// bubble opens the provider on a cloud within a synctest bubble: the real client
// over connections in memory.
func bubble(t *testing.T, o *armtest.Options) (*armtest.Cloud, *azure.Provider) {
	t.Helper()
	cloud, connect := within(t, o)
	return cloud, connect("secret", "")
}

// within returns a cloud, and a function that opens the provider with a token and the
// interface of a server.
func within(t *testing.T, o *armtest.Options) (_ *armtest.Cloud, connect func(secret, nic string) *azure.Provider) {
	t.Helper()
	cloud := armtest.New(defaults(o))
	l := &memory{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: cloud}
	go server.Serve(l)
	transport := &http.Transport{DialContext: l.dial, MaxIdleConnsPerHost: 1000}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		require.NoError(t, server.Close())
		require.NoError(t, cloud.Close())
	})
	return cloud, func(secret, nic string) *azure.Provider {
		p, err := azure.New(azure.Options{
			Subscription: subscription, ResourceGroup: "machines", Location: "westeurope", Endpoint: "http://127.0.0.1",
			Tokens: token(secret), Transport: &http.Client{Transport: transport}, Interface: nic,
		})
		require.NoError(t, err)
		return p
	}
}

// memory is a listener whose connections are pipes.
type memory struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (m *memory) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.closed:
		return nil, net.ErrClosed
	}
}

func (m *memory) Close() error   { close(m.closed); return nil }
func (m *memory) Addr() net.Addr { return &net.TCPAddr{} }

func (m *memory) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case m.conns <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-m.closed:
		return nil, net.ErrClosed
	}
}

// listed returns the machine from List.
func listed(t *testing.T, p nstance.Provider, s nstance.MachineSpec) nstance.Machine {
	t.Helper()
	for m, err := range p.List(t.Context(), s.Owner) {
		require.NoError(t, err)
		if m.ID == s.ID {
			return m
		}
	}
	require.FailNow(t, "the machine is not listed")
	return nstance.Machine{}
}

// TestLateFailure: an accepted create fails minutes later. Its remains are classified
// and deleted: machine, interface and disk, the interface only when Azure has released
// it.
func TestLateFailure(t *testing.T) {
	for failure, want := range map[string]nstance.LossCause{
		"ZonalAllocationFailed": nstance.LossCapacity, "SkuNotAvailable": nstance.LossCapacity,
		"QuotaExceeded": nstance.LossQuota, "OperationNotAllowed": nstance.LossQuota,
		"ImageNotFound": nstance.LossInvalid, "InternalExecutionError": nstance.LossHost,
		"OSProvisioningTimedOut": nstance.LossInvalid, "KeyVaultAccessForbidden": nstance.LossInvalid, "SubscriptionRequestsThrottled": nstance.LossThrottled,
		"RequestDisallowedByPolicy": nstance.LossInvalid, // a code of the table without a loss of its own
	} {
		t.Run(failure, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cloud, p := bubble(t, &armtest.Options{Delays: testcloud.Delays{Start: 2 * time.Minute, Delete: 10 * time.Second}})
				cloud.FailCreates(1, failure, "no")
				s := newSpec(t)
				m, err := p.Create(t.Context(), s)
				require.NoError(t, err)
				require.Equal(t, nstance.StatusPending, m.Status)
				<-time.After(2*time.Minute + time.Second)
				m, err = p.Get(t.Context(), s.ID)
				require.NoError(t, err)
				require.Equal(t, nstance.StatusFailed, m.Status)
				require.Equal(t, want, m.Cause)
				require.Contains(t, m.CauseText, failure)
				require.Equal(t, m, listed(t, p, s))

				failedAt := time.Now()
				for err = nil; nstance.CodeOf(err) != nstance.NotFound; err = p.Delete(t.Context(), m) {
					if err != nil {
						code(t, nstance.Unavailable, err)
						require.ErrorContains(t, err, "NicReservedForAnotherVm")
					}
					<-time.After(10 * time.Second)
				}
				require.WithinDuration(t, failedAt.Add(3*time.Minute), time.Now(), 30*time.Second)
				require.Equal(t, 1, cloud.Faults.Calls()[deleteVM])
				require.Empty(t, cloud.Left())
			})
		})
	}
}

// TestNothingLeft: a machine is not gone while Azure still deletes what its failed create
// has left behind.
func TestNothingLeft(t *testing.T) {
	for name, begin := range map[string]func(*testing.T, *armtest.Cloud, *azure.Provider) nstance.Machine{
		"late failure": func(t *testing.T, cloud *armtest.Cloud, p *azure.Provider) nstance.Machine {
			cloud.FailCreates(1, "InternalExecutionError", "no")
			m, err := p.Create(t.Context(), newSpec(t))
			require.NoError(t, err)
			return m
		},
		"refused": func(t *testing.T, cloud *armtest.Cloud, p *azure.Provider) nstance.Machine {
			cloud.Faults.Next(putVM, testcloud.Fault{Answer: (&armtest.Refusal{Status: http.StatusConflict, Code: "SkuNotAvailable", Message: "no"}).ServeHTTP})
			s := newSpec(t)
			_, err := p.Create(t.Context(), s)
			code(t, nstance.Capacity, err)
			return nstance.Machine{ID: s.ID, Owner: s.Owner}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cloud, p := bubble(t, &armtest.Options{Network: 20 * time.Second, Delays: testcloud.Delays{Delete: 10 * time.Second}})
				m := begin(t, cloud, p)
				require.NotEmpty(t, cloud.Left())
				for began := time.Now(); ; <-time.After(time.Second) {
					if nstance.CodeOf(p.Delete(t.Context(), m)) == nstance.NotFound {
						break
					}
					require.Less(t, time.Since(began), time.Hour)
				}
				require.Empty(t, cloud.Left())
			})
		})
	}
}

// TestDeleteOnce: a machine that is being deleted gets no second DELETE.
func TestDeleteOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud, p := bubble(t, &armtest.Options{Throttle: true, Delays: testcloud.Delays{Delete: 2 * time.Minute}})
		m, err := p.Create(t.Context(), newSpec(t))
		require.NoError(t, err)
		for err = nil; nstance.CodeOf(err) != nstance.NotFound; err = p.Delete(t.Context(), m) {
			require.NoError(t, err)
			<-time.After(10 * time.Second)
		}
		require.Equal(t, 1, cloud.Faults.Calls()[deleteVM])
		require.Zero(t, cloud.Faults.Calls()[deleteNIC], "deleted with the machine")
		require.Empty(t, cloud.Left())
	})
}

// TestEviction: it has no state of its own. Deallocated spot capacity was reclaimed.
func TestEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud, p := bubble(t, &armtest.Options{Delays: testcloud.Delays{Stop: time.Minute}})
		s := newSpec(t)
		s.Market = nstance.Spot
		_, err := p.Create(t.Context(), s)
		require.NoError(t, err)
		m, err := p.Get(t.Context(), s.ID)
		require.NoError(t, err)
		require.Equal(t, nstance.StatusRunning, m.Status)
		require.Equal(t, m, listed(t, p, s))
		require.NoError(t, cloud.Reclaim(m.ProviderID, 30*time.Second))
		<-time.After(31 * time.Second)
		m, err = p.Get(t.Context(), s.ID)
		require.NoError(t, err)
		require.Equal(t, nstance.StatusStopping, m.Status)
		require.Equal(t, nstance.LossReclaimed, m.Cause)
		<-time.After(time.Minute)
		m, err = p.Get(t.Context(), s.ID)
		require.NoError(t, err)
		require.Equal(t, nstance.StatusStopped, m.Status)
		require.Equal(t, nstance.LossReclaimed, m.Cause)
		require.Equal(t, m, listed(t, p, s))
	})
}

// TestGuestPowersOff: such a machine is still billed, and stopped.
func TestGuestPowersOff(t *testing.T) {
	cloud, p := open(t, nil)
	s := newSpec(t)
	m, err := p.Create(t.Context(), s)
	require.NoError(t, err)
	require.NoError(t, cloud.Fail(m.ProviderID))
	m, err = p.Get(t.Context(), s.ID)
	require.NoError(t, err)
	require.Equal(t, nstance.StatusStopped, m.Status)
	require.Equal(t, nstance.LossGuest, m.Cause)
}

// TestOtherNotFound: only the machine's own 404 means that it is gone.
func TestOtherNotFound(t *testing.T) {
	for _, c := range []string{"ResourceGroupNotFound", "SubscriptionNotFound", "ParentResourceNotFound"} {
		cloud, p := open(t, nil)
		m, err := p.Create(t.Context(), newSpec(t))
		require.NoError(t, err)
		refusal := &armtest.Refusal{Status: 404, Code: c, Message: "could not be found"}
		cloud.Faults.Next(getVM, testcloud.Fault{Answer: refusal.ServeHTTP}, testcloud.Fault{Answer: refusal.ServeHTTP})
		_, err = p.Get(t.Context(), m.ID)
		code(t, nstance.Invalid, err)
		code(t, nstance.Invalid, p.Delete(t.Context(), m))
		require.Len(t, cloud.Machines(), 1)
	}
}

// TestPowerStatesDenied: without them only the status is unknown.
func TestPowerStatesDenied(t *testing.T) {
	cloud, p := open(t, nil)
	s := newSpec(t)
	_, err := p.Create(t.Context(), s)
	require.NoError(t, err)
	refusal := &armtest.Refusal{Status: 403, Code: "AuthorizationFailed", Message: "no"}
	cloud.Faults.Next("VirtualMachinesClient.NewListAllPager", testcloud.Fault{Answer: refusal.ServeHTTP})
	require.Equal(t, nstance.StatusUnknown, listed(t, p, s).Status)
	require.Equal(t, nstance.StatusRunning, listed(t, p, s).Status)
}
