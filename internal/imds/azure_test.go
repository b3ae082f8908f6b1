package imds_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/imds"
)

const (
	baseEvents  = imds.AzureEvents + "?api-version=" + imds.AzureEventsVersion
	laterEvents = imds.AzureEvents + "?api-version=2025-06-01"
)

func azure(o imds.Options) *imds.Server {
	o.Protocol, o.Spot, o.InstanceID = imds.Azure, true, "web-1"
	return imds.New(&o)
}

func askAzure(t *testing.T, s *imds.Server, path string) *http.Response {
	t.Helper()
	return ask(t, s, http.MethodGet, path, "Metadata", "true")
}

type azureDocument struct {
	DocumentIncarnation int
	Events              []struct {
		EventID     string `json:"EventId"`
		EventType   string
		EventStatus string
		NotBefore   string
		Resources   []string
	}
}

func eventsOf(t *testing.T, s *imds.Server, path string) (d azureDocument) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text(t, askAzure(t, s, path))), &d))
	return d
}

// acknowledge posts a body and returns the status of the answer.
func acknowledge(t *testing.T, s *imds.Server, body string) int {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/"+baseEvents, strings.NewReader(body))
	r.Header.Set("Metadata", "true")
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Code
}

func TestAzure(t *testing.T) {
	t.Run("the header and a version are required, proxies are refused", func(t *testing.T) {
		s := azure(imds.Options{})
		require.Equal(t, 400, ask(t, s, http.MethodGet, baseEvents).StatusCode)
		require.Equal(t, 400, askAzure(t, s, imds.AzureEvents).StatusCode)
		require.Equal(t, 400, askAzure(t, s, imds.AzureEvents+"?api-version=new").StatusCode)
		require.Equal(t, 400, ask(t, s, http.MethodGet, baseEvents, "Metadata", "true", "X-Forwarded-For", "10.0.0.1").StatusCode)
		require.Equal(t, 405, ask(t, s, http.MethodPut, baseEvents, "Metadata", "true").StatusCode)
		require.Equal(t, 405, ask(t, s, http.MethodPost, imds.AzureCompute+"?api-version=2021-02-01", "Metadata", "true").StatusCode)
		require.Equal(t, 404, askAzure(t, s, "metadata/elsewhere?api-version=2021-02-01").StatusCode)
	})
	t.Run("the incarnation rises with every change", func(t *testing.T) {
		s := azure(imds.Options{})
		before := eventsOf(t, s, baseEvents)
		require.Empty(t, before.Events)
		require.Equal(t, before, eventsOf(t, s, baseEvents))
		s.Reclaim("", deadline)
		after := eventsOf(t, s, baseEvents)
		require.Greater(t, after.DocumentIncarnation, before.DocumentIncarnation)
		require.Len(t, after.Events, 1)
		require.Equal(t, "Preempt", after.Events[0].EventType)
		require.Equal(t, "Scheduled", after.Events[0].EventStatus)
		require.Equal(t, "Mon, 01 Jan 2024 12:00:00 GMT", after.Events[0].NotBefore)
		require.Equal(t, []string{"web-1"}, after.Events[0].Resources)
	})
	t.Run("an event may be for several machines", func(t *testing.T) {
		s := azure(imds.Options{})
		s.Maintenance(imds.Event{ID: "M", Code: "Reboot", NotBefore: deadline, Resources: []string{"web-0", "web-1"}})
		require.Equal(t, []string{"web-0", "web-1"}, eventsOf(t, s, baseEvents).Events[0].Resources)
	})
	t.Run("only a later version has recommendations", func(t *testing.T) {
		s := azure(imds.Options{})
		s.Rebalance(deadline)
		require.Empty(t, eventsOf(t, s, baseEvents).Events)
		later := eventsOf(t, s, laterEvents)
		require.Len(t, later.Events, 1)
		require.Contains(t, later.Events[0].EventType, "Rebalance")
		s.Rebalance(time.Time{})
		require.Empty(t, eventsOf(t, s, laterEvents).Events)
	})
}

func TestAzureAcknowledgement(t *testing.T) {
	t.Run("it starts the event, and may be repeated", func(t *testing.T) {
		s := azure(imds.Options{})
		s.Reclaim("", deadline)
		s.Maintenance(imds.Event{ID: "M", Code: "Reboot", NotBefore: deadline}, imds.Event{ID: "N", Code: "Freeze", NotBefore: deadline})
		before := eventsOf(t, s, baseEvents)
		body := `{"StartRequests": [{"EventId": "` + before.Events[0].EventID + `"}, {"EventId": "M"}]}`
		require.Equal(t, 200, acknowledge(t, s, body))
		require.Equal(t, 200, acknowledge(t, s, body))
		after := eventsOf(t, s, baseEvents)
		require.Greater(t, after.DocumentIncarnation, before.DocumentIncarnation)
		for i, want := range []string{"Started", "Started", "Scheduled"} {
			require.Equal(t, want, after.Events[i].EventStatus)
			require.Equal(t, want == "Started", after.Events[i].NotBefore == "")
		}
	})
	t.Run("what is malformed, or names no event, is refused", func(t *testing.T) {
		s := azure(imds.Options{})
		s.Reclaim("", deadline)
		for _, body := range []string{"", "{}", "<html>", `{"StartRequests": []}`, `{"StartRequests": [{"EventId": "X"}]}`} {
			require.Equal(t, 400, acknowledge(t, s, body), body)
		}
		require.Equal(t, "Scheduled", eventsOf(t, s, baseEvents).Events[0].EventStatus)
	})
	t.Run("it changes nothing of a recommendation", func(t *testing.T) {
		s := azure(imds.Options{})
		s.Rebalance(deadline)
		before := eventsOf(t, s, laterEvents).Events
		require.Equal(t, 200, acknowledge(t, s, `{"StartRequests": [{"EventId": "`+before[0].EventID+`"}]}`))
		require.Equal(t, before, eventsOf(t, s, laterEvents).Events)
	})
}

func TestAzureEnablement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := azure(imds.Options{EnablementDelay: time.Minute})
		began := time.Now()
		eventsOf(t, s, baseEvents)
		require.Equal(t, time.Minute, time.Since(began), "the first request waits")
		eventsOf(t, s, baseEvents)
		require.Equal(t, time.Minute, time.Since(began), "then they are on")
	})
}

func TestRebalanceKeepsToItsProtocol(t *testing.T) {
	for protocol, header := range map[string]string{imds.AWS: "", imds.GCP: "Metadata-Flavor", imds.Azure: "Metadata"} {
		s := imds.New(&imds.Options{Protocol: protocol})
		s.Rebalance(deadline)
		value := map[string]string{imds.GCP: "Google", imds.Azure: "true"}[protocol]
		r := ask(t, s, http.MethodGet, imds.AWSRebalance+"?api-version=2020-07-01", header, value)
		require.Equal(t, protocol == imds.AWS, r.StatusCode == http.StatusOK, protocol)
	}
}
