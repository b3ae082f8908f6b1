package server_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
)

// provisioned is the ordinary configuration with one group, of which template
// says more, and top what stands beside templates.
func provisioned(size int, template, top string) string {
	text := fmt.Sprintf(configuration, `"image_refresh": "1m", "userdata_networks": ["127.0.0.0/8"],`, size)
	text = strings.Replace(text, `"userdata": {"content": "{{.Nonce}}"}, `, template, 1)
	text = strings.Replace(text, `"blue": {"db": {"template": "vm", "size": 1, "vars": {"shape": "round"}}}`, "", 1)
	return strings.Replace(text, `"templates": {`, top+`"templates": {`, 1)
}

// specs returns what the machines of group web were made from.
func (w *world) specs() (out []nstance.MachineSpec) {
	for _, m := range w.cloud.Machines() {
		if s, ok := w.cloud.Spec(m.ID); ok && s.Group == "web" {
			out = append(out, s)
		}
	}
	return out
}

// made waits until so many machines were made as the check says.
func (w *world) made(n int, check func(nstance.MachineSpec) bool) {
	w.Helper()
	require.Eventually(w, func() bool {
		fit := 0
		for _, s := range w.specs() {
			if check(s) {
				fit++
			}
		}
		return fit == n
	}, eventually, 5*time.Millisecond)
}

// adopt puts a configuration in force.
func (w *world) adopt(text string) {
	w.Helper()
	w.conf.set(text, nil)
	_, err := w.server.Refresh(w.Context())
	require.NoError(w, err)
}

// resolved waits until something has been found and is durable.
func (w *world) resolved(what string) {
	w.Helper()
	require.Eventually(w, func() bool {
		obj, err := w.store.Get(w.Context(), storage.ResolvedKey(zone))
		return err == nil && strings.Contains(string(obj.Data), what)
	}, eventually, 5*time.Millisecond)
}

// problem waits until the status says something.
func (w *world) problem(says string) {
	w.Helper()
	require.Eventually(w, func() bool {
		st, err := w.admin().GetShardStatus(w.Context(), &apiv1.GetShardStatusRequest{})
		return err == nil && strings.Contains(strings.Join(st.GetProblems(), "\n"), says)
	}, eventually, 20*time.Millisecond, "no problem says %q", says)
}

// A page is what a URL has to say, and may not answer.
type page struct{ text atomic.Pointer[string] }

func newPage(t *testing.T) (p *page, url string) {
	p = &page{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if text := p.text.Load(); text != nil {
			_, _ = w.Write([]byte(*text))
			return
		}
		http.Error(w, "down", http.StatusServiceUnavailable)
	}))
	t.Cleanup(srv.Close)
	return p, srv.URL + "/userdata"
}

func (p *page) says(text string) { p.text.Store(&text) }
func (p *page) down()            { p.text.Store(nil) }

func TestUserDataFromAURL(t *testing.T) {
	p, url := newPage(t)
	conf := func(size int, more string) string {
		return provisioned(size, fmt.Sprintf(`"userdata": {"source": "url", "content": %q%s}, `, url, more), "")
	}
	says := func(text string) func(nstance.MachineSpec) bool {
		return func(s nstance.MachineSpec) bool { return strings.HasPrefix(string(s.UserData), text) }
	}
	store := storage.NewMemory()
	w := newWorld(t, setup{store: store, text: conf(2, "")})
	w.problem("group default/web has a pending definition: userdata.content is not known yet")
	require.Empty(t, w.specs(), "nothing is made of what nobody has seen")

	p.says("one {{.Vars.colour}} {{.Nonce}}")
	w.adopt(conf(2, ""))
	w.made(2, says("one red "))

	p.says("two {{.Nonce}}")
	w.adopt(conf(2, ""))
	w.resolved(fmt.Sprintf("%x", sha256.Sum256([]byte("two {{.Nonce}}"))))
	w.adopt(conf(3, ""))
	w.made(1, says("two "))
	w.made(2, says("one ")) // without tracking nobody is replaced

	p.down()
	w.adopt(conf(4, ""))
	w.made(2, says("two ")) // what was there is good enough
	require.NoError(t, w.stop())

	// Another server, and still nobody answers.
	next := newWorld(t, setup{store: store, over: w.cloud, text: conf(5, "")})
	next.cloud.Close()
	next.cloud = w.cloud
	next.made(3, says("two "))
}

func TestUserDataDigest(t *testing.T) {
	p, url := newPage(t)
	p.says("one")
	conf := func(digest string) string {
		return provisioned(1, fmt.Sprintf(`"userdata": {"source": "url", "content": %q, "sha256": %q}, `, url, digest), "")
	}
	w := newWorld(t, setup{text: conf(strings.Repeat("a", 64))})
	w.problem("another digest")
	require.Empty(t, w.specs())
	w.adopt(conf("7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed")) // of "one"
	w.made(1, func(s nstance.MachineSpec) bool { return string(s.UserData) == "one" })
}

func TestTrackedUserDataReplaces(t *testing.T) {
	p, url := newPage(t)
	p.says("one")
	w := newWorld(t, setup{})
	conf := provisioned(1, fmt.Sprintf(`"track": ["userdata"], "userdata": {"source": "url", "content": %q}, `, url), "")
	w.adopt(conf)
	w.made(1, func(s nstance.MachineSpec) bool { return string(s.UserData) == "one" })
	p.says("two")
	w.adopt(conf)
	w.made(1, func(s nstance.MachineSpec) bool { return string(s.UserData) == "two" })
}

func TestUserDataFromTheStore(t *testing.T) {
	w := newWorld(t, setup{})
	_, err := w.store.PutIfAbsent(t.Context(), "userdata/base.sh", []byte("stored {{.Nonce}}"))
	require.NoError(t, err)
	w.adopt(provisioned(1, `"userdata": {"source": "url", "content": "storage:userdata/base.sh"}, `, ""))
	w.made(1, func(s nstance.MachineSpec) bool { return strings.HasPrefix(string(s.UserData), "stored ey") })
}

func TestImages(t *testing.T) {
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	first := simcloud.Image{ID: "img-1", Owner: "me", Name: "base-1", Created: day}
	second := simcloud.Image{ID: "img-2", Owner: "me", Name: "base-2", Created: day.Add(time.Hour)}
	third := simcloud.Image{ID: "img-3", Owner: "me", Name: "base-3", Created: day.Add(2 * time.Hour)}
	const top = `"images": {"base": {"owner": "me", "name": "base-*"}}, `
	from := func(id string) func(nstance.MachineSpec) bool {
		return func(s nstance.MachineSpec) bool { return s.Image == id }
	}
	store := storage.NewMemory()
	w := newWorld(t, setup{store: store})
	w.adopt(provisioned(1, `"image": "base", `, top))
	w.problem("group default/web has a pending definition: image base is not known yet")
	w.cloud.SetImages(first)
	w.adopt(provisioned(1, `"image": "base", `, top))
	w.made(1, from("img-1"))

	w.cloud.SetImages(first, second)
	w.adopt(provisioned(1, `"image": "base", `, top))
	w.resolved("img-2")
	w.adopt(provisioned(2, `"image": "base", `, top))
	w.made(1, from("img-2"))
	w.made(1, from("img-1")) // without tracking nobody is replaced

	w.cloud.Inject(simcloud.Fault{Op: simcloud.OpResolveImage, Times: -1, Code: nstance.Denied})
	w.adopt(provisioned(3, `"image": "base", `, top))
	w.made(2, from("img-2")) // what it was is good enough
	w.problem("image me|base-*|amd64")
	require.NoError(t, w.stop())

	next := newWorld(t, setup{store: store, over: w.cloud, text: provisioned(4, `"image": "base", `, top)})
	next.cloud.Close()
	next.cloud = w.cloud
	next.made(3, from("img-2")) // a new leader knows it too

	next.cloud.ClearFaults()
	next.cloud.SetImages(first, second, third)
	next.adopt(provisioned(4, `"image": "base", "track": ["image"], `, top))
	require.Eventually(t, func() bool { // a spare one, as it is a change now
		for _, s := range next.specs() {
			if s.Image == "img-3" {
				return true
			}
		}
		return false
	}, eventually, 5*time.Millisecond)
}

// TestTrackedImageReplaces: an image that appears under a tracked name replaces
// machines, though the configuration is the same; the old one found again does not.
func TestTrackedImageReplaces(t *testing.T) {
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	first, second := simcloud.Image{ID: "img-1", Owner: "me", Name: "base-1", Created: day}, simcloud.Image{ID: "img-2", Owner: "me", Name: "base-2", Created: day.Add(time.Hour)}
	for track, replaced := range map[string]bool{`"track": ["image"], `: true, ``: false} {
		t.Run(fmt.Sprint("replaced: ", replaced), func(t *testing.T) {
			text := provisioned(1, `"userdata": {"content": "{{.Nonce}}"}, "image": "base", `+track, `"images": {"base": {"owner": "me", "name": "base-*"}}, `)
			w := newWorld(t, setup{text: text, cloud: simcloud.Options{Images: []simcloud.Image{first}}})
			w.ready(w.machineOf("web"))
			api := w.admin()
			before := w.group(api, "web")
			looked := w.cloud.Count(simcloud.OpResolveImage)
			w.adopt(text) // has everything looked up again
			require.Eventually(t, func() bool { return w.cloud.Count(simcloud.OpResolveImage) > looked }, eventually, 5*time.Millisecond)
			require.Equal(t, before.GetInfraHash(), w.group(api, "web").GetInfraHash(), "nothing is new")
			w.cloud.SetImages(first, second)
			w.adopt(text)
			w.resolved("img-2")
			if !replaced {
				require.Equal(t, before.GetInfraHash(), w.group(api, "web").GetInfraHash())
				require.Zero(t, w.group(api, "web").GetStale())
				return
			}
			require.Eventually(t, func() bool { return w.group(api, "web").GetStale() == 1 }, eventually, 5*time.Millisecond)
			w.made(1, func(s nstance.MachineSpec) bool { return s.Image == "img-2" })
			w.made(1, func(s nstance.MachineSpec) bool { return s.Image == "img-1" }) // until that one is ready
		})
	}
}

func TestImageWithAnID(t *testing.T) {
	w := newWorld(t, setup{text: provisioned(2, `"image": "fixed", `, `"images": {"fixed": {"id": "img-1"}}, `)})
	w.made(2, func(s nstance.MachineSpec) bool { return s.Image == "img-1" })
}

func TestInstanceTypesSuitTheArchitecture(t *testing.T) {
	w := newWorld(t, setup{cloud: simcloud.Options{Types: map[string][]nstance.Arch{"small": {nstance.AMD64}, "arm": {nstance.ARM64}}}, size: 1})
	w.made(1, func(s nstance.MachineSpec) bool { return s.InstanceType == "small" })
	text := strings.Replace(fmt.Sprintf(configuration, "", 2), `"instance_type": "small"`, `"instance_types": ["small", "arm"]`, 1)
	w.adopt(text)
	w.problem(`group default/web has a pending definition: instance_type: "arm" does not run amd64`)
	w.adopt(strings.Replace(text, `"arm"]`, `"huge"]`, 1))
	w.problem(`instance type "huge" is none that the provider knows`)
}

func TestLoadBalancersThroughTheServer(t *testing.T) {
	w := newWorld(t, setup{cloud: simcloud.Options{Balancers: []string{"lb-1"}}})
	w.adopt(provisioned(1, `"userdata": {"content": "{{.Nonce}}"}, "load_balancers": ["front"], `, `"load_balancers": {"front": {"id": "lb-1"}}, `))
	id := w.machine(nstance.DefaultTenant)
	require.Empty(t, w.cloud.AttachedTo("lb-1"))
	w.ready(id)
	require.Eventually(t, func() bool { return len(w.cloud.AttachedTo("lb-1")) == 1 }, eventually, 5*time.Millisecond)
	w.adopt(provisioned(1, `"userdata": {"content": "{{.Nonce}}"}, `, ""))
	require.Eventually(t, func() bool { return len(w.cloud.AttachedTo("lb-1")) == 0 }, eventually, 5*time.Millisecond)
}

func TestProviderThatIsNotAble(t *testing.T) {
	cloud := simcloud.New(nil)
	defer cloud.Close()
	bare := struct{ nstance.Provider }{cloud}
	for top, field := range map[string]string{
		`"images": {"base": {"name": "x"}}, `:         "images.base.name",
		`"load_balancers": {"front": {"id": "lb"}}, `: "load_balancers.front",
	} {
		read := func(context.Context) (string, []byte, error) { return "c", []byte(provisioned(1, "", top)), nil }
		_, err := server.New(t.Context(), storage.NewMemory(), bare, read, nil)
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, field)
	}
	w := newWorld(t, setup{over: bare})
	w.conf.set(provisioned(0, "", `"load_balancers": {"front": {"id": "lb"}}, `), nil)
	_, err := w.server.Refresh(t.Context())
	require.ErrorContains(t, err, "load_balancers.front")
}

func TestUserDataKnowsTheMachine(t *testing.T) {
	const says = `{{.Instance.Hostname}} <{{.Instance.FQDN}}{{.Instance.IP4}}{{.Instance.IP6}}>`
	w := newWorld(t, setup{text: provisioned(1, fmt.Sprintf(`"userdata": {"content": %q}, `, says), "")})
	w.made(1, func(s nstance.MachineSpec) bool { return string(s.UserData) == string(s.ID)+" <>" })
}

// TestTemplatesThatMakeNoMachine are refused before one is made.
func TestTemplatesThatMakeNoMachine(t *testing.T) {
	p, url := newPage(t)
	p.says("{{.Clutser.ID}}")
	w := newWorld(t, setup{text: provisioned(1, fmt.Sprintf(`"userdata": {"source": "url", "content": %q}, `, url), "")})
	w.problem(`there is no .Clutser`)
	require.Empty(t, w.specs())
	api := w.admin()
	text := provisioned(1, `"userdata": {"content": "{{.Vars.color}}"}, `, "")
	w.conf.set(text, nil)
	_, err := w.server.Refresh(t.Context())
	require.ErrorContains(t, err, `there is no variable "color"`)
	_, err = api.Plan(t.Context(), &apiv1.PlanRequest{Config: []byte(text)})
	refuses(t, err, nstance.Invalid, "groups.default.web.vars")
}

// A noted log is what was logged.
type noted struct {
	mu   sync.Mutex
	text strings.Builder
}

func (n *noted) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(p)
}

func (n *noted) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.String()
}

// An address may hold a signature, which opens what is there to whoever has it.
func TestSignaturesOfAddressesAreShownToNobody(t *testing.T) {
	_, url := newPage(t)
	signed := func(url, signature string) string {
		return provisioned(1, fmt.Sprintf(`"userdata": {"source": "url", "content": "%s?X-Signature=%s"}, `, url, signature), "")
	}
	log := &noted{}
	w := newWorld(t, setup{opts: server.Options{Log: slog.New(slog.NewJSONHandler(log, nil))}})
	api := w.admin()
	look := func() (out []string) {
		st, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
		require.NoError(t, err)
		out = append(st.GetProblems(), log.String(), w.configStatus(api).String())
		for _, page := range []string{"/", "/status.json", "/metrics"} {
			body, err := io.ReadAll(w.get(page).Body)
			require.NoError(t, err)
			out = append(out, string(body))
		}
		return out
	}
	w.adopt(signed(url, "geheim"))
	w.problem("user data " + url + ": ")
	require.Contains(t, log.String(), url)
	for _, text := range look() {
		require.NotContains(t, text, "geheim")
		require.NotContains(t, text, "X-Signature")
	}

	w.conf.set(signed("ftp://name:heimlich@example.org/userdata", "geheim"), nil)
	_, err := w.server.Refresh(t.Context())
	require.ErrorContains(t, err, `"ftp://example.org/userdata" is no address`)
	for _, text := range append(look(), err.Error()) {
		require.NotContains(t, text, "geheim")
		require.NotContains(t, text, "heimlich")
	}
}

// A file that changes has looked up what is new in it; who asks for a refresh
// has everything looked up.
func TestReloadLooksUpWhatIsNew(t *testing.T) {
	var asked atomic.Int64
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte("hello {{.Nonce}}"))
	}))
	t.Cleanup(page.Close)
	conf := func(size int) string {
		return provisioned(size, fmt.Sprintf(`"userdata": {"source": "url", "content": "%s/userdata"}, `, page.URL), "")
	}
	all := func(nstance.MachineSpec) bool { return true }
	w := newWorld(t, setup{text: conf(1), opts: server.Options{Reread: 50 * time.Millisecond}})
	w.made(1, all)
	require.EqualValues(t, 1, asked.Load())
	w.conf.set(conf(3), nil)
	w.made(3, all)
	require.EqualValues(t, 1, asked.Load())
	_, err := w.server.Refresh(t.Context())
	require.NoError(t, err)
	require.Eventually(t, func() bool { return asked.Load() == 2 }, eventually, time.Millisecond)
}
