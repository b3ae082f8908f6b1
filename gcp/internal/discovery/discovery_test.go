package discovery

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHandler checks that each kind of departure is found, and nothing else.
func TestHandler(t *testing.T) {
	d, err := load()
	require.NoError(t, err)
	const instances = "/compute/v1/projects/p1/zones/us-central1-a/instances"
	for name, c := range map[string]struct {
		method, path, body, answer, want string
	}{
		"correct":               {"POST", instances, `{"name":"a"}`, `{"kind":"compute#operation","status":"DONE"}`, ""},
		"a list":                {"GET", instances + "?maxResults=5", ``, `{"items":[{"name":"a","id":"12"}]}`, ""},
		"an unknown path":       {"GET", instances + "/a/b/c/d", ``, `{}`, "no method"},
		"a wrong HTTP method":   {"PATCH", instances, `{}`, `{}`, "no method"},
		"a bad path parameter":  {"GET", instances + "/A_B", ``, `{}`, "does not match"},
		"an unknown parameter":  {"GET", instances + "?max=5", ``, `{}`, "no query parameter max"},
		"a bad parameter":       {"GET", instances + "?maxResults=x", ``, `{}`, "maxResults"},
		"an unknown field":      {"POST", instances, `{"name":"a","nam":1}`, `{}`, "no field nam"},
		"a nested field":        {"POST", instances, `{"name":"a","scheduling":{"spot":true}}`, `{}`, "no field spot"},
		"a wrong type":          {"POST", instances, `{"name":1}`, `{}`, "no string"},
		"a wrong word":          {"POST", instances, `{"name":"a","scheduling":{"provisioningModel":"CHEAP"}}`, `{}`, "none of"},
		"the cloud's own field": {"POST", instances, `{"name":"a","status":"RUNNING"}`, `{}`, "only the cloud"},
		"a missing field":       {"POST", instances, `{}`, `{}`, "name is required"},
		"a body":                {"GET", instances, `{}`, `{}`, "no body"},
		"a number for int64":    {"GET", instances, ``, `{"items":[{"id":12}]}`, "no string"},
		"a wrong answer":        {"GET", instances, ``, `{"instances":[]}`, "no field instances"},
		"an answer's word":      {"GET", instances, ``, `{"items":[{"status":"GONE"}]}`, "none of"},
	} {
		t.Run(name, func(t *testing.T) {
			var found []string
			h := d.handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte(c.answer))
			}), func(err error) { found = append(found, err.Error()) })
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), c.method, c.path, strings.NewReader(c.body)))
			if c.want == "" {
				require.Empty(t, found)
				return
			}
			require.NotEmpty(t, found)
			require.Contains(t, found[0], c.want)
		})
	}
}
