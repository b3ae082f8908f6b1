package admin_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/wire"
)

// TestFlagsReachTheServer: what flags say is in the request, and nothing else.
func TestFlagsReachTheServer(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.WriteFile(data, []byte("join"), 0o600))
	since, until := wire.Time(time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)), wire.Time(time.Date(2026, 10, 11, 0, 0, 0, 0, time.UTC))
	const period = " --since 2026-10-01T00:00:00Z --until 2026-10-11T00:00:00Z"
	for line, want := range map[string]proto.Message{
		"audit --by admin-1 --method UpdateGroup --limit 1" + period: &apiv1.ListActionsRequest{By: "admin-1", Method: "UpdateGroup", Limit: 1, Since: since, Until: until},
		"interruption list --group web --instance web0 --limit 7" + period: &apiv1.ListInterruptionsRequest{
			Group: "web", Instance: "web0", Limit: 7, Since: since, Until: until,
		},
		"interruption show e1": &apiv1.ListInterruptionsRequest{EventId: "e1", Limit: 1000},
		"events --tenant default --group web --instance " + string(webA) + " --type ready,deleted --limit 7" + period: &apiv1.ListEventsRequest{
			Tenant: "default", Group: "web", Instance: string(webA), Types: []string{"ready", "deleted"}, Limit: 7, Newest: true, Since: since, Until: until,
		},
		"events --after 7": &apiv1.ListEventsRequest{Page: "7", Limit: 1000},
		"events --all":     &apiv1.ListEventsRequest{Limit: 1000},
		"instance create web --id " + string(webA) + " --instance-type a --var x=1 --args {} --load-balancer b,c --bootstrap-data " + data: &apiv1.CreateInstanceRequest{
			Id: string(webA), Tenant: "default", Group: "web", InstanceType: "a", Vars: map[string]string{"x": "1"}, Args: "{}", LoadBalancers: []string{"b", "c"}, BootstrapData: []byte("join"),
		},
		"interrupt " + string(webA) + " --kind rebalance --notice 30s --through-metadata -y": &apiv1.InterruptRequest{
			Id: string(webA), Kind: "rebalance", Notice: durationpb.New(30 * time.Second), ThroughMetadata: true,
		},
		"instance preserve " + string(webA) + " --for 2h -y": &apiv1.PreserveInstanceRequest{Id: string(webA), Duration: durationpb.New(2 * time.Hour)},
		"instance preserve " + string(webA) + " --end -y":    &apiv1.PreserveInstanceRequest{Id: string(webA), Duration: durationpb.New(0)},
		"config confirm 01234567 -y":                         &apiv1.ConfirmConfigRequest{Digest: "0123456789abcdef"},
	} {
		t.Run(line, func(t *testing.T) {
			w := newWorld(t).populate()
			r := w.run(strings.Fields(line)...)
			require.Zero(t, r.code, r.errors)
			var got proto.Message
			for _, m := range w.requests {
				if m.ProtoReflect().Descriptor() == want.ProtoReflect().Descriptor() {
					got = m
				}
			}
			require.NotNil(t, got)
			same(t, want, got)
		})
	}
}

// TestEverythingThatAGroupIsMadeFrom: there is a flag for each field of the request.
func TestEverythingThatAGroupIsMadeFrom(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.WriteFile(data, []byte("join"), 0o600))
	w := newWorld(t)
	r := w.run(strings.Fields(`group create new --tenant default --template vm --size 4 --instance-type large --subnet-pool b --var a=b --args {} --load-balancer front
		--drain-timeout 1m --max-surge 10% --market spot --max-share 50% --order cheapest --warm-pool 2 --on-reclaim cordon --on-rebalance replace
		--on-maintenance ignore --on-drain-timeout wait --owner one --protect --dry-run --bootstrap-data ` + data)...)
	require.Zero(t, r.code, r.errors)
	sent := w.asked.ProtoReflect()
	require.Equal(t, protoreflect.Name("CreateGroupRequest"), sent.Descriptor().Name())
	for i := range sent.Descriptor().Fields().Len() {
		field := sent.Descriptor().Fields().Get(i)
		require.True(t, sent.Has(field), field.Name())
	}
}

// TestListsAreComplete: whatever the number of pages.
func TestListsAreComplete(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	w.set(func() { w.listSize = 1 })
	for list, all := range map[string]int{"group list": 2, "instance list": 3, "orphan list": 2, "operator list --all": 5} {
		t.Run(list, func(t *testing.T) {
			require.Len(t, decoded[[]json.RawMessage](t, w.run(strings.Fields(list+" -o json")...)), all)
		})
	}
	t.Run("a page that leads to itself", func(t *testing.T) {
		w.set(func() { w.endless = true })
		r := w.run("audit", "--limit", "1000")
		require.Equal(t, 1, r.code)
		require.Contains(t, r.errors, "same page again")
	})
}
