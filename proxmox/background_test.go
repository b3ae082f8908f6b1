package proxmox_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// changesOfPower counts the calls that change what machines do.
func (b *bench) changesOfPower() (n int) {
	for call, times := range b.cloud.Faults().Calls() {
		if strings.HasPrefix(call, "POST ") && strings.Contains(call, "/status/") {
			n += times
		}
	}
	return n
}

// TestParkOfParkedMachine: nothing is sent for what is so already. The cluster would refuse
// the start of a running machine, and the hibernation of a stopped one.
func TestParkOfParkedMachine(t *testing.T) {
	for _, mode := range b2(nstance.ParkStopped, nstance.ParkHibernated) {
		t.Run(string(mode), func(t *testing.T) {
			inSilence(t, &silence{}, func(b *bench) {
				m := b.create(b.spec())
				<-time.After(time.Minute) // its creation is over
				for _, change := range []func() error{
					func() error { return b.p.Wake(b.Context(), m) }, func() error { return b.p.Park(b.Context(), m, mode) },
				} {
					require.NoError(t, change())
					<-time.After(time.Minute)
					calls := b.changesOfPower()
					for range 3 {
						require.NoError(t, change())
						<-time.After(time.Minute)
					}
					require.Equal(t, calls, b.changesOfPower())
				}
			})
		})
	}
}

// TestGuestIgnoresShutdown: a guest that does not power itself off is stopped.
func TestGuestIgnoresShutdown(t *testing.T) {
	b := newBench(t, nil)
	m := b.create(b.spec())
	b.running(b.p, m.ID)
	b.eventually(b.finished, "half made")
	b.cloud.IgnoreShutdown(vmidOf(t, m))
	b.eventually(func() bool { return b.p.Park(t.Context(), m, nstance.ParkStopped) == nil }, "park")
	b.status(b.p, m.ID, nstance.StatusStopped)
}

// TestHibernatedBeforeListing: a machine that the listing shows running, and that has a lock,
// is asked itself.
func TestHibernatedBeforeListing(t *testing.T) {
	inSilence(t, &silence{}, func(b *bench) {
		m := b.create(b.spec())
		<-time.After(time.Minute)
		b.cloud.SetDelays(testcloud.Delays{Visible: time.Hour})
		require.NoError(t, b.p.Park(b.Context(), m, nstance.ParkHibernated))
		<-time.After(time.Minute)
		got, err := b.p.Get(b.Context(), m.ID)
		require.NoError(t, err)
		require.Equal(t, nstance.StatusStopped, got.Status)
	})
}

// TestDeleteOfReusedVMID: the work of a delete ends when the VMID has become another
// machine's, so that the next call says that there is none.
func TestDeleteOfReusedVMID(t *testing.T) {
	inSilence(t, &silence{}, func(b *bench) {
		m := b.create(b.spec())
		<-time.After(time.Minute)
		b.cloud.FailTasks("qmstop", "no quorum", "no quorum")
		require.NoError(t, b.p.Delete(b.Context(), m))
		b.cloud.SetConfig(vmidOf(t, m), map[string]string{"name": "database", "tags": "", "description": ""})
		<-time.After(10 * time.Minute)
		err := b.p.Delete(b.Context(), m)
		b.refused(nstance.Unavailable, err)
		require.ErrorContains(t, err, "is not machine "+string(m.ID)+" any more")
		b.refused(nstance.NotFound, b.p.Delete(b.Context(), m))
		require.Len(t, b.cloud.Machines(), 1, "it is another's")
	})
}

// TestCreateUnseen: a machine that is being made and cannot be seen for a while is not taken
// for gone: it is finished, whether or not a caller asks for it.
func TestCreateUnseen(t *testing.T) {
	inSilence(t, &silence{}, func(b *bench) {
		b.cloud.FailTasks("qmstart", "no quorum", "no quorum")
		m := b.create(b.spec())
		b.cloud.Faults().All(callReadConfig, answer(500, "Configuration file 'nodes/pve1/qemu-server/"+m.ProviderID+".conf' does not exist"))
		b.cloud.Faults().All(callList, testcloud.Fault{Answer: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"data": [{"type": "node", "id": "node/pve1", "node": "pve1", "status": "online"}]}`))
		}})
		<-time.After(time.Minute)
		b.cloud.Faults().Clear()
		<-time.After(5 * time.Minute)
		require.Equal(t, nstance.StatusRunning, b.cloud.Machines()[0].Status)
	})
}

// TestTaskThatGoesOn: a task that runs for long, or does not show whether it runs, is what keeps
// a machine from being deleted, until it ends.
func TestTaskThatGoesOn(t *testing.T) {
	for name, c := range map[string]struct {
		answer string // to the question for the task; empty: that it runs
		after  time.Duration
		code   nstance.Code
		text   string
	}{
		"runs":              {"", 6 * time.Minute, nstance.Unavailable, ":qmdestroy:"},
		"shows no status":   {"{}", 2 * time.Minute, nstance.Ambiguous, "does not show whether the task runs"},
		"is answered null":  {"null", 2 * time.Minute, nstance.Ambiguous, "has no data"},
		"runs a short time": {"", 4 * time.Minute, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			inSilence(t, &silence{}, func(b *bench) {
				m := b.create(b.spec())
				<-time.After(time.Minute) // its creation is over
				b.cloud.SetDelays(testcloud.Delays{Delete: 20 * time.Minute})
				if c.answer != "" {
					for range 10 {
						b.cloud.Faults().All(callTask, says(c.answer))
					}
				}
				require.NoError(t, b.p.Delete(b.Context(), m))
				<-time.After(c.after)
				err := b.p.Delete(b.Context(), m)
				require.Equal(t, c.code, nstance.CodeOf(err), "%v", err)
				if c.text != "" {
					require.ErrorContains(t, err, c.text)
				}
				b.cloud.Faults().Clear()
				<-time.After(20 * time.Minute)
				b.gone(b.p, m)
				require.Empty(t, b.cloud.Volumes())
			})
		})
	}
}
