//go:build servers

package reconcile_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure/armtest"
	"github.com/nstance-go/nstance/gcp/gcetest"
	"github.com/nstance-go/nstance/provider/providertest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// The requests by which a cloud creates, deletes and lists machines, as the ends of their names,
// and a server error that no table has.
var faultyClouds = map[string]struct {
	requests map[string]string
	failed   http.HandlerFunc
}{
	"ec2": {
		map[string]string{"create": "RunInstances", "delete": "TerminateInstances", "list": "DescribeInstances"},
		func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte("<Response><Errors><Error><Code>SomethingNew</Code><Message>" + providertest.Words + "</Message></Error></Errors></Response>"))
		},
	},
	"gce": {
		map[string]string{"create": "insert", "delete": "delete", "list": "instances"},
		gcetest.Refuse(http.StatusInternalServerError, "somethingNew", providertest.Words),
	},
	"azure": {
		map[string]string{"create": "PUT virtualMachines", "delete": "DELETE virtualMachines", "list": "GET virtualMachines"},
		(&armtest.Refusal{Status: http.StatusNotImplemented, Code: "SomethingNew", Message: providertest.Words}).ServeHTTP,
	},
	"proxmox": {
		map[string]string{"create": "/clone", "delete": "DELETE /nodes/pve1/qemu/*", "list": "GET /cluster/resources"},
		func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(599)
			_ = json.NewEncoder(w).Encode(map[string]any{"data": nil, "message": providertest.Words})
		},
	},
}

// A faultyCloud answers the requests of one operation with a fault, while it is on.
type faultyCloud struct {
	*refuser
	name   string
	op     string
	fault  testcloud.Fault
	faults testcloud.Faults

	mu   sync.Mutex
	on   bool
	hits int // requests that met the fault
}

// site returns the cloud with the fault in front of it.
func (f *faultyCloud) site(h testcloud.Hypervisor) *site {
	s := f.refuser.site(h)
	s.front = func(behind http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			what, _ := s.operation(r, body)
			if !strings.HasSuffix(what, faultyClouds[f.name].requests[f.op]) || !f.strikes() {
				behind.ServeHTTP(w, r)
				return
			}
			f.faults.Serve(w, r, f.op, behind.ServeHTTP)
		})
	}
	return s
}

// strikes counts a request that meets the fault.
func (f *faultyCloud) strikes() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.on {
		f.hits++
		f.faults.Next(f.op, f.fault)
	}
	return f.on
}

func (f *faultyCloud) set(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.on = on
}

func (f *faultyCloud) met() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hits
}

// eachFault plays a story on each cloud with each fault of an operation.
func eachFault(t *testing.T, op string, play func(t *testing.T, f *faultyCloud, a providertest.Answer)) {
	for name, f := range refusers(t) {
		for a, fault := range map[providertest.Answer]testcloud.Fault{
			providertest.AnswerFailed: {Answer: faultyClouds[name].failed},
			providertest.AnswerCut:    {Lost: testcloud.LostRest},
			providertest.AnswerLost:   {Lost: testcloud.LostAnswer},
			providertest.AnswerNone:   {Lost: testcloud.LostRequest},
			providertest.AnswerLate:   {Lost: testcloud.LostLate},
		} {
			t.Run(name+", "+op+" "+string(a), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					play(t, &faultyCloud{refuser: f, name: name, op: op, fault: fault}, a)
				})
			})
		}
	}
}

// outage is how long a fault lasts.
const outage = 30 * time.Minute

// everMade counts the machines that have existed.
func (o *wireCloud) everMade() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for id := range o.existed {
		if id != "" { // a clone has no name yet
			n++
		}
	}
	return n
}

// handlesOf returns the machines that exist, as the cloud names them.
func handlesOf(o *wireCloud) (out []string) {
	for _, m := range o.Machines() {
		out = append(out, m.ProviderID)
	}
	slices.Sort(out)
	return out
}

// TestServersFaultyCreates: while creates have no good answer they keep their pace, no machine is
// made twice, and the group says why. Afterwards it is complete, of the first type.
func TestServersFaultyCreates(t *testing.T) {
	eachFault(t, "create", func(t *testing.T, f *faultyCloud, a providertest.Answer) {
		f.set(true)
		w, o := f.startOn(t, f.site, f.types)
		defer w.close()
		w.advance(outage / 3)
		soon := f.met()
		require.NotZero(t, soon)
		w.advance(outage * 2 / 3)
		if a == providertest.AnswerFailed || a == providertest.AnswerNone { // else the machines are there
			require.Empty(t, o.Machines())
			require.LessOrEqual(t, soon, 80)
			require.Less(t, f.met()-soon, 2*soon, "the pace falls")
			require.Regexp(t, wordsOf(a), told(w))
		}
		f.set(false)
		w.advance(outage)
		w.requireMembers(3)
		require.Equal(t, 3, o.everMade(), "%v", failuresOf(w))
		require.Empty(t, told(w))
		require.Zero(t, f.creates(f.types[1]), "the first type is used again")
	})
}

// wordsOf is what an operator must be shown of a fault.
func wordsOf(a providertest.Answer) string {
	switch a {
	case providertest.AnswerFailed:
		return providertest.Words
	case providertest.AnswerLate:
		return "within 30s|deadline exceeded"
	}
	return "EOF"
}

// TestServersFaultyDeletes: a machine whose deletion has no good answer is deleted after the
// fault, no other one is, and an operator is told.
func TestServersFaultyDeletes(t *testing.T) {
	eachFault(t, "delete", func(t *testing.T, f *faultyCloud, a providertest.Answer) {
		w, o := f.startOn(t, f.site, f.types)
		defer w.close()
		w.advance(10 * time.Minute)
		w.requireMembers(3)
		f.set(true)
		w.resize(f.types, 2)
		w.advance(outage)
		require.NotZero(t, f.met())
		require.LessOrEqual(t, f.met(), 200)
		if a == providertest.AnswerFailed || a == providertest.AnswerNone { // else it is gone
			require.Len(t, o.Machines(), 3)
			require.Regexp(t, wordsOf(a), told(w))
		}
		require.Len(t, w.ready(), 2)
		f.set(false)
		w.advance(5 * time.Minute)
		w.requireMembers(2)
		require.Equal(t, 3, o.everMade())
		require.Empty(t, told(w))
	})
}

// resize changes the group's size.
func (w *world) resize(types []string, size int) {
	g := webGroup(size)
	g.Definition.InstanceTypes = types
	r, _ := w.leader()
	require.NoError(w.t, r.Desire([]nstance.Group{g}))
}

// TestServersFaultyLists: a list without a good answer is no absence, for a new leader neither,
// and an operator is told. What was lost meanwhile is replaced once.
func TestServersFaultyLists(t *testing.T) {
	eachFault(t, "list", func(t *testing.T, f *faultyCloud, a providertest.Answer) {
		w, o := f.startOn(t, f.site, f.types)
		defer w.close()
		w.advance(10 * time.Minute)
		w.requireMembers(3)
		f.set(true)
		before := handlesOf(o)
		w.advance(outage / 2)
		require.NotZero(t, f.met())
		require.LessOrEqual(t, f.met(), 200)
		require.Equal(t, before, handlesOf(o))
		require.Regexp(t, wordsOf(a), told(w))
		w.stopLeader()
		g := webGroup(3)
		g.Definition.InstanceTypes = f.types
		w.startLeader(g)
		w.advance(outage / 2)
		require.Equal(t, before, handlesOf(o))
		require.Regexp(t, wordsOf(a), told(w))
		require.NoError(t, o.Kill(w.ready()[0]))
		w.advance(2 * time.Minute)
		require.GreaterOrEqual(t, len(w.ready()), 2)
		f.set(false)
		w.advance(15 * time.Minute)
		w.requireMembers(3)
		require.Equal(t, 4, o.everMade())
		require.Empty(t, told(w))
	})
}

// TestServersUnseenEffects: what a cloud has accepted and shows late is neither repeated as
// another one nor forgotten.
func TestServersUnseenEffects(t *testing.T) {
	eachRefuser(t, func(t *testing.T, f *refuser) {
		w, o := f.start(t, f.types)
		defer w.close()
		slow := o.site.cloud.(refusingCloud).siteCloud.(interface{ SetDelays(testcloud.Delays) })
		slow.SetDelays(testcloud.Delays{Visible: 5 * time.Minute, Start: 20 * time.Second, Stop: 2 * time.Second, Delete: 5 * time.Second})
		w.advance(outage)
		require.Len(t, w.ready(), 3)
		require.Equal(t, 3, o.everMade(), "creates: %v", f.sent)
		slow.SetDelays(testcloud.Delays{Start: 20 * time.Second, Stop: 2 * time.Second, Delete: 20 * time.Minute})
		w.resize(f.types, 2)
		w.advance(16 * time.Minute)
		require.Len(t, w.ready(), 2)
		require.Len(t, o.Machines(), 3)
		require.Regexp(t, "is not carried out|task UPID:.* runs since", told(w))
		w.advance(10 * time.Minute)
		w.requireMembers(2)
		require.Equal(t, 3, o.everMade())
		require.Empty(t, told(w))
	})
}
