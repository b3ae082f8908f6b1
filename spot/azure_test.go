package spot_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/spot"
)

func azure() *imds.Server {
	return imds.New(&imds.Options{Protocol: imds.Azure, Spot: true, InstanceID: "web-1"})
}

func newAzure(t *testing.T, h http.Handler) *spot.Azure {
	t.Helper()
	d, err := spot.NewAzure(options(h))
	require.NoError(t, err)
	return d
}

// events returns a document in the format of Azure's documentation.
func events(incarnation int, list ...string) string {
	out := ""
	for i, e := range list {
		if i > 0 {
			out += ","
		}
		out += e
	}
	return fmt.Sprintf(`{"DocumentIncarnation": %d, "Events": [%s]}`, incarnation, out)
}

func event(id, kind, status, notBefore, resource string) string {
	return fmt.Sprintf(`{"EventId": %q, "EventType": %q, "ResourceType": "VirtualMachine", "Resources": [%q], "EventStatus": %q,
		"NotBefore": %q, "Description": "", "EventSource": "Platform", "DurationInSeconds": -1}`, id, kind, resource, status, notBefore)
}

func TestAzureEvents(t *testing.T) {
	bubble(t, "each type has its meaning", func(t *testing.T) {
		s := azure()
		at := time.Now().UTC().Add(10 * time.Minute).Truncate(time.Second)
		stamp := at.Format(http.TimeFormat)
		s.SetRaw(imds.AzureEvents, events(1,
			event("A", "Preempt", "Scheduled", stamp, "web-1"), event("B", "Terminate", "Scheduled", stamp, "WEB-1"),
			event("C", "Redeploy", "Scheduled", stamp, "web-1"), event("D", "Preempt", "Scheduled", stamp, "web-2")))
		notices, errs := follow(t, newAzure(t, s)).after(t, time.Minute)
		require.Empty(t, errs)
		require.Len(t, notices, 3, "the event of another machine is not this one's")
		byID := map[string]nstance.Notice{}
		for _, n := range notices {
			byID[n.EventID] = n
		}
		require.Equal(t, nstance.Reclaim, byID["azure/events/A"].Kind)
		require.True(t, at.Equal(byID["azure/events/A"].Deadline))
		require.Equal(t, nstance.Terminate, byID["azure/events/B"].Kind)
		require.Equal(t, nstance.Maintenance, byID["azure/events/C"].Kind)
		require.True(t, at.Equal(byID["azure/events/C"].NotBefore))
		require.Zero(t, byID["azure/events/C"].Deadline)
	})
	bubble(t, "an event that has started keeps its deadline", func(t *testing.T) {
		s := azure()
		at := time.Now().UTC().Add(time.Minute).Truncate(time.Second)
		s.SetRaw(imds.AzureEvents, events(1, event("A", "Preempt", "Scheduled", at.Format(http.TimeFormat), "web-1")))
		r := follow(t, newAzure(t, s))
		notices, _ := r.after(t, 10*time.Second)
		require.Len(t, notices, 1)
		s.SetRaw(imds.AzureEvents, events(2, event("A", "Preempt", "Started", "", "web-1")))
		notices, errs := r.after(t, 10*time.Second)
		require.Len(t, notices, 1, "nothing new")
		require.Empty(t, errs)
		s.SetRaw(imds.AzureEvents, events(3))
		notices, _ = r.after(t, 10*time.Second)
		require.Len(t, notices, 2)
		require.True(t, notices[1].Cancelled)
	})
	bubble(t, "what cannot be read is an error and hides nothing else", func(t *testing.T) {
		for _, bad := range []string{
			event("", "Reboot", "Scheduled", "", "web-1"), event("A", "Party", "Scheduled", "", "web-1"), `{"EventId": "A", "EventType": "Preempt"}`, `"A"`, `null`,
		} {
			s := azure()
			s.SetRaw(imds.AzureEvents, events(1, bad, event("Z", "Preempt", "Started", "", "web-1")))
			notices, errs := follow(t, newAzure(t, s)).after(t, 10*time.Second)
			require.Len(t, notices, 1)
			require.Len(t, errs, 1)
			require.Equal(t, nstance.Internal, nstance.CodeOf(errs[0]))
		}
		for _, doc := range []string{`{}`, `null`, `[]`, `<html>`, ``, `{"DocumentIncarnation": 1}`, `{"DocumentIncarnation": 1, "Events": null}`} {
			s := azure()
			s.SetRaw(imds.AzureEvents, doc)
			notices, errs := follow(t, newAzure(t, s)).after(t, 10*time.Second)
			require.Empty(t, notices)
			require.Len(t, errs, 1)
		}
	})
	bubble(t, "an eviction of which something cannot be read is certain", func(t *testing.T) {
		for bad, id := range map[string]string{
			event("", "Preempt", "Scheduled", "", "web-1"):                                                         "azure/events/preempt",
			event("a b", "Terminate", "Scheduled", "", "web-1"):                                                    "azure/events/terminate",
			event("A", "Preempt", "Perhaps", "", "web-1"):                                                          "azure/events/A",
			event("A", "Preempt", "Scheduled", "tomorrow", "web-1"):                                                "azure/events/A",
			`{"EventId": "A", "EventType": "Preempt", "EventStatus": 7, "NotBefore": {}, "Resources": "web-1"}`:    "azure/events/A",
			`{"EventId": 7, "EventType": "Preempt", "EventStatus": "Scheduled", "Resources": [null, {}, "WEB-1"]}`: "azure/events/preempt",
		} {
			s := azure()
			s.SetRaw(imds.AzureEvents, events(1, bad))
			r := follow(t, newAzure(t, s))
			notices, errs := r.after(t, 10*time.Second)
			require.Len(t, notices, 1, bad)
			require.Equal(t, id, notices[0].EventID)
			require.True(t, notices[0].Kind.Dooms())
			require.True(t, notices[0].Deadline.IsZero())
			require.Len(t, errs, 1)
			s.SetRaw(imds.AzureEvents, events(2))
			notices, _ = r.after(t, 10*time.Second)
			require.Len(t, notices, 2)
			require.True(t, notices[1].Cancelled)
		}
	})
	bubble(t, "a time in the form of RFC 3339", func(t *testing.T) {
		s := azure()
		at := time.Now().UTC().Add(time.Minute).Truncate(time.Second)
		s.SetRaw(imds.AzureEvents, events(1, event("A", "Preempt", "Scheduled", at.Format(time.RFC3339), "web-1")))
		notices, errs := follow(t, newAzure(t, s)).after(t, 10*time.Second)
		require.Len(t, notices, 1)
		require.Equal(t, at, notices[0].Deadline)
		require.Empty(t, errs)
	})
	bubble(t, "those of a large scale set hide none of this machine", func(t *testing.T) {
		for _, n := range []int{127, 128, 129, 1000} {
			var all []string
			for i := range n {
				all = append(all, event(fmt.Sprintf("C7061BAC-AFDC-4513-B24B-AA5F13A%05d", i), "Preempt", "Scheduled", "Mon, 11 Jan 2100 00:00:00 GMT", fmt.Sprintf("web-%d", i+2)))
			}
			s := azure()
			s.SetRaw(imds.AzureEvents, events(1, append(all, event("own", "Preempt", "Scheduled", "", "web-1"))...))
			notices, errs := follow(t, newAzure(t, s)).after(t, 10*time.Second)
			require.Empty(t, errs)
			require.Len(t, notices, 1, n)
			require.Equal(t, "azure/events/own", notices[0].EventID)
		}
	})
	bubble(t, "an unknown type is reported once and hides no withdrawal", func(t *testing.T) {
		s := azure()
		party := event("P", "Party", "Scheduled", "soon", "web-1")
		s.SetRaw(imds.AzureEvents, events(1, party, event("A", "Preempt", "Started", "", "web-1")))
		r := follow(t, newAzure(t, s))
		notices, errs := r.after(t, time.Minute)
		require.Len(t, notices, 1)
		require.Len(t, errs, 1)
		require.ErrorIs(t, errs[0], nstance.Internal)
		require.ErrorContains(t, errs[0], "Party")
		s.SetRaw(imds.AzureEvents, events(2, event("B", "Freeze", "Started", "", "web-1"), party))
		notices, errs = r.after(t, time.Minute)
		require.Len(t, errs, 1, "the place in the list does not matter")
		require.Len(t, notices, 3)
		require.Equal(t, nstance.Maintenance, notices[1].Kind)
		require.Equal(t, "azure/events/A", notices[2].EventID)
		require.True(t, notices[2].Cancelled)
	})
	bubble(t, "an event for several machines is this one's, too", func(t *testing.T) {
		s := azure()
		s.Maintenance(imds.Event{ID: "M", Code: "Reboot", Resources: []string{"web-0", "web-1"}}, imds.Event{ID: "N", Code: "Reboot", Resources: []string{"web-0"}})
		notices, errs := follow(t, newAzure(t, s)).after(t, time.Minute)
		require.Empty(t, errs)
		require.Len(t, notices, 1)
		require.Equal(t, "azure/events/M", notices[0].EventID)
	})
	bubble(t, "a watch acknowledges no event", func(t *testing.T) {
		s := azure()
		s.Reclaim("", time.Now().Add(time.Hour))
		s.Maintenance(imds.Event{ID: "M", Code: "Reboot", Resources: []string{"web-0", "web-1"}})
		methods := map[string]bool{}
		var mu sync.Mutex
		notices, errs := follow(t, newAzure(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			methods[r.Method] = true
			mu.Unlock()
			s.ServeHTTP(w, r)
		}))).after(t, 2*time.Hour)
		require.Empty(t, errs)
		require.Len(t, notices, 2)
		require.Equal(t, map[string]bool{http.MethodGet: true}, methods)
	})
	bubble(t, "an event is acknowledged as it was announced, and started", func(t *testing.T) {
		s := azure()
		s.Maintenance(imds.Event{ID: "M", Code: "Reboot", NotBefore: time.Now().Add(time.Hour), Resources: []string{"web-0", "web-1"}})
		a := newAzure(t, s)
		notices, _ := follow(t, a).after(t, time.Minute)
		require.Len(t, notices, 1)
		require.Equal(t, []string{"web-0", "web-1"}, notices[0].Machines)

		alone := notices[0]
		alone.Machines = []string{"web-0"}
		require.ErrorIs(t, a.Acknowledge(t.Context(), alone), nstance.Conflict, "it names another machine too")
		require.False(t, startedAzure(t, s, "M"))
		other := notices[0]
		other.EventID = "azure/events/N"
		require.ErrorIs(t, a.Acknowledge(t.Context(), other), nstance.Conflict)

		require.NoError(t, a.Acknowledge(t.Context(), notices[0]))
		require.True(t, startedAzure(t, s, "M"))
		require.NoError(t, a.Acknowledge(t.Context(), notices[0]), "again")
	})
	bubble(t, "an acknowledgement by another machine changes nothing", func(t *testing.T) {
		s := azure()
		at := time.Now().UTC().Add(time.Hour).Truncate(time.Second)
		s.Reclaim("", at)
		r := follow(t, newAzure(t, s))
		notices, _ := r.after(t, time.Minute)
		require.Len(t, notices, 1)
		id := strings.TrimPrefix(notices[0].EventID, "azure/events/")
		ack := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/"+imds.AzureEvents+"?api-version=2020-07-01",
			strings.NewReader(`{"StartRequests": [{"EventId": "`+id+`"}]}`))
		ack.Header.Set("Metadata", "true")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, ack)
		require.Equal(t, 200, w.Code)
		notices, errs := r.after(t, time.Minute)
		require.Empty(t, errs)
		require.Len(t, notices, 1, "it has started, at the deadline that is known")
	})
	bubble(t, "the service may take two minutes to turn the events on", func(t *testing.T) {
		s := imds.New(&imds.Options{Protocol: imds.Azure, Spot: true, EnablementDelay: 2 * time.Minute})
		s.Reclaim("", time.Now().Add(time.Hour))
		notices, errs := follow(t, newAzure(t, s)).after(t, 121*time.Second)
		require.Len(t, errs, 1, "that it takes long is said once")
		require.ErrorIs(t, errs[0], nstance.Unavailable)
		require.Len(t, notices, 1)
	})
	bubble(t, "the first answer may take long, since asking turns the service on", func(t *testing.T) {
		s, slow := azure(), atomic.Bool{}
		slow.Store(true)
		s.Reclaim("", time.Now().Add(10*time.Minute))
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/"+imds.AzureEvents && slow.Swap(false) {
				<-time.After(15 * time.Second)
			}
			s.ServeHTTP(w, r)
		})
		notices, errs := follow(t, newAzure(t, h)).after(t, 16*time.Second)
		require.Empty(t, errs)
		require.Len(t, notices, 1)
	})
}

// startedAzure reports whether the service says that the event has started.
func startedAzure(t *testing.T, s http.Handler, id string) bool {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/"+imds.AzureEvents+"?api-version=2020-07-01", nil)
	r.Header.Set("Metadata", "true")
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	var doc struct {
		Events []struct{ EventID, EventStatus string }
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &doc))
	for _, e := range doc.Events {
		if e.EventID == id {
			return e.EventStatus == "Started"
		}
	}
	require.Fail(t, "no event "+id)
	return false
}

func TestAzureRebalance(t *testing.T) {
	const later = "2025-06-01"
	bubble(t, "a later version has recommendations", func(t *testing.T) {
		s := azure()
		o := options(s)
		o.AzureEventsVersion = later
		d, err := spot.NewAzure(o)
		require.NoError(t, err)
		r := follow(t, d)
		s.Rebalance(time.Now().Add(time.Minute))
		notices, errs := r.after(t, time.Minute)
		require.Empty(t, errs)
		require.Len(t, notices, 1)
		require.Equal(t, nstance.Rebalance, notices[0].Kind)
		require.Equal(t, "RebalanceRecommendation", notices[0].Action)
		require.Zero(t, notices[0].Deadline, "nothing ends at the time of a recommendation")
		require.Zero(t, notices[0].NotBefore)
		s.Rebalance(time.Time{})
		notices, _ = r.after(t, time.Minute)
		require.Len(t, notices, 2)
		require.True(t, notices[1].Cancelled)
	})
	bubble(t, "the default version has none", func(t *testing.T) {
		s := azure()
		s.Rebalance(time.Now())
		notices, errs := follow(t, newAzure(t, s)).after(t, time.Minute)
		require.Empty(t, errs)
		require.Empty(t, notices)
	})
	bubble(t, "a refused version costs the recommendations only", func(t *testing.T) {
		s, refusals := azure(), atomic.Int32{}
		o := options(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("api-version") == later {
				refusals.Add(1)
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			s.ServeHTTP(w, r)
		}))
		o.AzureEventsVersion = later
		d, err := spot.NewAzure(o)
		require.NoError(t, err)
		s.Reclaim("", time.Now().Add(time.Hour))
		notices, errs := follow(t, d).after(t, time.Minute)
		require.Empty(t, errs)
		require.Len(t, notices, 1)
		require.EqualValues(t, 1, refusals.Load())
	})
	t.Run("a version is a date", func(t *testing.T) {
		_, err := spot.NewAzure(&spot.Options{AzureEventsVersion: "latest"})
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, "azure_events_version")
	})
}

func TestAzureInterruptible(t *testing.T) {
	bubble(t, "priority decides, and none is no answer", func(t *testing.T) {
		for priority, want := range map[string]bool{`"Spot"`: true, `"Low"`: true, `"Regular"`: false, `""`: false} {
			s := azure()
			s.SetRaw(imds.AzureCompute, `{"name": "web-1", "vmId": "x", "priority": `+priority+`}`)
			got, err := newAzure(t, s).Interruptible(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		s := azure()
		s.SetRaw(imds.AzureCompute, `{"name": "web-1", "vmId": "x"}`)
		_, err := newAzure(t, s).Interruptible(t.Context())
		require.Error(t, err)
	})
	bubble(t, "probing finds the service", func(t *testing.T) {
		d, err := detect(t, azure(), "")
		require.NoError(t, err)
		require.IsType(t, &spot.Azure{}, d)
		d, err = detect(t, http.HandlerFunc(hung), "azure")
		require.NoError(t, err)
		require.IsType(t, &spot.Azure{}, d)
	})
}
