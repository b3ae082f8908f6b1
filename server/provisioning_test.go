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

// TestShapesAsConfigured: machines use the configured instance types in order and
// the subnets with most free addresses. The hold names the reason when none is left.
func TestShapesAsConfigured(t *testing.T) {
	t.Parallel() // it waits for intervals of seconds
	conf := func(size int) string {
		text := fmt.Sprintf(configuration, `"subnet_pools": {"main": ["s-1", "s-2"]},`, size)
		text = replaceOnce(t, text, `"instance_type": "small"`, `"instance_types": ["small", "medium"], "subnet_pool": "main"`)
		return strings.Replace(text, `"blue": {"db": {"template": "vm", "size": 1, "vars": {"shape": "round"}}}`, "", 1)
	}
	cloud := simcloud.Options{Latency: simcloud.Delay{Min: 100 * time.Millisecond}, Subnets: map[string]int{"s-1": 4, "s-2": 9}} // subnets are counted before the first choice
	w := newWorld(t, setup{cloud: cloud, config: conf(2)})
	shape := func(typ, subnet string) func(nstance.MachineSpec) bool {
		return func(s nstance.MachineSpec) bool { return s.InstanceType == typ && s.Subnet == subnet }
	}
	w.awaitMachinesMatching(2, shape("small", "s-2"))

	w.cloud.SetCapacity(simcloud.Pool{InstanceType: "small"}, 0)
	w.applyConfig(conf(4))
	w.awaitMachinesMatching(2, shape("medium", "s-2"))

	w.cloud.SetCapacity(simcloud.Pool{InstanceType: "medium"}, 0)
	w.applyConfig(conf(5))
	api := w.admin()
	require.Eventually(t, func() bool {
		for _, h := range w.getGroup(api, "web").GetHolds() {
			if h.GetKind() == string(plan.HoldCapacity) {
				return h.GetReason() != ""
			}
		}
		return false
	}, eventually, 5*time.Millisecond, "it says why there is no fifth")
	require.Len(t, w.webSpecs(), 4)
}
