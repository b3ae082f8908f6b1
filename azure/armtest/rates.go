package armtest

import (
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/nstance-go/nstance/provider/testcloud"
)

// rates are the token buckets by which Azure throttles calls: those of Compute for
// one machine and for a subscription in a region ("Troubleshooting API throttling
// errors"), each with a minute's refill and a burst of three, and those of Network
// for five minutes ("Throttling Resource Manager requests").
type rates struct {
	regional map[string]*testcloud.Bucket
	machine  map[string]*testcloud.Bucket
	pruned   time.Time
}

// pruneEvery is how often buckets of machines are forgotten that are full again:
// after three minutes without a call, so that there are no more of them than such
// calls in that time.
const pruneEvery = time.Minute

func (r *rates) prune(now time.Time) {
	if now.Sub(r.pruned) < pruneEvery {
		return
	}
	r.pruned = now
	maps.DeleteFunc(r.machine, func(_ string, b *testcloud.Bucket) bool { return b.Full(now) })
}

// A rate is one bucket's size: calls a minute, and at once.
type rate struct{ perMinute, burst float64 }

var (
	regionalRates = map[string]rate{
		"put": {500, 1500}, "delete": {500, 1500}, "get": {8000, 24000}, "list": {300, 900},
		"network write": {200, 1000}, "network read": {2000, 10000},
	}
	machineRates = map[string]rate{"put": {4, 12}, "update": {4, 12}, "delete": {4, 12}, "get": {12, 36}}
)

// kind returns the regional bucket and the machine's one that a call is counted
// in; "": it is not counted.
func (r *route) kind() (regional, machine string) {
	switch r.name {
	case "VirtualMachinesClient.BeginCreateOrUpdate":
		return "put", "put"
	case "VirtualMachinesClient.BeginStart":
		return "put", "update"
	case "VirtualMachinesClient.BeginDelete", "VirtualMachinesClient.BeginDeallocate":
		return "delete", "delete"
	case "VirtualMachinesClient.Get":
		return "get", "get"
	case "VirtualMachinesClient.NewListPager", "VirtualMachinesClient.NewListAllPager":
		return "list", ""
	}
	switch {
	case strings.HasPrefix(r.action, compute), r.action == "":
		return "", ""
	case r.method == http.MethodGet:
		return "network read", ""
	}
	return "network write", ""
}

// throttled refuses a call beyond the rates, as Azure does: with a code that it
// uses for quotas, too, so that only the status tells.
func (c *Cloud) throttled(k *call) *Refusal {
	if !c.o.Throttle {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	regional, machine := k.route.kind()
	c.rates.prune(time.Now())
	ok := take(c.rates.regional, regional, regionalRates[regional]) &&
		(machine == "" || take(c.rates.machine, machine+" "+k.path["name"], machineRates[machine]))
	if ok {
		return nil
	}
	return &Refusal{
		Status: http.StatusTooManyRequests, Code: "OperationNotAllowed",
		Message: "The server rejected the request because too many requests have been received for this subscription.",
		Details: []Detail{{"TooManyRequests", "{\"operationGroup\":\"HighCostGet30Min\",\"measuredRequestCount\":16000}"}},
		Header:  map[string]string{"Retry-After": "300", "x-ms-ratelimit-remaining-resource": "Microsoft.Compute/" + regional + ";0"},
	}
}

func take(buckets map[string]*testcloud.Bucket, name string, r rate) bool {
	if name == "" {
		return true
	}
	if buckets[name] == nil {
		buckets[name] = &testcloud.Bucket{Burst: r.burst, PerSecond: r.perMinute / 60}
	}
	return buckets[name].Take(time.Now())
}
