package server_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/pki"
)

// TestTenantBudgets: an exhausted budget is named in the error and affects no other
// tenant and no administrator.
func TestTenantBudgets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{config: replaceOnce(t, fmt.Sprintf(configuration, "", 0), `"templates": {`, `"tenants": {
		"blue": {"templates": ["vm"], "max_groups": 2, "max_group_bytes": 2000, "max_watches": 2},
		"red": {"requests_per_second": 0.1, "request_burst": 5}
	},
	"templates": {`)})
	blue, red, admin := w.registerClient(nstance.RoleOperator, "blue").operatorAPI(), w.registerClient(nstance.RoleOperator, "red").operatorAPI(), w.admin()
	group := func(name string, vars map[string]string) *apiv1.CreateGroupRequest {
		return &apiv1.CreateGroupRequest{Group: name, Tenant: "blue", Template: "vm", Size: proto.Int32(0), Vars: vars}
	}
	long := map[string]string{"motd": strings.Repeat("x", 1500)}

	t.Run("groups", func(t *testing.T) {
		for _, name := range []string{"a", "b", "a"} {
			_, err := blue.CreateGroup(t.Context(), group(name, nil))
			require.NoError(t, err)
		}
		_, err := blue.CreateGroup(t.Context(), group("c", nil))
		requireFieldError(t, err, nstance.Quota, "tenants.blue.max_groups")
		require.NotContains(t, w.storedGroups(), "blue/c")
		_, err = admin.CreateGroup(t.Context(), group("c", nil))
		require.NoError(t, err)
		_, err = blue.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "a", Vars: &apiv1.Vars{Values: map[string]string{"colour": "green"}}})
		require.NoError(t, err, "there are no more groups than before")
	})
	t.Run("bytes", func(t *testing.T) {
		change := func(group string) error {
			_, err := blue.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: group, Vars: &apiv1.Vars{Values: long}})
			return err
		}
		require.NoError(t, change("db"), "what is said of configured groups counts too")
		requireFieldError(t, change("a"), nstance.Quota, "tenants.blue.max_group_bytes")
		_, err := blue.UpdateGroup(t.Context(), &apiv1.UpdateGroupRequest{Group: "db", Vars: &apiv1.Vars{}})
		require.NoError(t, err)
		require.NoError(t, change("a"))
	})
	t.Run("watches", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		open := func(ctx context.Context) error {
			stream, err := blue.WatchGroups(ctx, &apiv1.WatchGroupsRequest{})
			require.NoError(t, err)
			_, err = stream.Recv()
			return err
		}
		require.NoError(t, open(t.Context()))
		require.NoError(t, open(ctx))
		requireFieldError(t, open(t.Context()), nstance.Quota, "tenants.blue.max_watches")
		_, err := admin.ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
		require.NoError(t, err)
		cancel()
		require.Eventually(t, func() bool { return open(t.Context()) == nil }, eventually, 5*time.Millisecond)
	})
	t.Run("requests", func(t *testing.T) {
		var err error
		for range 50 {
			if _, err = red.ListGroups(t.Context(), &apiv1.ListGroupsRequest{}); err != nil {
				break
			}
		}
		requireFieldError(t, err, nstance.Throttled, "tenants.red.requests_per_second")
		for range 10 {
			_, err = blue.ListGroups(t.Context(), &apiv1.ListGroupsRequest{})
			require.NoError(t, err)
		}
	})
}

// TestResponsesFitMessageLimit: no response exceeds gRPC's default message limit,
// and the pages together are the whole list.
func TestResponsesFitMessageLimit(t *testing.T) {
	t.Parallel()
	var want []string
	var groups strings.Builder
	for i := range 24 {
		want = append(want, fmt.Sprintf("big%02d", i))
		fmt.Fprintf(&groups, `%q: {"template": "vm", "size": 0},`, want[i])
	}
	text := replaceOnce(t, fmt.Sprintf(configuration, "", 0), `"colour": "red"`, fmt.Sprintf(`"motd": %q`, strings.Repeat("x", 240<<10)))
	w := newWorld(t, setup{config: replaceOnce(t, text, `"web": {"template"`, groups.String()+`"web": {"template"`)})
	api := w.admin()
	require.Eventually(t, func() bool { return w.groupListed(api, "db") && len(w.getGroup(api, "db").GetVars()) > 0 }, eventually, 5*time.Millisecond)
	for _, limit := range []int32{0, 1, 7} {
		var got []string
		pages := 0
		for page := ""; ; pages++ {
			resp, err := api.ListGroups(t.Context(), &apiv1.ListGroupsRequest{Page: page, Limit: limit})
			require.NoError(t, err)
			require.Less(t, proto.Size(resp), 4<<20)
			for _, g := range resp.GetGroups() {
				got = append(got, g.GetGroup())
			}
			if page = resp.GetNextPage(); page == "" {
				break
			}
		}
		require.Positive(t, pages)
		require.Equal(t, append([]string{"db"}, append(want, "web")...), got)
	}
	_, err := api.ListGroups(t.Context(), &apiv1.ListGroupsRequest{Limit: -1})
	requireFieldError(t, err, nstance.Invalid, "limit")
}

// TestUnreadWatchesAreBounded: watches that are not read keep no copies of the
// shard in memory and do not block watches of other tenants.
func TestUnreadWatchesAreBounded(t *testing.T) {
	const size, watches = 1500, 64
	const permitted = 32 // by default
	w := newWorld(t, setup{webSize: size, shard: `"create_rate": {"per_second": 10000, "burst": 10000},`})
	operator := w.registerClient(nstance.RoleOperator, nstance.DefaultTenant).operatorAPI()
	require.Eventually(t, func() bool { return w.countEvents(nstance.EventCreated) == size+1 }, 3*eventually, 10*time.Millisecond)

	t.Run("pages of instances", func(t *testing.T) {
		var ids []string
		for page := ""; ; {
			resp, err := operator.ListInstances(t.Context(), &apiv1.ListInstancesRequest{Page: page, Limit: 400})
			require.NoError(t, err)
			require.LessOrEqual(t, len(resp.GetInstances()), 400)
			for _, i := range resp.GetInstances() {
				ids = append(ids, i.GetId())
			}
			if page = resp.GetNextPage(); page == "" {
				break
			}
		}
		require.Len(t, ids, size)
		require.True(t, slices.IsSorted(ids))
		require.Len(t, slices.Compact(ids), size)
	})

	h := w.registerClient(nstance.RoleOperator, nstance.DefaultTenant)
	before := settledMemory(t)
	running := runtime.NumGoroutine()
	h.openUnreadWatches(watches)
	require.Eventually(t, func() bool { return runtime.NumGoroutine() >= running+permitted }, eventually, time.Millisecond)
	blue := w.watch(w.registerClient(nstance.RoleOperator, "blue").operatorAPI(), &apiv1.WatchInstanceEventsRequest{})
	require.Len(t, blue.snapshot(), 1)
	require.Less(t, settledMemory(t)-before, int64(3<<20), "a copy of the shard for each watch takes twice that")
}

// openUnreadWatches opens watches on one connection and reads nothing. It speaks
// HTTP/2 itself, so that only the server uses memory.
func (h *client) openUnreadWatches(watches int) {
	cfg := pki.ClientTLS(h.w.keys.Identity.Pool(), h.cert, zone, cluster)
	cfg.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", h.w.server.Addresses().Operator, cfg)
	require.NoError(h.w, err)
	h.w.Cleanup(func() { conn.Close() })
	_, err = conn.Write([]byte(http2.ClientPreface))
	require.NoError(h.w, err)
	frames := http2.NewFramer(conn, nil)
	require.NoError(h.w, frames.WriteSettings())
	var header bytes.Buffer
	encoder := hpack.NewEncoder(&header)
	for i := range watches {
		header.Reset()
		for _, f := range []hpack.HeaderField{
			{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "shard"},
			{Name: ":path", Value: apiv1.OperatorService_WatchInstanceEvents_FullMethodName},
			{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
		} {
			require.NoError(h.w, encoder.WriteField(f))
		}
		stream := uint32(2*i + 1)
		require.NoError(h.w, frames.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: header.Bytes(), EndHeaders: true}))
		require.NoError(h.w, frames.WriteData(stream, true, make([]byte, 5))) // an empty message
	}
}

// settledMemory returns usedMemory once it has stopped changing.
func settledMemory(t *testing.T) (now int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		before := now
		now = usedMemory()
		return max(now-before, before-now) < 128<<10
	}, eventually, 100*time.Millisecond)
	return now
}

// usedMemory returns how many bytes of memory are in use.
func usedMemory() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
