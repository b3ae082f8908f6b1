package gcetest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp/gcetest"
	"github.com/nstance-go/nstance/gcp/internal/discovery"
	"github.com/nstance-go/nstance/provider/testcloud"
)

const (
	project   = "/compute/v1/projects/test-project"
	zone      = project + "/zones/us-central1-a"
	instances = zone + "/instances"
	requestID = "1b4e28ba-2fa1-51d2-883f-0016d3cca427"
)

// body is a valid insert, with more fields.
func body(name, more string) string {
	return fmt.Sprintf(`{"name":%q,"machineType":"zones/us-central1-a/machineTypes/e2-small",
		"disks":[{"boot":true,"autoDelete":true,"initializeParams":{"sourceImage":"projects/debian-cloud/global/images/family/debian-12"}}],
		"networkInterfaces":[{"subnetwork":"regions/us-central1/subnetworks/default"}]%s}`, name, more)
}

const spot = `,"scheduling":{"provisioningModel":"SPOT","preemptible":true,"automaticRestart":false,"onHostMaintenance":"TERMINATE","instanceTerminationAction":"%s"}`

type object = map[string]any

// ask makes one call without a socket. Every request and answer is compared with
// the discovery document, but for those that shall be refused.
func ask(t *testing.T, h http.Handler, method, path, body string) (int, object) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer test-token")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	var out object
	require.NoError(t, json.NewDecoder(bytes.NewReader(w.Body.Bytes())).Decode(&out), w.Body.String())
	return w.Code, out
}

// do is ask for calls that are not refused.
func do(t *testing.T, h http.Handler, method, path, body string) object {
	t.Helper()
	status, out := ask(t, discovery.Handler(t, h), method, path, body)
	require.Equal(t, http.StatusOK, status, "%v", out)
	return out
}

// reason returns the status and reason of a refusal.
func reason(t *testing.T, h http.Handler, method, path, body string) string {
	t.Helper()
	status, out := ask(t, h, method, path, body)
	e, ok := out["error"].(object)
	require.True(t, ok, "not refused: %v", out)
	require.EqualValues(t, status, e["code"])
	return fmt.Sprint(status, " ", e["errors"].([]any)[0].(object)["reason"])
}

func open(t *testing.T, o *gcetest.Options) *gcetest.Cloud {
	t.Helper()
	c := gcetest.New(o)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// TestRefusals checks that the cloud refuses what Compute Engine refuses, with
// its statuses and reasons.
func TestRefusals(t *testing.T) {
	c := open(t, &gcetest.Options{Permissions: nil})
	do(t, c, "POST", instances, body("taken", ""))
	for name, q := range map[string]struct{ method, path, body, want string }{
		"an unknown path":          {"GET", project + "/zones/us-central1-a/machines", "", "404 notFound"},
		"another project":          {"GET", "/compute/v1/projects/other/zones/us-central1-a/instances", "", "404 notFound"},
		"an unknown zone":          {"GET", project + "/zones/us-central1-z/instances", "", "400 invalid"},
		"an unknown machine":       {"GET", instances + "/none", "", "404 notFound"},
		"an unknown parameter":     {"GET", instances + "?max=1", "", "400 badRequest"},
		"too large a page":         {"GET", instances + "?maxResults=501", "", "400 invalid"},
		"a filter by tag":          {"GET", instances + "?filter=tags.items=web", "", "400 invalid"},
		"no filter":                {"GET", instances + "?filter=((", "", "400 invalid"},
		"an unknown field":         {"POST", instances, body("a", `,"machine":"x"`), "400 badRequest"},
		"an unknown nested field":  {"POST", instances, body("a", `,"scheduling":{"spot":true}`), "400 badRequest"},
		"a request ID":             {"POST", instances + "?requestId=1", body("a", ""), "400 invalid"},
		"the zero request ID":      {"POST", instances + "?requestId=00000000-0000-0000-0000-000000000000", body("a", ""), "400 invalid"},
		"a name with a digit":      {"POST", instances, body("1a", ""), "400 invalid"},
		"a name with a capital":    {"POST", instances, body("aB", ""), "400 invalid"},
		"a name that is taken":     {"POST", instances, body("taken", ""), "409 alreadyExists"},
		"a label with a colon":     {"POST", instances, body("a", `,"labels":{"a":"b:c"}`), "400 invalid"},
		"a label with a dot":       {"POST", instances, body("a", `,"labels":{"a.b":"c"}`), "400 invalid"},
		"a label key":              {"POST", instances, body("a", `,"labels":{"1a":"c"}`), "400 invalid"},
		"a long label":             {"POST", instances, body("a", `,"labels":{"a":"`+strings.Repeat("b", 64)+`"}`), "400 invalid"},
		"long metadata":            {"POST", instances, body("a", `,"metadata":{"items":[{"key":"user-data","value":"`+strings.Repeat("b", 262145)+`"}]}`), "400 invalid"},
		"a metadata key":           {"POST", instances, body("a", `,"metadata":{"items":[{"key":"a.b","value":"c"}]}`), "400 invalid"},
		"spot that restarts":       {"POST", instances, body("a", `,"scheduling":{"provisioningModel":"SPOT","automaticRestart":true}`), "400 invalid"},
		"spot that migrates":       {"POST", instances, body("a", `,"scheduling":{"preemptible":true,"onHostMaintenance":"MIGRATE"}`), "400 invalid"},
		"an action without spot":   {"POST", instances, body("a", `,"scheduling":{"instanceTerminationAction":"STOP"}`), "400 invalid"},
		"a notice without spot":    {"POST", instances, body("a", `,"scheduling":{"preemptionNoticeDuration":{"seconds":"120"}}`), "400 invalid"},
		"another notice":           {"POST", instances, body("a", `,"scheduling":{"provisioningModel":"SPOT","preemptionNoticeDuration":{"seconds":"60"}}`), "400 invalid"},
		"an unknown image":         {"POST", instances, strings.Replace(body("a", ""), "debian-12", "debian-99", 1), "404 notFound"},
		"an unknown subnet":        {"POST", instances, strings.Replace(body("a", ""), "subnetworks/default", "subnetworks/none", 1), "404 notFound"},
		"an unknown machine type":  {"POST", instances, strings.Replace(body("a", ""), "e2-small", "e2-huge", 1), "400 invalid"},
		"a type of another zone":   {"POST", instances, strings.Replace(body("a", ""), "zones/us-central1-a", "zones/us-central1-b", 1), "400 invalid"},
		"an architecture":          {"POST", instances, strings.Replace(body("a", ""), "e2-small", "t2a-standard-1", 1), "400 invalid"},
		"starting what runs not":   {"POST", instances + "/taken/resume", "", "400 unsupportedOperation"},
		"an interface":             {"PATCH", instances + "/taken/updateNetworkInterface?networkInterface=nic1", "{}", "400 invalid"},
		"a missing fingerprint":    {"PATCH", instances + "/taken/updateNetworkInterface?networkInterface=nic0", "{}", "400 required"},
		"a stale fingerprint":      {"PATCH", instances + "/taken/updateNetworkInterface?networkInterface=nic0", `{"fingerprint":"AAAA"}`, "412 conditionNotMet"},
		"an unknown group":         {"POST", zone + "/networkEndpointGroups/none/listNetworkEndpoints", "{}", "404 notFound"},
		"a list's body":            {"POST", zone + "/networkEndpointGroups/none/listNetworkEndpoints", `{"maxResults":5}`, "400 badRequest"},
		"an unknown operation":     {"GET", zone + "/operations/none", "", "404 notFound"},
		"an unknown view":          {"GET", project + "/regions/us-central1/subnetworks/default?views=ALL", "", "400 invalid"},
		"a machine that is absent": {"DELETE", instances + "/none", "", "404 notFound"},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, q.want, reason(t, c, q.method, q.path, q.body)) })
	}
	require.Len(t, c.Machines(), 1)
}

func TestTokens(t *testing.T) {
	for name, o := range map[string]*gcetest.Options{"a token": {Token: "another"}, "an account": {Account: "nstance@test-project.iam.gserviceaccount.com"}} {
		t.Run(name, func(t *testing.T) {
			c := open(t, o)
			require.Equal(t, "401 authError", reason(t, c, "GET", instances, ""))
		})
	}
	do(t, open(t, &gcetest.Options{Token: "test-token"}), "GET", instances, "")
}

// TestPermissions checks that an insert needs what its body asks for.
func TestPermissions(t *testing.T) {
	base := []string{"compute.instances.create", "compute.disks.create", "compute.subnetworks.use"}
	for more, permission := range map[string]string{
		`,"labels":{"a":"b"}`:                                     "compute.instances.setLabels",
		`,"metadata":{"items":[{"key":"a","value":"b"}]}`:         "compute.instances.setMetadata",
		`,"tags":{"items":["web"]}`:                               "compute.instances.setTags",
		`,"serviceAccounts":[{"email":"default","scopes":["a"]}]`: "compute.instances.setServiceAccount",
	} {
		t.Run(permission, func(t *testing.T) {
			c := open(t, &gcetest.Options{Permissions: base})
			do(t, c, "POST", instances, body("a", ""))
			require.Equal(t, "403 forbidden", reason(t, c, "POST", instances, body("b", more)))
			c = open(t, &gcetest.Options{Permissions: append(base, permission, "iam.serviceAccounts.actAs")})
			do(t, c, "POST", instances, body("b", more))
		})
	}
}

// TestRates checks that a minute's calls come back at the next whole minute.
func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, &gcetest.Options{Mutations: 2, Reads: 1})
		<-time.After(15 * time.Second)
		do(t, c, "POST", instances, body("a", ""))
		do(t, c, "POST", instances, body("b", ""))
		require.Equal(t, "403 rateLimitExceeded", reason(t, c, "POST", instances, body("c", "")))
		do(t, c, "GET", instances, "")
		require.Equal(t, "403 rateLimitExceeded", reason(t, c, "GET", instances, ""))
		<-time.After(44 * time.Second)
		require.Equal(t, "403 rateLimitExceeded", reason(t, c, "POST", instances, body("c", "")))
		<-time.After(time.Second)
		do(t, c, "POST", instances, body("c", ""))
	})
}

// TestRequestID checks that a repeated request is the same operation, also when
// that failed.
func TestRequestID(t *testing.T) {
	c := open(t, nil)
	c.FailOperation("insert", gcetest.OperationError{Code: "INTERNAL_ERROR", Message: "Internal error."})
	first := do(t, c, "POST", instances+"?requestId="+requestID, body("a", ""))
	require.Equal(t, requestID, first["clientOperationId"])
	require.NotNil(t, first["error"])
	require.Equal(t, first, do(t, c, "POST", instances+"?requestId="+requestID, body("a", "")))
	require.Empty(t, c.Machines())
	other := "2" + requestID[1:]
	made := do(t, c, "POST", instances+"?requestId="+other, body("a", ""))
	require.Nil(t, made["error"])
	require.Equal(t, made["name"], do(t, c, "POST", instances+"?requestId="+other, body("a", ""))["name"])
	list := do(t, c, "GET", zone+`/operations?filter=clientOperationId+%3D+%22`+other+`%22`, "")
	require.Len(t, list["items"], 1)
}

// TestStockout checks that an insert without capacity is accepted, shown for a
// while, and then gone: only the operation says why.
func TestStockout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		capacity := &testcloud.Capacity{}
		capacity.Set(testcloud.Shape{Type: "e2-small", Zone: "us-central1-a"}, 1)
		c := open(t, &gcetest.Options{Capacity: capacity, Delays: testcloud.Delays{Start: 10 * time.Second, Delete: time.Second}})
		do(t, c, "POST", instances, body("a", ""))
		op := do(t, c, "POST", instances, body("b", ""))
		require.Equal(t, "RUNNING", op["status"])
		require.Equal(t, "PROVISIONING", do(t, c, "GET", instances+"/b", "")["status"])
		<-time.After(10 * time.Second)
		synctest.Wait()
		require.Equal(t, "404 notFound", reason(t, c, "GET", instances+"/b", ""))
		op = do(t, c, "GET", zone+"/operations/"+op["name"].(string), "")
		require.Equal(t, "ZONE_RESOURCE_POOL_EXHAUSTED", op["error"].(object)["errors"].([]any)[0].(object)["code"])
		require.Equal(t, "RUNNING", do(t, c, "GET", instances+"/a", "")["status"])
		require.Len(t, c.Disks(), 1)
		// What goes gives its capacity back.
		do(t, c, "DELETE", instances+"/a", "")
		<-time.After(time.Second)
		synctest.Wait()
		require.Empty(t, c.Disks())
		do(t, c, "POST", instances, body("b", ""))
		<-time.After(10 * time.Second)
		synctest.Wait()
		require.Equal(t, "RUNNING", do(t, c, "GET", instances+"/b", "")["status"])
	})
}

// A guest records what it is told.
type guest struct{ announced, killed chan string }

func (g *guest) Start(b testcloud.Boot) (testcloud.Guest, error) {
	g.announced <- "start " + string(b.UserData)
	return g, nil
}
func (g *guest) Announce(action string, _ time.Time) { g.announced <- action }
func (g *guest) Withdraw()                           {}
func (g *guest) Kill()                               { g.killed <- "killed" }

// TestReclaim checks both ways in which the cloud takes spot machines back.
func TestReclaim(t *testing.T) {
	for action, status := range map[string]string{"DELETE": "404", "STOP": "TERMINATED"} {
		t.Run(action, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &guest{make(chan string, 9), make(chan string, 9)}
				c := open(t, &gcetest.Options{Hypervisor: g, Delays: testcloud.Delays{Stop: time.Second, Delete: time.Second}})
				md := `,"metadata":{"items":[{"key":"user-data","value":"hello"}]}`
				do(t, c, "POST", instances, body("a", md+fmt.Sprintf(spot, action)))
				synctest.Wait()
				require.Equal(t, "start hello", <-g.announced)
				m := c.Machines()[0]
				require.True(t, m.Spot)
				require.NoError(t, c.Reclaim(m.Handle, 30*time.Second))
				require.Equal(t, "preempted", <-g.announced)
				<-time.After(29 * time.Second)
				require.Equal(t, "RUNNING", do(t, c, "GET", instances+"/a", "")["status"])
				<-time.After(3 * time.Second)
				synctest.Wait()
				require.Equal(t, "killed", <-g.killed)
				if status == "404" {
					require.Equal(t, "404 notFound", reason(t, c, "GET", instances+"/a", ""))
				} else {
					require.Equal(t, status, do(t, c, "GET", instances+"/a", "")["status"])
				}
				ops := do(t, c, "GET", zone+"/operations?filter=operationType+%3D+%22compute.instances.preempted%22", "")["items"].([]any)
				require.Len(t, ops, 1)
				require.Equal(t, "system", ops[0].(object)["user"])
			})
		})
	}
	c := open(t, nil)
	do(t, c, "POST", instances, body("a", ""))
	require.ErrorIs(t, c.Reclaim(c.Machines()[0].Handle, 0), nstance.Invalid)
	require.ErrorIs(t, c.Reclaim("none", 0), nstance.NotFound)
}

// TestGraceful checks that a delete waits for a graceful shutdown unless it says
// otherwise.
func TestGraceful(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := open(t, nil)
		graceful := `,"scheduling":{"gracefulShutdown":{"enabled":true,"maxDuration":{"seconds":"60"}}}`
		do(t, c, "POST", instances, body("a", graceful))
		do(t, c, "DELETE", instances+"/a", "")
		require.Equal(t, "PENDING_STOP", do(t, c, "GET", instances+"/a", "")["status"])
		require.Equal(t, "403 rateLimitExceeded", reason(t, c, "DELETE", instances+"/a", ""), "deleted again by another request")
		<-time.After(time.Minute)
		synctest.Wait()
		require.Empty(t, c.Machines())
		do(t, c, "POST", instances, body("b", graceful))
		do(t, c, "DELETE", instances+"/b?noGracefulShutdown=true", "")
		require.Empty(t, c.Machines())
	})
}

// TestAliases checks that a patch without a list changes nothing, and that an
// empty list is not an absent one.
func TestAliases(t *testing.T) {
	c := open(t, nil)
	do(t, c, "POST", instances, body("a", ""))
	do(t, c, "POST", instances, body("b", ""))
	nic := func(name string) object {
		return do(t, c, "GET", instances+"/"+name, "")["networkInterfaces"].([]any)[0].(object)
	}
	set := func(name, list string) object {
		return do(t, c, "PATCH", instances+"/"+name+"/updateNetworkInterface?networkInterface=nic0", fmt.Sprintf(`{"fingerprint":%q%s}`, nic(name)["fingerprint"], list))
	}
	set("a", `,"aliasIpRanges":[{"ipCidrRange":"10.0.0.200/32"}]`)
	require.Len(t, nic("a")["aliasIpRanges"], 1)
	require.NotNil(t, set("b", `,"aliasIpRanges":[{"ipCidrRange":"10.0.0.200/32"}]`)["error"], "another machine has it")
	set("a", ``)
	require.Len(t, nic("a")["aliasIpRanges"], 1)
	set("a", `,"aliasIpRanges":[]`)
	require.Empty(t, nic("a")["aliasIpRanges"])
	require.Nil(t, set("b", `,"aliasIpRanges":[{"ipCidrRange":"10.0.0.200/32"}]`)["error"])
}
