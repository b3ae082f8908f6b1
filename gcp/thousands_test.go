//go:build !race

package gcp_test

// What is here counts calls over 5,000 machines: the race detector would take
// long and has nothing to find that smaller lists do not show.

import (
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp"
	"github.com/nstance-go/nstance/gcp/gcetest"
	"github.com/nstance-go/nstance/provider/testcloud"
	"github.com/nstance-go/nstance/provider/testcloud/inmemory"
)

// TestListCost checks that a list of 5,000 machines is ten calls.
func TestListCost(t *testing.T) {
	faults := &testcloud.Faults{}
	cloud := gcetest.New(&gcetest.Options{Token: token, Faults: faults, Subnets: []gcetest.Subnet{{Name: "default", Range: netip.MustParsePrefix("10.0.0.0/16")}}})
	t.Cleanup(func() { require.NoError(t, cloud.Close()) })
	p, err := gcp.New(t.Context(), zone, &gcp.Options{Project: project, HTTP: &http.Client{Transport: authorized{inmemory.Transport{Handler: cloud}, token}}})
	require.NoError(t, err)
	s := spec(t)
	for range 5000 {
		if s.ID, err = nstance.NewInstanceID("tst", time.Now()); err == nil {
			_, err = p.Create(t.Context(), s)
		}
		require.NoError(t, err)
	}
	n := 0
	for _, err := range p.List(t.Context(), s.Owner) {
		require.NoError(t, err)
		n++
	}
	require.Equal(t, 5000, n)
	require.Equal(t, 10, faults.Calls()["instances.list"])
}
