package pvetest_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/luthermonson/go-proxmox"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/proxmox/pvetest"
)

// recorded are go-proxmox's recordings of real clusters: for each, the call of
// the test cluster that is compared with it.
var recorded = []struct {
	file   string
	match  string // the path's pattern in the recording; the one with the longest body counts
	method string
	path   string
	kind   string          // compares the objects of a list by this field
	absent map[string]bool // fields that the test cluster leaves out, with what is in them
	extra  []string        // fields that newer versions, or other machines, have
}{
	{file: "version.go", match: "^/version$", method: "GET", path: "/version"},
	{file: "cluster.go", match: "/cluster/status", method: "GET", path: "/cluster/status", kind: "type"},
	{file: "cluster.go", match: "/cluster/nextid$", method: "GET", path: "/cluster/nextid"},
	{file: "cluster.go", match: "^/cluster/resources$", method: "GET", path: "/cluster/resources", kind: "type",
		extra: []string{"[qemu].lock", "[qemu].pool", "[qemu].hastate", "[node].hastate"}},
	{file: "nodes.go", match: "^/nodes$", method: "GET", path: "/nodes", kind: "type"},
	{file: "nodes.go", match: "^/nodes/node1/status$", method: "GET", path: "/nodes/pve1/status"},
	{file: "nodes.go", match: "^/nodes/node1/qemu/101/status/current$", method: "GET", path: "/nodes/pve1/qemu/101/status/current", extra: []string{".tags", ".template", ".lock"},
		absent: map[string]bool{".blockstat": true, ".ballooninfo": true, ".balloon": true, ".balloon_min": true, ".freemem": true, ".nics": true,
			".proxmox-support": true, ".shares": true, ".agent": true}}, // what QEMU and the guest tell of themselves
	{file: "access.go", match: "^/access/permissions$", method: "GET", path: "/access/permissions"},
	{file: "access.go", match: "^/access/ticket$", method: "POST", path: "/access/ticket"},
}

// TestRecordedAnswers compares fields and types of the answers with those that
// go-proxmox recorded. Its recordings of version 8 have networks and Ceph only,
// which are not served here.
func TestRecordedAnswers(t *testing.T) {
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/luthermonson/go-proxmox").Output()
	require.NoError(t, err)
	c := newCluster(t, &pvetest.Options{Passwords: map[string]string{"root@pam": "pw"}})
	c.cloud.Add(101, "pve1", map[string]string{"name": "matt", "tags": "a;b", "memory": "2048"})
	c.post("/nodes/pve1/qemu/101/status/start", nil)
	for _, r := range recorded {
		t.Run(r.method+" "+r.path, func(t *testing.T) {
			source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "tests", "mocks", "pve7x", r.file))
			require.NoError(t, err)
			want := recording(t, string(source), r.method, r.match)
			got := c.call(r.method, r.path, map[string]any{"username": "root@pam", "password": "pw"})
			wantFields, gotFields := map[string]string{}, map[string]string{}
			walk(wantFields, "", want, r.kind)
			walk(gotFields, "", got, r.kind)
			require.NotEmpty(t, wantFields)
			for _, path := range slices.Sorted(maps.Keys(wantFields)) {
				if under(r.absent, path) || keyedByData(path) {
					continue
				}
				require.Equal(t, wantFields[path], gotFields[path], "type of %s", path)
			}
			for _, path := range slices.Sorted(maps.Keys(gotFields)) {
				if !keyedByData(path) && !slices.Contains(r.extra, path) {
					require.Contains(t, wantFields, path, "a field that no real cluster has")
				}
			}
		})
	}
}

// keyedByData reports fields whose names are paths and privileges.
func keyedByData(path string) bool {
	return strings.HasPrefix(path, "./") || strings.HasPrefix(path, ".cap.")
}

func under(absent map[string]bool, path string) bool {
	for a := range absent {
		if path == a || strings.HasPrefix(path, a+".") {
			return true
		}
	}
	return false
}

var mocks = regexp.MustCompile("(?s)\\.?(Get|Post)\\(\"([^\"]+)\"\\)\\.(.*?)JSON\\(`(.*?)`\\)")

// recording returns the data of the longest matching recording.
func recording(t *testing.T, source, method, match string) any {
	longest := ""
	for _, m := range mocks.FindAllStringSubmatch(strings.ReplaceAll(source, "JSON(versionJSON)", "JSON(`"+versionOf(source)+"`)"), -1) {
		if strings.EqualFold(m[1], method) && m[2] == match && !strings.Contains(m[3], "Reply(400)") && len(m[4]) > len(longest) {
			longest = m[4]
		}
	}
	var out struct{ Data any }
	require.NoError(t, json.Unmarshal([]byte(longest), &out), "no recording of %s %s", method, match)
	return out.Data
}

func versionOf(source string) string {
	_, rest, _ := strings.Cut(source, "versionJSON := `")
	body, _, _ := strings.Cut(rest, "`")
	return body
}

// walk records the type of each field by its path; the objects of a list count
// together, apart by what the field kind says.
func walk(into map[string]string, path string, v any, kind string) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			walk(into, path+"."+key, value, kind)
		}
	case []any:
		for _, value := range v {
			at := path + "[]"
			if o, ok := value.(map[string]any); ok && kind != "" {
				at = fmt.Sprintf("%s[%v]", path, o[kind])
			}
			walk(into, at, value, kind)
		}
	default:
		into[path] = fmt.Sprintf("%T", v)
	}
}

// A cluster is a test cluster on a real socket.
type cluster struct {
	*testing.T
	cloud  *pvetest.Cloud
	server *httptest.Server
}

func newCluster(t *testing.T, o *pvetest.Options) *cluster {
	c := &cluster{T: t, cloud: pvetest.New(o)}
	c.server = httptest.NewServer(c.cloud)
	t.Cleanup(func() {
		c.server.Close()
		require.NoError(t, c.cloud.Close())
	})
	return c
}

// call makes a call and returns its data.
func (c *cluster) call(method, path string, params map[string]any) any {
	c.Helper()
	status, data, msg := c.try(method, path, params)
	require.Equal(c, 200, status, "%s", msg)
	return data
}

func (c *cluster) post(path string, params map[string]any) any {
	c.Helper()
	return c.call("POST", path, params)
}

// try makes a call and returns its status, data and message.
func (c *cluster) try(method, path string, params map[string]any) (int, any, string) {
	c.Helper()
	body, err := json.Marshal(params)
	require.NoError(c, err)
	r, err := http.NewRequestWithContext(c.Context(), method, c.server.URL+"/api2/json"+path, strings.NewReader(string(body)))
	require.NoError(c, err)
	if method == http.MethodGet || params == nil {
		r.Body, r.ContentLength = http.NoBody, 0
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "PVEAPIToken=root@pam!test=secret")
	res, err := http.DefaultClient.Do(r)
	require.NoError(c, err)
	defer func() { require.NoError(c, res.Body.Close()) }()
	var out struct {
		Data    any
		Message string
		Errors  map[string]string
	}
	if res.ContentLength != 0 {
		require.NoError(c, json.NewDecoder(res.Body).Decode(&out))
	}
	_, reason, _ := strings.Cut(res.Status, " ")
	if out.Message != "" {
		require.Equal(c, strings.TrimSpace(out.Message), reason)
	}
	return res.StatusCode, out.Data, fmt.Sprint(reason, out.Errors)
}

// TestLibrary drives the cluster with go-proxmox's own typed methods.
func TestLibrary(t *testing.T) {
	c := newCluster(t, &pvetest.Options{Passwords: map[string]string{"root@pam": "pw"}})
	ctx := t.Context()
	client := proxmox.NewClient(c.server.URL+"/api2/json", proxmox.WithCredentials(&proxmox.Credentials{Username: "root@pam", Password: "pw"}))
	v, err := client.Version(ctx) // opens a session first
	require.NoError(t, err)
	require.Equal(t, "9.2", v.Release)
	nodes, err := client.Nodes(ctx)
	require.NoError(t, err)
	require.Equal(t, uint64(64<<30), nodes[0].MaxMem)
	cl, err := client.Cluster(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, cl.Quorate)
	id, err := cl.NextID(ctx)
	require.NoError(t, err)
	require.Equal(t, 100, id)
	node, err := client.Node(ctx, "pve1")
	require.NoError(t, err)
	template, err := node.VirtualMachine(ctx, 9000)
	require.NoError(t, err)
	require.True(t, bool(template.Template))
	newid, task, err := template.Clone(ctx, &proxmox.VirtualMachineCloneOptions{NewID: 300, Name: "web1", Description: "notes"})
	require.NoError(t, err)
	require.Equal(t, 300, newid)
	require.NoError(t, task.Wait(ctx, time.Millisecond, time.Minute))
	require.True(t, task.IsSuccessful)
	log, err := task.Log(ctx, 0, 10)
	require.NoError(t, err)
	require.Equal(t, "creating a clone of VM 9000 with ID 300", log[0])
	vm, err := node.VirtualMachine(ctx, 300)
	require.NoError(t, err)
	task, err = vm.Config(ctx, proxmox.VirtualMachineOption{Name: "tags", Value: "B;a;a"}, proxmox.VirtualMachineOption{Name: "memory", Value: 4096})
	require.NoError(t, err)
	require.NoError(t, task.Wait(ctx, time.Millisecond, time.Minute))
	task, err = vm.Start(ctx)
	require.NoError(t, err)
	require.NoError(t, task.Wait(ctx, time.Millisecond, time.Minute))
	vm, err = node.VirtualMachine(ctx, 300)
	require.NoError(t, err)
	require.Equal(t, "running", vm.Status)
	require.Equal(t, "a;b", vm.VirtualMachineConfig.Tags)
	require.Equal(t, "notes\n", vm.VirtualMachineConfig.Description)
	all, err := cl.Resources(ctx, "vm")
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, uint64(4096<<20), all[0].MaxMem)
	may, err := client.Permissions(ctx, &proxmox.PermissionsOptions{Path: "/vms"})
	require.NoError(t, err)
	require.True(t, bool(may["/vms"]["VM.Audit"]))
	task, err = vm.Hibernate(ctx)
	require.NoError(t, err)
	require.NoError(t, task.Wait(ctx, time.Millisecond, time.Minute))
	require.Equal(t, "suspended", c.cloud.Config(300)["lock"])
	_, err = vm.Delete(ctx)
	require.NoError(t, err)
	require.Empty(t, c.cloud.Machines())
	require.Empty(t, c.cloud.Volumes())
}
