package operators

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/registration"
)

// TestSelectionIsBounded: of any number of interruptions, in any order, only what may be on the
// page is kept.
func TestSelectionIsBounded(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, order := range []func(int) int{func(i int) int { return i }, func(i int) int { return 99 - i }, func(i int) int { return i * 37 % 100 }} {
		s := newSelection(interruptionQuery{limit: 2})
		for i := range 100 {
			n := order(i)
			s.add(&apiv1.Interruption{Instance: fmt.Sprint(n), EventId: "e", ReceivedAt: timestamppb.New(t0.Add(time.Duration(n) * time.Second))})
			require.LessOrEqual(t, s.size, 4*3)
		}
		var got []string
		for _, i := range s.sorted()[:3] {
			got = append(got, i.GetInstance())
		}
		require.Equal(t, []string{"99", "98", "97"}, got)
	}
}

// TestOperatorMessage: the newest certificate is shown.
func TestOperatorMessage(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	o := registration.OperatorRegistration{
		Name: "eve", Role: nstance.RoleOperator, Tenant: "a", RegisteredAt: t0,
		Succession: registration.Succession{Current: &registration.KeyRecord{Issuer: "old", NotAfter: t0.Add(time.Hour)}},
	}
	m := operatorMessage(o)
	require.Equal(t, "old", m.GetIssuer())
	require.Nil(t, m.GetRevokedAt())
	o.Pending = &registration.KeyRecord{Issuer: "new", NotAfter: t0.Add(2 * time.Hour)}
	o.Revoked = true
	m = operatorMessage(o)
	require.Equal(t, "new", m.GetIssuer())
	require.Equal(t, t0.Add(2*time.Hour), m.GetNotAfter().AsTime())
	require.Equal(t, t0, m.GetRevokedAt().AsTime(), "when is not known")
	o.RevokedAt = t0.Add(time.Minute)
	require.Equal(t, o.RevokedAt, operatorMessage(o).GetRevokedAt().AsTime())
	require.Empty(t, operatorMessage(registration.OperatorRegistration{}).GetIssuer())
}

// TestEndOfAnInstance: the last of its lives decides.
func TestEndOfAnInstance(t *testing.T) {
	for _, c := range []struct {
		events []nstance.EventType
		end    nstance.State
		ended  bool
	}{
		{nil, nstance.Deleted, false},
		{[]nstance.EventType{nstance.EventCreated}, nstance.Deleted, false},
		{[]nstance.EventType{nstance.EventCreated, nstance.EventDeleted}, nstance.Deleted, true},
		{[]nstance.EventType{nstance.EventCreateFailed}, nstance.Failed, true},
		{[]nstance.EventType{nstance.EventCreateFailed, nstance.EventCreated}, nstance.Deleted, false},
		{[]nstance.EventType{nstance.EventCreateFailed, nstance.EventDeleted}, nstance.Failed, true},
	} {
		var events []nstance.Event
		for _, typ := range c.events {
			events = append(events, nstance.Event{Type: typ})
		}
		end, ended := endOf(events)
		require.Equal(t, []any{c.end, c.ended}, []any{end, ended}, c.events)
	}
}
