package bucket_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/bucket"
	"github.com/nstance-go/nstance/storage"
)

func TestDates(t *testing.T) {
	const date = "Fri, 20 Nov 2026 10:00:07 GMT"
	read := time.Date(2026, 11, 20, 10, 0, 7, 0, time.UTC)
	answer := func(status int, headers ...string) *http.Response {
		a := &http.Response{StatusCode: status, Header: http.Header{}}
		for i := 0; i < len(headers); i += 2 {
			a.Header.Set(headers[i], headers[i+1])
		}
		return a
	}
	for name, c := range map[string]struct {
		answer *http.Response
		took   time.Duration
		ok     bool
	}{
		"good":           {answer(200, "Date", date), time.Second, true},
		"a refusal":      {answer(412, "Date", date), time.Second, true},
		"none":           {nil, 0, false},
		"no date":        {answer(200), 0, false},
		"not a date":     {answer(200, "Date", "yesterday"), 0, false},
		"of a gateway":   {answer(502, "Date", date), 0, false},
		"of a cache":     {answer(200, "Date", date, "Age", "7"), 0, false},
		"just in time":   {answer(200, "Date", date), 10 * time.Second, true},
		"after too long": {answer(200, "Date", date), 10*time.Second + 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d bucket.Dates
				_, err := d.Watch(func(*http.Request) (*http.Response, error) {
					<-time.After(c.took)
					return c.answer, nil
				}).Do(nil)
				require.NoError(t, err)
				r, known := d.Date()
				require.Equal(t, c.ok, known)
				if known {
					require.Equal(t, storage.Reading{Local: time.Now(), Remote: read, Within: time.Second + c.took}, r)
				}
			})
		})
	}
}
