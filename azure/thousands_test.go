//go:build !race

package azure_test

// What is here counts calls over 5,000 machines: the race detector would take
// long and has nothing to find that smaller lists do not show.

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/azure"
	"github.com/nstance-go/nstance/azure/armtest"
)

// TestListOfThousands: with the cloud's pages of 50 a list of 5,000 machines costs
// 100 calls, and as many for the power states.
func TestListOfThousands(t *testing.T) {
	c, server := serve(t, &armtest.Options{Subnets: map[string]int{subnetA: 8000}})
	o, puts := options(t, server), &recorder{client: server.Client()}
	o.Transport = puts
	p, err := azure.New(o)
	require.NoError(t, err)
	first := newSpec(t)
	_, err = p.Create(t.Context(), first)
	require.NoError(t, err)
	require.NotEmpty(t, puts.sent)
	for range 4999 {
		puts.replay(t, c, string(first.ID), string(newSpec(t).ID))
	}
	require.Len(t, c.Machines(), 5000)
	require.Equal(t, 5000, count(t, p, first.Owner))
	require.Equal(t, 100, c.Faults.Calls()["VirtualMachinesClient.NewListPager"])
	require.Equal(t, 100, c.Faults.Calls()["VirtualMachinesClient.NewListAllPager"])
}

// A recorder keeps the requests that create something.
type recorder struct {
	client *http.Client
	sent   []*http.Request
	bodies []string
}

func (c *recorder) Do(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPut {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		c.sent, c.bodies = append(c.sent, r.Clone(r.Context())), append(c.bodies, string(body))
	}
	return c.client.Do(r)
}

// replay sends the requests again, for a machine with another ID.
func (c *recorder) replay(t *testing.T, cloud http.Handler, id, other string) {
	t.Helper()
	for i, sent := range c.sent {
		r := httptest.NewRequestWithContext(t.Context(), sent.Method, strings.ReplaceAll(sent.URL.String(), id, other),
			strings.NewReader(strings.ReplaceAll(c.bodies[i], id, other)))
		r.Header = sent.Header
		w := httptest.NewRecorder()
		cloud.ServeHTTP(w, r)
		require.Less(t, w.Code, 300, w.Body)
	}
}
