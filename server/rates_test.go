package server_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/web"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/storage"
)

// TestRatesOfTheLedger: a leader chooses shapes by how often pools were reclaimed before its
// term, and a pool that was reclaimed lately comes last.
func TestRatesOfTheLedger(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		order, choice string
	}{
		"the steadiest first": {`, "order": "steadiest"`, "steadiest"},
		"as listed":           {"", "reclaimed"},
	} {
		t.Run(name, func(t *testing.T) {
			store := storage.NewMemory()
			writeLedger(t, store, 30*24, time.Now()) // small in z-1: machines that lived for an hour
			text := fmt.Sprintf(configuration, `"subnet_pools": {"main": ["s-1"]},`, 0)
			text = replaceOnce(t, text, `"instance_type": "small"`, `"instance_types": ["small", "medium"], "subnet_pool": "main"`)
			text = replaceOnce(t, text, `"size": 0}`, `"size": 0`+c.order+`}`)
			w := newWorld(t, setup{store: store, config: text, rates: true, cloud: simcloud.Options{Zones: map[string]string{"s-1": "z-1"}}})
			api := w.admin()
			require.Eventually(t, func() bool {
				resp, err := api.Plan(t.Context(), &apiv1.PlanRequest{Group: &apiv1.UpdateGroupRequest{Group: "web", Size: proto.Int32(1)}})
				require.NoError(t, err)
				shape := resp.GetGroups()[0].GetShape()
				return shape.GetInstanceType() == "medium" && shape.GetChoice() == c.choice
			}, eventually, 5*time.Millisecond)
			require.Eventually(t, func() bool {
				return slices.ContainsFunc(w.status().Pools, func(p web.Pool) bool { return p.InstanceType == "small" && p.Zone == "z-1" && p.Reclaims > 0 })
			}, eventually, 5*time.Millisecond, "the page shows them too")
		})
	}
}

// TestPriceOnRecord: what a machine cost at launch is in its record, and the ledger sums it
// up.
func TestPriceOnRecord(t *testing.T) {
	t.Parallel()
	prices := map[simcloud.Pool]float64{{InstanceType: "small", Zone: "z-1", Market: "spot"}: 0.25}
	text := fmt.Sprintf(configuration, `"subnet_pools": {"main": ["s-1"]},`, 1)
	text = replaceOnce(t, text, `"instance_type": "small"`, `"instance_type": "small", "subnet_pool": "main"`)
	w := newWorld(t, setup{config: text, cloud: simcloud.Options{Zones: map[string]string{"s-1": "z-1"}, Prices: prices}})
	api := w.admin()
	w.connectReady(w.awaitMachine("default"))
	resp, err := api.ListInstances(t.Context(), &apiv1.ListInstancesRequest{Group: "web"})
	require.NoError(t, err)
	id := resp.GetInstances()[0].GetId()
	require.InDelta(t, 0.25, resp.GetInstances()[0].GetPricePerHour(), 0)
	cost := func() float64 {
		rates, err := api.GetInterruptionRates(t.Context(), &apiv1.GetInterruptionRatesRequest{})
		require.NoError(t, err)
		for _, r := range rates.GetRates() {
			if r.GetInstanceType() == "small" && r.GetPricedTime().AsDuration() > 0 {
				require.LessOrEqual(t, r.GetPricedTime().AsDuration(), r.GetMachineTime().AsDuration())
				require.InDelta(t, 0.25*r.GetPricedTime().AsDuration().Hours(), r.GetCost(), 1e-9)
				return r.GetCost()
			}
		}
		return 0
	}
	require.Positive(t, cost(), "it runs")
	_, err = api.DeleteInstance(t.Context(), &apiv1.DeleteInstanceRequest{Id: id, NoDrain: true})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		got, err := api.GetInstance(t.Context(), &apiv1.GetInstanceRequest{Id: id})
		return err == nil && got.GetLife().GetPricePerHour() == 0.25 && got.GetLife().GetDeletedAt() != nil
	}, eventually, 5*time.Millisecond, "its life has the price too")
	require.Positive(t, cost())
}
