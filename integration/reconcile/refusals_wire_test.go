//go:build servers

package reconcile_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws/ec2test"
	"github.com/nstance-go/nstance/azure/armtest"
	"github.com/nstance-go/nstance/gcp/gcetest"
	"github.com/nstance-go/nstance/provider/providertest"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/provider/testcloud"
	"github.com/nstance-go/nstance/proxmox/pvetest"
)

// A refuser is a cloud that answers creates of some instance types in words that no table has.
type refuser struct {
	newSite func(testcloud.Hypervisor) *site
	types   []string         // two that it has
	create  string           // how the operation ends that makes a machine
	refuse  http.HandlerFunc // a made-up refusal with providertest.Words
	endAll  func(*site)      // has creates be accepted, and fail later with those words

	mu      sync.Mutex
	refused []string                      // instance types
	asked   map[nstance.InstanceID]string // instance types
	sent    map[string]int                // creates, by instance type
}

func refusers(t *testing.T) map[string]*refuser {
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("root@pam!test=secret"), 0o600))
	const many = 500
	return map[string]*refuser{
		"ec2": {
			newSite: ec2Site, types: []string{"m5.large", "c5.large"}, create: "RunInstances", refuse: ec2test.Refusal("SomethingNew", providertest.Words),
			endAll: func(s *site) {
				for range many {
					s.cloud.(*ec2test.Cloud).FailNextBoots(ec2test.StateReason{Code: "Server.SomethingNew", Message: providertest.Words})
				}
			},
		},
		"gce": {
			newSite: gceSite, types: []string{"e2-small", "e2-standard-2"}, create: "insert",
			refuse: gcetest.Refuse(http.StatusUnprocessableEntity, "somethingNew", providertest.Words),
			endAll: func(s *site) {
				for range many {
					s.cloud.(gceCloud).FailOperation("insert", gcetest.OperationError{Code: "SOMETHING_NEW", Message: providertest.Words})
				}
			},
		},
		"azure": {
			newSite: armSite, types: []string{"Standard_D2s_v5", "Standard_D4s_v5"}, create: "PUT virtualMachines",
			refuse: (&armtest.Refusal{Status: http.StatusUnprocessableEntity, Code: "SomethingNew", Message: providertest.Words}).ServeHTTP,
			endAll: func(s *site) { s.cloud.(*armtest.Cloud).FailCreates(many, "SomethingNew", providertest.Words) },
		},
		"proxmox": {
			newSite: proxmoxSite(token), types: []string{"small", "medium"}, create: "/clone",
			refuse: func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusUnprocessableEntity)
				_ = json.NewEncoder(w).Encode(map[string]any{"data": nil, "message": providertest.Words})
			},
			endAll: func(s *site) {
				for range many {
					s.cloud.(*pvetest.Cloud).FailTasks("qmclone", providertest.Words)
				}
			},
		},
	}
}

// site returns the cloud with its refusals. Machines have the instance type of the group.
func (f *refuser) site(h testcloud.Hypervisor) *site {
	s := f.newSite(h)
	shape := s.shape
	s.shape = func(spec *nstance.MachineSpec) {
		f.mu.Lock()
		defer f.mu.Unlock()
		typ := spec.InstanceType
		f.asked[spec.ID] = typ
		shape(spec)
		spec.InstanceType = typ
	}
	s.cloud = refusingCloud{s.cloud, f, s.operation}
	return s
}

// A refusingCloud answers the creates that its refuser refuses.
type refusingCloud struct {
	siteCloud
	f         *refuser
	operation func(*http.Request, []byte) (string, bool)
}

func (c refusingCloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if what, _ := c.operation(r, body); strings.HasSuffix(what, c.f.create) && c.f.refuses(r.URL.String()+string(body)) {
		c.f.refuse(w, r)
		return
	}
	c.siteCloud.ServeHTTP(w, r)
}

// refuses counts a create, and reports whether it is refused.
func (f *refuser) refuses(request string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, typ := range f.asked {
		if strings.Contains(request, string(id)) {
			f.sent[typ]++
			return slices.Contains(f.refused, typ)
		}
	}
	return false
}

func (f *refuser) creates(typ string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent[typ]
}

// start starts a leader with a group of three of these types, on the refuser's cloud.
func (f *refuser) start(t *testing.T, types []string, refused ...string) (*world, *wireCloud) {
	return f.startOn(t, f.site, types, refused...)
}

// startOn is start on this site.
func (f *refuser) startOn(t *testing.T, newSite func(testcloud.Hypervisor) *site, types []string, refused ...string) (*world, *wireCloud) {
	f.refused, f.asked, f.sent = refused, map[nstance.InstanceID]string{}, map[string]int{}
	w := newWorld(t, simcloud.Options{})
	overHTTP(newSite)(w)
	o := w.outside.(*wireCloud)
	w.wrap = func(to *leaderEnv) { to.provider = o }
	g := webGroup(3)
	g.Definition.InstanceTypes = types
	w.startLeader(g)
	return w, o
}

// told returns what needs attention, and what events say of errors.
func told(w *world) string {
	var out []string
	r, _ := w.leader()
	for _, a := range r.Admin().Attention() {
		out = append(out, string(a.Kind)+": "+a.Why)
	}
	return strings.Join(out, "\n")
}

func failuresOf(w *world) (texts []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Error != "" {
			texts = append(texts, fmt.Sprintf("%s: %s", e.Type, e.Error))
		}
	}
	return texts
}

func eachRefuser(t *testing.T, play func(t *testing.T, f *refuser)) {
	for name, f := range refusers(t) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { play(t, f) })
		})
	}
}

// TestServersRefusedShape: what a cloud refuses in words that no table has is an answer about
// one shape: the next one is made, and events have the words.
func TestServersRefusedShape(t *testing.T) {
	eachRefuser(t, func(t *testing.T, f *refuser) {
		w, _ := f.start(t, f.types, f.types[0])
		defer w.close()
		w.advance(10 * time.Minute)
		require.Len(t, w.ready(), 3, "%v", failuresOf(w))
		require.LessOrEqual(t, f.creates(f.types[0]), 6, "the refused one is tried seldom")
		require.Equal(t, 3, f.creates(f.types[1]))
		require.Contains(t, strings.Join(failuresOf(w), "\n"), providertest.Words)
	})
}

// TestServersRefusedEverywhere: a group of which every shape is refused backs off, and says
// why in the cloud's words.
func TestServersRefusedEverywhere(t *testing.T) {
	eachRefuser(t, func(t *testing.T, f *refuser) {
		w, o := f.start(t, f.types, f.types...)
		defer w.close()
		w.advance(time.Minute)
		require.Contains(t, told(w), providertest.Words)
		w.advance(2 * time.Hour)
		require.Contains(t, told(w), providertest.Words)
		for _, typ := range f.types {
			require.LessOrEqual(t, f.creates(typ), 20, typ)
		}
		require.Empty(t, o.Machines())
	})
}

// TestServersEndsBeforeReady: what fails after its acceptance, in words that no table has, is
// a failed create: the group backs off, and says why in the cloud's words.
func TestServersEndsBeforeReady(t *testing.T) {
	eachRefuser(t, func(t *testing.T, f *refuser) {
		w, o := f.start(t, f.types[:1])
		defer w.close()
		f.endAll(&site{cloud: o.site.cloud.(refusingCloud).siteCloud})
		w.advance(30 * time.Minute)
		require.Contains(t, told(w), providertest.Words)
		require.LessOrEqual(t, f.creates(f.types[0]), 30)
		require.Empty(t, w.ready())
	})
}

// TestServersStartRefused: a machine that was cloned and whose start is refused for ever needs
// attention, and has failed in the end, in the cluster's words.
func TestServersStartRefused(t *testing.T) {
	f := refusers(t)["proxmox"]
	synctest.Test(t, func(t *testing.T) {
		w, o := f.start(t, f.types[:1])
		defer w.close()
		for range 2000 {
			o.site.cloud.(refusingCloud).siteCloud.(*pvetest.Cloud).FailTasks("qmstart", providertest.Words)
		}
		w.advance(30 * time.Minute)
		require.Contains(t, told(w), providertest.Words)
		require.LessOrEqual(t, f.creates(f.types[0]), 30)
		require.Empty(t, w.ready())
	})
}
