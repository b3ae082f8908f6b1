package azure_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure"
	"github.com/nstance-go/nstance/azure/armtest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

const getDisk = "DisksClient.Get"

// failing are the arguments for a machine with one part of each kind that has a PUT of its own.
func failing(t *testing.T) nstance.MachineSpec {
	t.Helper()
	s := newSpec(t)
	s.Args = args(t, map[string]any{
		"zone": "1", "public_ip": true, "data_disks": []map[string]any{{"size_gb": 64, "type": "PremiumV2_LRS", "iops": 4000}},
	})
	return s
}

// TestFailedPart: a part that Azure accepts and does not make is put again once. When that
// fails, too, the create ends with Azure's words, long before its deadline, and a repeated one
// puts the part again.
func TestFailedPart(t *testing.T) {
	t.Parallel()
	for call, once := range map[string]int{putNIC: 2, putIP: 1, putDisk: 1} { // the interface is put again for its public address
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, nil)
			s.cloud.FailParts(call, 1, "InternalServerError", "An error occurred.")
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err := s.p.Create(ctx, failing(t))
			require.NoError(t, err)
			require.Equal(t, once+1, s.cloud.Faults.Calls()[call])

			spec := failing(t)
			s.cloud.FailParts(call, 2, "AddressPoolBroken", "No part today.")
			_, err = s.p.Create(ctx, spec)
			code(t, nstance.Invalid, err)
			require.ErrorContains(t, err, string(spec.ID))
			require.ErrorContains(t, err, "AddressPoolBroken: No part today.")
			require.Len(t, s.cloud.Machines(), 1)

			other, err := azure.New(options(t, s.server))
			require.NoError(t, err)
			s.cloud.FailParts(call, 1, "SubnetIsFull", "No address.")
			before := s.cloud.Faults.Calls()[call]
			_, err = other.Create(ctx, spec)
			code(t, nstance.Capacity, err)
			require.Equal(t, before+1, s.cloud.Faults.Calls()[call], "the failure before counts")
			_, err = other.Create(ctx, spec)
			require.NoError(t, err)
		})
	}
}

// TestFailedPartIsTriedLater: a conflict of Azure's own, and a failure without words, end the
// create.
func TestFailedPartIsTriedLater(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]nstance.Code{"RetryableError": nstance.Unavailable, "InternalServerError": nstance.Unavailable, "": nstance.Invalid} {
		t.Run(words, func(t *testing.T) {
			t.Parallel()
			cloud, p := open(t, nil)
			cloud.FailParts(putNIC, 2, words, "")
			_, err := p.Create(t.Context(), newSpec(t))
			code(t, want, err)
			require.ErrorContains(t, err, "has failed")
		})
	}
}

// TestVanishedPart: a part that is not there after its operation has failed is no part that
// Azure does not show yet.
func TestVanishedPart(t *testing.T) {
	t.Parallel()
	cloud, p := open(t, nil)
	cloud.FailParts(putDisk, 2, "AddressPoolBroken", "No part today.")
	missing := &armtest.Refusal{Status: http.StatusNotFound, Code: "ResourceNotFound", Message: "no disk"}
	cloud.Faults.All(getDisk, testcloud.Fault{Answer: missing.ServeHTTP})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := p.Create(ctx, failing(t))
	code(t, nstance.Invalid, err)
	require.ErrorContains(t, err, "No part today.")
}

// TestFailedPartOfMachine: the parts of a machine that exists are not put again, and those with
// other marks neither.
func TestFailedPartOfMachine(t *testing.T) {
	t.Parallel()
	s := newSite(t, &armtest.Options{Pools: []string{pool}})
	spec := newSpec(t)
	m, err := s.p.Create(t.Context(), spec)
	require.NoError(t, err)
	s.cloud.FailParts(putNIC, 1, "InternalServerError", "An error occurred.")
	code(t, nstance.Unavailable, s.p.JoinBalancer(t.Context(), nstance.LoadBalancer{ID: pool}, []nstance.Machine{m}))
	puts := s.cloud.Faults.Calls()[putNIC]
	other, err := azure.New(options(t, s.server))
	require.NoError(t, err)
	got, err := other.Create(t.Context(), spec)
	require.NoError(t, err)
	require.Equal(t, m.ProviderID, got.ProviderID)

	foreign := newSpec(t)
	s.cloud.FailParts(putNIC, 2, "InternalServerError", "An error occurred.")
	_, err = other.Create(t.Context(), foreign)
	code(t, nstance.Unavailable, err)
	foreign.Owner.Shard = "b"
	_, err = other.Create(t.Context(), foreign)
	code(t, nstance.Conflict, err)
	require.Equal(t, puts+2, s.cloud.Faults.Calls()[putNIC])
	require.Contains(t, s.cloud.Left(), "interface "+string(foreign.ID))
}
