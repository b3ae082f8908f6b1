package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/reconcile/plan"
)

// TestShapesAsConfigured goes from the configuration to the machines: instance
// types in their order, subnets by their free addresses, and what is said when
// nothing is left.
func TestShapesAsConfigured(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	conf := func(size int) string {
		text := fmt.Sprintf(configuration, `"subnet_pools": {"main": ["s-1", "s-2"]},`, size)
		text = replace(t, text, `"instance_type": "small"`, `"instance_types": ["small", "medium"], "subnet_pool": "main"`)
		return strings.Replace(text, `"blue": {"db": {"template": "vm", "size": 1, "vars": {"shape": "round"}}}`, "", 1)
	}
	cloud := simcloud.Options{Latency: simcloud.Constant(100 * time.Millisecond), Subnets: map[string]int{"s-1": 4, "s-2": 9}} // counted before any is chosen
	w := newWorld(t, setup{cloud: cloud, text: conf(2)})
	shape := func(typ, subnet string) func(nstance.MachineSpec) bool {
		return func(s nstance.MachineSpec) bool { return s.InstanceType == typ && s.Subnet == subnet }
	}
	w.made(2, shape("small", "s-2"))

	w.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, 0)
	w.adopt(conf(4))
	w.made(2, shape("medium", "s-2"))

	w.cloud.SetCapacity(simcloud.Pool{InstanceType: "medium"}, 0)
	w.adopt(conf(5))
	api := w.admin()
	require.Eventually(t, func() bool {
		for _, h := range w.group(api, "web").GetHolds() {
			if h.GetKind() == plan.HoldCapacity {
				return h.GetReason() != ""
			}
		}
		return false
	}, eventually, 5*time.Millisecond, "it says why there is no fifth")
	require.Len(t, w.specs(), 4)
}
