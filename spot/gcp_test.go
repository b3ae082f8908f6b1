package spot_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
)

func TestGCPNotices(t *testing.T) {
	base := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

	bubble(t, "maintenance with a window is announced by its start", func(t *testing.T) {
		const key = "computeMetadata/v1/instance/upcoming-maintenance"
		s := gcp()
		r := follow(t, newGCP(t, s))
		s.SetRaw(key, `{"error": "no notifications have been received yet, try again later"}`)
		notices, errs := r.after(t, time.Minute)
		require.Empty(t, notices)
		require.Empty(t, errs)
		s.SetRaw(key, `{"can_reschedule":"FALSE","latest_window_start_time":"2000-01-09T04:00:01Z","maintenance_status":"PENDING","type":"SCHEDULED","window_end_time":"2000-01-08T08:00:00Z","window_start_time":"2000-01-08T04:00:00Z"}`)
		notices, errs = r.after(t, time.Minute)
		require.Empty(t, errs)
		require.Len(t, notices, 1)
		require.Equal(t, nstance.Maintenance, notices[0].Kind)
		require.Equal(t, "SCHEDULED", notices[0].Action)
		require.Equal(t, time.Date(2000, 1, 8, 4, 0, 0, 0, time.UTC), notices[0].NotBefore)
		require.Equal(t, "gcp/upcoming-maintenance@2000-01-08T04:00:00Z", notices[0].EventID)
		s.SetRaw(key, `{"maintenance_status":"ONGOING","type":"SCHEDULED","window_start_time":"2000-01-08T04:00:00Z"}`)
		notices, _ = r.after(t, time.Minute)
		require.Len(t, notices, 1, "the same event")
		s.SetRaw(key, `{"type":"UNSCHEDULED","window_start_time":"2000-01-02T00:00:00Z"}`)
		notices, _ = r.after(t, time.Minute)
		require.Len(t, notices, 3, "another one, and the first is withdrawn")
		require.False(t, notices[1].Cancelled)
		require.True(t, notices[2].Cancelled)
		s.Remove(key)
		notices, errs = r.after(t, time.Minute)
		require.Len(t, notices, 4)
		require.True(t, notices[3].Cancelled)
		require.Empty(t, errs)
	})
	bubble(t, "maintenance whose window cannot be read is announced", func(t *testing.T) {
		s := gcp()
		s.SetRaw("computeMetadata/v1/instance/upcoming-maintenance", `{"maintenance_status":"PENDING","window_start_time":7}`)
		notices, errs := follow(t, newGCP(t, s)).after(t, time.Minute)
		require.Len(t, notices, 1)
		require.Len(t, errs, 1)
		require.Equal(t, nstance.Maintenance, notices[0].Kind)
	})
	bubble(t, "a service of any status that says there is no maintenance is no error", func(t *testing.T) {
		s := gcp()
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/computeMetadata/v1/instance/upcoming-maintenance" {
				s.ServeHTTP(w, r)
				return
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"error": "no notifications have been received yet, try again later"}`))
		})
		d := newGCP(t, h)
		_, errs := follow(t, d).after(t, time.Minute)
		require.Empty(t, errs)
	})
	bubble(t, "a preemption is a reclaim without a deadline", func(t *testing.T) {
		s := gcp()
		r := follow(t, newGCP(t, s))
		wait(t, time.Minute)
		s.Reclaim("terminate", base.Add(2*time.Minute))
		notices, errs := r.after(t, time.Hour)
		require.Empty(t, errs)
		require.Equal(t, []nstance.Notice{{
			Kind:       nstance.Reclaim,
			Action:     "preempt",
			Source:     "gcp/preempted",
			EventID:    "gcp/preempted",
			DetectedAt: base.Add(time.Minute),
		}}, notices)
	})
	bubble(t, "the watch arms the maintenance key", func(t *testing.T) {
		s := gcp()
		r := follow(t, newGCP(t, s))
		for i := range 3 {
			s.Maintenance(imds.Event{Code: "MIGRATE_ON_HOST_MAINTENANCE"})
			notices, _ := r.after(t, time.Minute)
			require.Len(t, notices, 2*i+1)
			require.Equal(t, nstance.Maintenance, notices[2*i].Kind)
			s.Maintenance()
			notices, _ = r.after(t, time.Minute)
			require.True(t, notices[2*i+1].Cancelled)
		}
	})
	bubble(t, "maintenance that ends the machine is a stop", func(t *testing.T) {
		s := gcp()
		r := follow(t, newGCP(t, s))
		s.Maintenance(imds.Event{Code: "TERMINATE_ON_HOST_MAINTENANCE"})
		notices, _ := r.after(t, time.Minute)
		require.Equal(t, nstance.Stop, notices[0].Kind)
		require.Equal(t, "gcp/maintenance/TERMINATE_ON_HOST_MAINTENANCE", notices[0].EventID)
	})
	bubble(t, "graceful shutdown appears in a key that was missing, and moves on", func(t *testing.T) {
		s := gcp()
		r := follow(t, newGCP(t, s))
		wait(t, time.Hour)
		s.StopState("PENDING_STOP")
		notices, errs := r.after(t, 3*time.Second)
		require.Empty(t, errs)
		require.Len(t, notices, 1)
		require.Equal(t, nstance.Stop, notices[0].Kind)
		s.StopState("STOPPING")
		notices, _ = r.after(t, 3*time.Second)
		require.Len(t, notices, 2)
		require.Equal(t, notices[0].EventID, notices[1].EventID)
		require.Equal(t, "STOPPING", notices[1].Action)
		s.StopState("")
		notices, _ = r.after(t, 3*time.Second)
		require.True(t, notices[2].Cancelled)
		s.StopState("STOPPING")
		notices, _ = r.after(t, 3*time.Second)
		require.Len(t, notices, 4, "the old tag is not waited on")
	})
	bubble(t, "a change between two reads is not lost", func(t *testing.T) {
		s := gcp()
		r := follow(t, newGCP(t, s))
		s.Fail(503, 1, imds.GCPPreempted) // ends the pending poll
		synctest.Wait()
		s.Reclaim("", time.Time{}) // no long poll in flight
		notices, _ := r.after(t, time.Second)
		require.Len(t, notices, 1)
	})
	bubble(t, "a service without tags is polled", func(t *testing.T) {
		s := gcp()
		r := follow(t, newGCP(t, stripTags{s}))
		wait(t, time.Minute)
		require.InDelta(t, 31, s.Requests(imds.GCPPreempted), 1)
		s.Reclaim("", time.Time{})
		notices, _ := r.after(t, 2*time.Second)
		require.Len(t, notices, 1)
	})
	bubble(t, "only TRUE and FALSE are answers", func(t *testing.T) {
		s := gcp()
		d := newGCP(t, s)
		for _, body := range []string{"", "true", "yes", "<html>TRUE</html>"} {
			s.SetRaw(imds.GCPPreemptible, body)
			_, err := d.Interruptible(t.Context())
			require.ErrorIs(t, err, nstance.Internal, body)
		}
		s.SetRaw(imds.GCPPreemptible, "TRUE\n")
		yes, err := d.Interruptible(t.Context())
		require.NoError(t, err)
		require.True(t, yes)
	})
}
