package spot_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
	"github.com/nstance-go/nstance/spot"
)

// stripTags is a service behind a proxy that removes entity tags.
type stripTags struct{ http.Handler }

func (s stripTags) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Handler.ServeHTTP(noTags{w}, r)
}

type noTags struct{ http.ResponseWriter }

func (w noTags) Write(b []byte) (int, error) {
	w.Header().Del("Etag")
	return w.ResponseWriter.Write(b)
}

func detect(t *testing.T, h http.Handler, provider string) (nstance.SpotDetector, error) {
	t.Helper()
	return spot.Detect(t.Context(), &spot.DetectOptions{Options: *options(h), Provider: provider})
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func TestDetect(t *testing.T) {
	bubble(t, "a named provider is not asked", func(t *testing.T) {
		for name, want := range map[string]nstance.SpotDetector{
			"aws": &spot.AWS{}, "gcp": &spot.GCP{}, "proxmox": spot.None{}, "none": spot.None{},
		} {
			d, err := detect(t, http.HandlerFunc(hung), name)
			require.NoError(t, err)
			require.IsType(t, want, d)
		}
	})
	bubble(t, "an unknown provider is refused by name", func(t *testing.T) {
		_, err := detect(t, aws(), "asw")
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, "asw")
	})
	bubble(t, "bad options give no detector at all", func(t *testing.T) {
		for _, provider := range []string{"aws", "gcp", ""} {
			d, err := spot.Detect(t.Context(), &spot.DetectOptions{Options: spot.Options{BaseURL: "x"}, Provider: provider})
			require.ErrorIs(t, err, nstance.Invalid)
			require.True(t, d == nil, "not a nil pointer in an interface")
		}
	})
	bubble(t, "probing finds the service that is there", func(t *testing.T) {
		for _, o := range []imds.Options{{RequireToken: true}, {NoTokens: true}, {Spot: true}} {
			d, err := detect(t, imds.New(&o), "")
			require.NoError(t, err)
			require.IsType(t, &spot.AWS{}, d)
		}
		d, err := detect(t, gcp(), "")
		require.NoError(t, err)
		require.IsType(t, &spot.GCP{}, d)
	})
	bubble(t, "the first that answers is enough", func(t *testing.T) {
		s := gcp()
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				hung(w, r)
			}
			s.ServeHTTP(w, r)
		})
		start := time.Now()
		_, err := detect(t, h, "")
		require.NoError(t, err)
		require.Zero(t, time.Since(start))
	})
	bubble(t, "silence is NotFound, after the probe's timeout", func(t *testing.T) {
		start := time.Now()
		_, err := detect(t, http.HandlerFunc(hung), "")
		require.ErrorIs(t, err, nstance.NotFound)
		require.Equal(t, time.Second, time.Since(start))
	})
	bubble(t, "a web server that is no metadata service is NotFound", func(t *testing.T) {
		page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>hello</html>")) })
		for _, h := range []http.Handler{page, status(404), status(400), status(302)} {
			_, err := detect(t, h, "")
			require.ErrorIs(t, err, nstance.NotFound)
		}
	})
	bubble(t, "a service that is there but refuses is not absent", func(t *testing.T) {
		for code, want := range map[int]nstance.Code{403: nstance.Denied, 429: nstance.Throttled, 503: nstance.Unavailable} {
			_, err := detect(t, status(code), "")
			require.ErrorIs(t, err, want)
			require.NotErrorIs(t, err, nstance.NotFound)
		}
	})
	bubble(t, "an ended context is not absence", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := spot.Detect(ctx, &spot.DetectOptions{Options: *options(http.HandlerFunc(hung))})
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, nstance.NotFound)
	})
}

func TestNone(t *testing.T) {
	bubble(t, "is never interrupted and ends with its context", func(t *testing.T) {
		yes, err := spot.None{}.Interruptible(t.Context())
		require.NoError(t, err)
		require.False(t, yes)
		r := follow(t, spot.None{})
		notices, errs := r.after(t, time.Hour)
		require.Empty(t, notices)
		require.Empty(t, errs)
		synctest.Wait()
	})
}
