package server

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/ledger"
	"github.com/nstance-go/nstance/storage"
)

// TestTenantsCannotFillTheAudit: what is beyond a tenant's share is counted; administrators
// and other tenants are recorded all the same. Calls that may have been carried out are
// recorded with their errors.
func TestTenantsCannotFillTheAudit(t *testing.T) {
	store := storage.NewMemory()
	w := ledger.NewWriter(store, "s1", &ledger.WriterOptions{Linger: time.Millisecond})
	now := time.Now()
	a := newAudit(w, func() time.Time { return now })
	const method, share = apiv1.OperatorService_PauseGroup_FullMethodName, actionBurst
	red := nstance.Identity{Subject: "operator-red", Role: nstance.RoleOperator, Tenant: "red"}
	for range share + 100 {
		a.called(red, method, &apiv1.PauseGroupRequest{Group: "web"}, nil)
	}
	a.called(nstance.Identity{Subject: "operator-blue", Role: nstance.RoleOperator, Tenant: "blue"}, method, &apiv1.PauseGroupRequest{}, nil)
	a.called(nstance.Identity{Subject: "admin-1", Role: nstance.RoleAdmin, Tenant: "red"}, method, &apiv1.PauseGroupRequest{}, nstance.Errorf(nstance.Unavailable, "storage\nis slow"))
	now = now.Add(time.Hour)
	a.called(red, method, &apiv1.PauseGroupRequest{}, nil)
	a.called(red, apiv1.OperatorService_RenewCertificate_FullMethodName, &apiv1.OperatorServiceRenewCertificateRequest{}, nil)
	a.called(nstance.Identity{Subject: "web1", Role: nstance.RoleAgent}, method, &apiv1.PauseGroupRequest{}, nil)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(ctx) }) // writes what waits, and ends
	wg.Wait()
	var got []ledger.Action
	for day, err := range ledger.NewReader(store, "s1").Days(t.Context(), time.Time{}, time.Time{}) {
		require.NoError(t, err)
		require.Empty(t, day.Problems)
		got = append(got, day.Actions...)
	}
	by := map[string]int{}
	for _, action := range got {
		by[action.By]++
		switch action.By {
		case "admin-1":
			require.Equal(t, nstance.Unavailable, action.Code)
			require.NotContains(t, action.Error, "\n")
			require.Equal(t, 100, action.Omitted+omittedOf(got, "operator-red"), "told once, with the next call of the tenant")
		case "operator-blue":
			require.Zero(t, action.Omitted)
		}
	}
	require.Equal(t, map[string]int{"operator-red": share + 1, "operator-blue": 1, "admin-1": 1}, by)
}

func omittedOf(all []ledger.Action, by string) (n int) {
	for _, a := range all {
		if a.By == by {
			n += a.Omitted
		}
	}
	return n
}
