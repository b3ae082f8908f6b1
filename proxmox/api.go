package proxmox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/luthermonson/go-proxmox"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
)

// An api makes the calls. Where go-proxmox has no parameter or field for what is
// needed, or would make more calls than one, its raw methods are used.
type api struct {
	client *proxmox.Client
	http   *http.Client
	base   string
	auth   string
	poll   time.Duration
}

func newAPI(o Options, base http.RoundTripper) (*api, error) {
	token, err := o.token()
	if err != nil {
		return nil, err
	}
	t, err := newTransport(o, base)
	if err != nil {
		return nil, err
	}
	a := &api{
		http: &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		base: strings.TrimRight(o.Endpoint, "/") + "/api2/json", auth: "PVEAPIToken=" + token, poll: time.Duration(o.PollInterval),
	}
	id, secret, _ := strings.Cut(token, "=")
	a.client = proxmox.NewClient(a.base, proxmox.WithHTTPClient(a.http), proxmox.WithAPIToken(id, secret), proxmox.WithUserAgent("nstance"))
	return a, nil
}

func (a *api) close() { a.http.CloseIdleConnections() }

// A resource is a line of /cluster/resources.
type resource struct {
	Type     string  `json:"type"`
	VMID     int     `json:"vmid"`
	Node     string  `json:"node"`
	Name     string  `json:"name"`
	Status   string  `json:"status"`
	Template int     `json:"template"`
	Tags     string  `json:"tags"`
	Lock     string  `json:"lock"`
	HAState  string  `json:"hastate"`
	MaxMem   uint64  `json:"maxmem"`
	CPU      float64 `json:"cpu"`
	MaxCPU   float64 `json:"maxcpu"`
	Storage  string  `json:"storage"`
	Shared   int     `json:"shared"`
	Content  string  `json:"content"` // of storage, with commas between
}

// get reads an answer into out. One without data says nothing: a list that is not there is
// not an empty one.
func (a *api) get(ctx context.Context, path string, out any) error {
	var data json.RawMessage
	if err := a.client.Get(ctx, path, &data); err != nil {
		return classify(err)
	}
	if data == nil {
		return nstance.Errorf(nstance.Unavailable, "the answer to GET %s has no data", path)
	}
	return classify(json.Unmarshal(data, out))
}

// resources lists what the token may see: machines, nodes and storage.
func (a *api) resources(ctx context.Context) ([]resource, error) {
	var out []resource
	err := a.get(ctx, "/cluster/resources", &out)
	return out, err
}

// offline returns the nodes that have left the cluster, as far as a listing says.
func offline(list []resource) map[string]bool {
	out := map[string]bool{}
	for _, r := range list {
		if r.Type == "node" && r.Status == "offline" {
			out[r.Node] = true
		}
	}
	return out
}

// maySee reports whether the token may see all machines.
func (a *api) maySee(ctx context.Context) (bool, error) {
	var out proxmox.Permissions
	err := a.get(ctx, "/access/permissions?path=/vms", &out)
	return bool(out["/vms"]["VM.Audit"]), err
}

// A vmConfig is a machine's configuration.
type vmConfig struct {
	Name        string
	Description string
	Tags        string
	Lock        string
	all         map[string]string // every option; numbers as text
}

// UnmarshalJSON implements [json.Unmarshaler].
func (c *vmConfig) UnmarshalJSON(b []byte) error {
	var options map[string]json.RawMessage
	if err := json.Unmarshal(b, &options); err != nil {
		return err
	}
	all := make(map[string]string, len(options))
	for key, raw := range options {
		var text string
		if json.Unmarshal(raw, &text) != nil {
			text = string(raw)
		}
		all[key] = text
	}
	*c = vmConfig{Name: all["name"], Description: all["description"], Tags: all["tags"], Lock: all["lock"], all: all}
	return nil
}

func vmPath(node string, vmid int) string {
	return "/nodes/" + url.PathEscape(node) + "/qemu/" + itoa(vmid)
}

func (a *api) config(ctx context.Context, node string, vmid int) (vmConfig, error) {
	var out vmConfig
	err := a.get(ctx, vmPath(node, vmid)+"/config", &out)
	if err == nil && out.all["digest"] == "" { // every configuration has one (qemu-server, API2/Qemu.pm vm_config)
		return out, nstance.Errorf(nstance.Unavailable, "the answer is no configuration of VMID %d", vmid)
	}
	return out, err
}

// missing reports whether err says that the node does not have the machine. It
// may be on another one.
func missing(err error) bool {
	e, ok := errors.AsType[*apiError](err)
	return ok && e.status == http.StatusInternalServerError && strings.Contains(e.text, "Configuration file '") && strings.Contains(e.text, "' does not exist")
}

// A current is what a machine does right now.
type current struct {
	Status string `json:"status"`
	Lock   string `json:"lock"`
	HA     struct {
		Managed int `json:"managed"`
	} `json:"ha"`
}

func (a *api) current(ctx context.Context, node string, vmid int) (current, error) {
	var out current
	err := a.get(ctx, vmPath(node, vmid)+"/status/current", &out)
	if err == nil && out.Status == "" { // nor whether high availability manages the machine
		return out, nstance.Errorf(nstance.Unavailable, "the answer does not show what VMID %d does", vmid)
	}
	return out, err
}

// post starts a task and returns its UPID, empty where the cluster names none.
func (a *api) post(ctx context.Context, path string, params map[string]string) (string, error) {
	var upid string
	if params == nil {
		params = map[string]string{}
	}
	if err := sent(a.client.Post(ctx, path, params, &upid)); err != nil {
		return "", err
	}
	return upid, nil
}

// resize enlarges a disk to a size in GiB and waits for the end of that. A disk that has
// the size already is left alone (qemu-server, API2/Qemu.pm resize_vm).
func (a *api) resize(ctx context.Context, path, drive string, size int) error {
	var upid string
	if err := sent(a.client.Put(ctx, path+"/resize", map[string]string{"disk": drive, "size": itoa(size) + "G"}, &upid)); err != nil {
		return err
	}
	return a.wait(ctx, upid)
}

// mappings returns how many devices each mapping of PCI devices has on each node, by the
// mapping's name. Those that the token may not see are left out (pve-manager,
// API2/Cluster/Mapping/PCI.pm).
func (a *api) mappings(ctx context.Context) (map[string]map[string]int, error) {
	var list []struct {
		ID  string   `json:"id"`
		Map []string `json:"map"` // such as node=pve1,path=0000:01:00.0,id=10de:1db6
	}
	if err := a.get(ctx, "/cluster/mapping/pci", &list); err != nil {
		return nil, err
	}
	out := map[string]map[string]int{}
	for _, m := range list {
		out[m.ID] = map[string]int{}
		for _, entry := range m.Map {
			for part := range strings.SplitSeq(entry, ",") {
				if node, ok := strings.CutPrefix(part, "node="); ok {
					out[m.ID][node]++
				}
			}
		}
	}
	return out, nil
}

// remove starts a task that deletes something, and returns its UPID.
func (a *api) remove(ctx context.Context, path string) (string, error) {
	var upid string
	if err := sent(a.client.Delete(ctx, path, &upid)); err != nil {
		return "", err
	}
	return upid, nil
}

// do starts a task and waits for its end.
func (a *api) do(ctx context.Context, path string, params map[string]string) error {
	upid, err := a.post(ctx, path, params)
	if err != nil {
		return err
	}
	return a.wait(ctx, upid)
}

// configure changes a machine's configuration. Without a task that is done already
// (qemu-server, API2/Qemu.pm update_vm_async: the UPID is optional).
func (a *api) configure(ctx context.Context, node string, vmid int, options map[string]string) error {
	upid, err := a.post(ctx, vmPath(node, vmid)+"/config", options)
	if err != nil || upid == "" {
		return err
	}
	return a.wait(ctx, upid)
}

// wait follows a task to its end. Nil means that it succeeded, Ambiguous that
// its end is unknown: look at what it worked on. go-proxmox's own waiter returns
// nil for a task that failed.
func (a *api) wait(ctx context.Context, upid string) error {
	parts := strings.Split(upid, ":")
	if len(parts) < 8 || parts[0] != "UPID" {
		return nstance.Errorf(nstance.Ambiguous, "the cluster named no task: %.64q is no UPID", upid)
	}
	if w, of := ctx.Value(workKey{}).(*work); of && parts[5] != "qmclone" { // a copy may take hours
		w.waitFor(upid)
		defer w.waitFor("")
	}
	for failures := 0; ; {
		t, err := a.task(ctx, parts[1], upid)
		switch {
		case err == nil && t.Status == "stopped":
			return ended(parts[5], t.ExitStatus)
		case err == nil:
			failures = 0
		case classifiedAs(err, nstance.Invalid, nstance.Denied): // such as 400 "no such task": its log was rotated away
			return nstance.Errorf(nstance.Ambiguous, "the end of task %s is unknown: %w", parts[5], err)
		default:
			if failures++; errors.Is(err, context.DeadlineExceeded) && !unsent(err) {
				failures += 2 // this one took as long as many polls
			}
			if failures > 5 {
				return nstance.Errorf(nstance.Ambiguous, "the state of task %s is not known: %w", parts[5], err)
			}
		}
		if !sleep.For(ctx, a.poll) {
			return nstance.Errorf(nstance.Ambiguous, "task %s goes on: %w", parts[5], ctx.Err())
		}
	}
}

// A taskStatus says whether a task runs, and how it ended.
type taskStatus struct {
	Status     string `json:"status"`
	ExitStatus string `json:"exitstatus"`
}

func (a *api) task(ctx context.Context, node, upid string) (taskStatus, error) {
	var out taskStatus
	err := a.get(ctx, "/nodes/"+url.PathEscape(node)+"/tasks/"+url.PathEscape(upid)+"/status", &out)
	if err == nil && out.Status == "" {
		return out, nstance.Errorf(nstance.Unavailable, "the answer does not show whether the task runs")
	}
	return out, err
}

func classifiedAs(err error, codes ...nstance.Code) bool {
	code := nstance.CodeOf(classify(err))
	for _, c := range codes {
		if c == code {
			return true
		}
	}
	return false
}

// ended reads an exit status (pve-common, UPID.pm and Tools.pm).
func ended(kind, exit string) error {
	switch {
	case exit == "OK" || strings.HasPrefix(exit, "WARNINGS: "):
		return nil
	case exit == "" || exit == "unexpected status" || strings.HasPrefix(exit, "unable to get last line") || strings.HasPrefix(exit, "unable to read tail"):
		return nstance.Errorf(nstance.Ambiguous, "the worker of task %s died: %s", kind, exit)
	}
	return taskError(kind, exit)
}

func storagePath(node, storage string) string {
	return "/nodes/" + url.PathEscape(node) + "/storage/" + url.PathEscape(storage)
}

// images lists the volume IDs of the images in a storage.
func (a *api) images(ctx context.Context, node, storage string) ([]string, error) {
	var list []struct {
		VolID string `json:"volid"`
	}
	if err := a.get(ctx, storagePath(node, storage)+"/content?content=iso", &list); err != nil {
		return nil, err
	}
	out := make([]string, 0, len(list))
	for _, v := range list {
		out = append(out, v.VolID)
	}
	return out, nil
}

func (a *api) removeImage(ctx context.Context, node, storage, volume string) error {
	upid, err := a.remove(ctx, storagePath(node, storage)+"/content/"+url.PathEscape(volume))
	if err != nil || upid == "" { // done already (pve-storage, API2/Storage/Content.pm delete: the UPID is optional)
		return err
	}
	return a.wait(ctx, upid)
}

// upload stores an image and waits until it is in its place. The library's own
// takes no context and drops the checksum.
func (a *api) upload(ctx context.Context, node, storage, name string, image []byte) error {
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	sum := sha256.Sum256(image)
	for _, f := range [][2]string{{"content", "iso"}, {"checksum-algorithm", "sha256"}, {"checksum", hex.EncodeToString(sum[:])}} {
		if err := w.WriteField(f[0], f[1]); err != nil {
			return fmt.Errorf("form: %w", err)
		}
	}
	part, err := w.CreateFormFile("filename", name)
	if err == nil {
		_, err = part.Write(image)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("form: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base+storagePath(node, storage)+"/upload", &body)
	if err != nil {
		return classify(err)
	}
	r.Header.Set("Content-Type", w.FormDataContentType())
	r.Header.Set("Authorization", a.auth)
	res, err := a.http.Do(r)
	if err != nil {
		return sent(err)
	}
	defer func() { _ = res.Body.Close() }()
	upid, err := readUPID(res)
	if err != nil {
		return sent(err)
	}
	return a.wait(ctx, upid)
}

func readUPID(res *http.Response) (string, error) {
	var out struct {
		Data string `json:"data"`
	}
	err := json.NewDecoder(res.Body).Decode(&out)
	return out.Data, err
}
