package server_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/layout"
	"github.com/nstance-go/nstance/provider/simcloud"
	"github.com/nstance-go/nstance/server"
	"github.com/nstance-go/nstance/storage"
)

// configWithTemplate is the default configuration with group web only. template is
// added to its template, top beside the templates.
func configWithTemplate(size int, template, top string) string {
	text := fmt.Sprintf(configuration, `"image_refresh": "1m", "userdata_networks": ["127.0.0.0/8"],`, size)
	text = strings.Replace(text, `"userdata": {"content": "{{.Nonce}}"}, `, template, 1)
	text = strings.Replace(text, `"blue": {"db": {"template": "vm", "size": 1, "vars": {"shape": "round"}}}`, "", 1)
	return strings.Replace(text, `"templates": {`, top+`"templates": {`, 1)
}

// webSpecs returns the specs of the machines of group web.
func (w *world) webSpecs() (out []nstance.MachineSpec) {
	for _, m := range w.cloud.Machines() {
		if s, ok := w.cloud.Spec(m.ID); ok && s.Group == "web" {
			out = append(out, s)
		}
	}
	return out
}

// awaitMachinesMatching waits until the specs of n machines pass the check.
func (w *world) awaitMachinesMatching(n int, check func(nstance.MachineSpec) bool) {
	w.Helper()
	require.Eventually(w, func() bool {
		fit := 0
		for _, s := range w.webSpecs() {
			if check(s) {
				fit++
			}
		}
		return fit == n
	}, eventually, 5*time.Millisecond)
}

// applyConfig puts a configuration in force.
func (w *world) applyConfig(text string) {
	w.Helper()
	w.conf.set(text, nil)
	_, err := w.server.Refresh(w.Context())
	require.NoError(w, err)
}

// awaitResolved waits until a look-up's result is durable.
func (w *world) awaitResolved(what string) {
	w.Helper()
	require.Eventually(w, func() bool {
		obj, err := w.store.Get(w.Context(), layout.ResolvedKey(zone))
		return err == nil && strings.Contains(string(obj.Data), what)
	}, eventually, 5*time.Millisecond)
}

// awaitProblem waits for a problem in the shard's status.
func (w *world) awaitProblem(says string) {
	w.Helper()
	require.Eventually(w, func() bool {
		st, err := w.admin().GetShardStatus(w.Context(), &apiv1.GetShardStatusRequest{})
		return err == nil && strings.Contains(strings.Join(st.GetProblems(), "\n"), says)
	}, eventually, 20*time.Millisecond, "no problem says %q", says)
}

// A userDataPage is the content of a URL that may be unavailable.
type userDataPage struct{ text atomic.Pointer[string] }

func newUserDataPage(t *testing.T) (p *userDataPage, url string) {
	p = &userDataPage{}
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

func (p *userDataPage) serve(text string) { p.text.Store(&text) }
func (p *userDataPage) takeDown()         { p.text.Store(nil) }

func TestUserDataFromAURL(t *testing.T) {
	t.Parallel()
	p, url := newUserDataPage(t)
	conf := func(size int, more string) string {
		return configWithTemplate(size, fmt.Sprintf(`"userdata": {"source": "url", "content": %q%s}, `, url, more), "")
	}
	says := func(text string) func(nstance.MachineSpec) bool {
		return func(s nstance.MachineSpec) bool { return strings.HasPrefix(string(s.UserData), text) }
	}
	store := storage.NewMemory()
	w := newWorld(t, setup{store: store, config: conf(2, "")})
	w.awaitProblem("group default/web has a pending definition: userdata.content is not known yet")
	require.Empty(t, w.webSpecs(), "no machine is created from unknown user data")

	p.serve("one {{.Vars.colour}} {{.Nonce}}")
	w.applyConfig(conf(2, ""))
	w.awaitMachinesMatching(2, says("one red "))

	p.serve("two {{.Nonce}}")
	w.applyConfig(conf(2, ""))
	w.awaitResolved(fmt.Sprintf("%x", sha256.Sum256([]byte("two {{.Nonce}}"))))
	w.applyConfig(conf(3, ""))
	w.awaitMachinesMatching(1, says("two "))
	w.awaitMachinesMatching(2, says("one ")) // without tracking no machine is replaced

	p.takeDown()
	w.applyConfig(conf(4, ""))
	w.awaitMachinesMatching(2, says("two ")) // the last known content is used
	require.NoError(t, w.stopServer())

	// The next server also gets no answer from the URL.
	next := newWorld(t, setup{store: store, provider: w.cloud, config: conf(5, "")})
	next.cloud.Close()
	next.cloud = w.cloud
	next.awaitMachinesMatching(3, says("two "))
}

func TestUserDataDigest(t *testing.T) {
	t.Parallel()
	p, url := newUserDataPage(t)
	p.serve("one")
	conf := func(digest string) string {
		return configWithTemplate(1, fmt.Sprintf(`"userdata": {"source": "url", "content": %q, "sha256": %q}, `, url, digest), "")
	}
	w := newWorld(t, setup{config: conf(strings.Repeat("a", 64))})
	w.awaitProblem("another digest")
	require.Empty(t, w.webSpecs())
	w.applyConfig(conf("7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed")) // digest of "one"
	w.awaitMachinesMatching(1, func(s nstance.MachineSpec) bool { return string(s.UserData) == "one" })
}

func TestTrackedUserDataReplacesMachines(t *testing.T) {
	t.Parallel()
	p, url := newUserDataPage(t)
	p.serve("one")
	w := newWorld(t, setup{})
	conf := configWithTemplate(1, fmt.Sprintf(`"track": ["userdata"], "userdata": {"source": "url", "content": %q}, `, url), "")
	w.applyConfig(conf)
	w.awaitMachinesMatching(1, func(s nstance.MachineSpec) bool { return string(s.UserData) == "one" })
	p.serve("two")
	w.applyConfig(conf)
	w.awaitMachinesMatching(1, func(s nstance.MachineSpec) bool { return string(s.UserData) == "two" })
}

func TestUserDataFromTheStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	_, err := w.store.PutIfAbsent(t.Context(), "userdata/base.sh", []byte("stored {{.Nonce}}"))
	require.NoError(t, err)
	w.applyConfig(configWithTemplate(1, `"userdata": {"source": "url", "content": "storage:userdata/base.sh"}, `, ""))
	w.awaitMachinesMatching(1, func(s nstance.MachineSpec) bool { return strings.HasPrefix(string(s.UserData), "stored ey") })
}

func TestImages(t *testing.T) {
	t.Parallel()
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
	w.applyConfig(configWithTemplate(1, `"image": "base", `, top))
	w.awaitProblem("group default/web has a pending definition: image base is not known yet")
	w.cloud.SetImages(first)
	w.applyConfig(configWithTemplate(1, `"image": "base", `, top))
	w.awaitMachinesMatching(1, from("img-1"))

	w.cloud.SetImages(first, second)
	w.applyConfig(configWithTemplate(1, `"image": "base", `, top))
	w.awaitResolved("img-2")
	w.applyConfig(configWithTemplate(2, `"image": "base", `, top))
	w.awaitMachinesMatching(1, from("img-2"))
	w.awaitMachinesMatching(1, from("img-1")) // without tracking no machine is replaced

	w.cloud.Inject(simcloud.Fault{Op: "resolve_image", Times: -1, Code: nstance.Denied})
	w.applyConfig(configWithTemplate(3, `"image": "base", `, top))
	w.awaitMachinesMatching(2, from("img-2")) // the last known image is used
	w.awaitProblem("image me|base-*|amd64")
	require.NoError(t, w.stopServer())

	next := newWorld(t, setup{store: store, provider: w.cloud, config: configWithTemplate(4, `"image": "base", `, top)})
	next.cloud.Close()
	next.cloud = w.cloud
	next.awaitMachinesMatching(3, from("img-2")) // a new leader knows it too

	next.cloud.ClearFaults()
	next.cloud.SetImages(first, second, third)
	next.applyConfig(configWithTemplate(4, `"image": "base", "track": ["image"], `, top))
	require.Eventually(t, func() bool { // one surge member
		for _, s := range next.webSpecs() {
			if s.Image == "img-3" {
				return true
			}
		}
		return false
	}, eventually, 5*time.Millisecond)
}

// troubledLookUps is a cloud that does not answer look-ups of images whose name begins with
// slow, and does not permit the one of instance types.
type troubledLookUps struct{ *simcloud.Cloud }

func (c troubledLookUps) ResolveImage(ctx context.Context, q nstance.ImageQuery) (string, error) {
	if strings.HasPrefix(q.Name, "slow") {
		<-ctx.Done()
		return "", nstance.Errorf(nstance.Unavailable, "no answer: %w", ctx.Err())
	}
	return c.Cloud.ResolveImage(ctx, q)
}

func (troubledLookUps) TypeArchs(context.Context, []string) (map[string][]nstance.Arch, error) {
	return nil, nstance.Errorf(nstance.Denied, "you may not list instance types")
}

// TestLookUpsWaitForNoOther: what one look-up is not told, another one finds.
func TestLookUpsWaitForNoOther(t *testing.T) {
	t.Parallel()
	images, templates := `"base": {"owner": "me", "name": "base-*"}`, ""
	for i := range 8 {
		images += fmt.Sprintf(`, "slow%d": {"name": "slow-%d-*"}`, i, i)
		templates += fmt.Sprintf(`"slow%d": {"image": "slow%d", "kind": "web", "arch": "amd64", "instance_type": "small", "userdata": {"content": "x"}}, `, i, i)
	}
	cloud := simcloud.New(nil)
	defer cloud.Close()
	cloud.SetImages(simcloud.Image{ID: "img-1", Owner: "me", Name: "base-1", Created: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)})
	conf := strings.Replace(configWithTemplate(1, `"image": "base", `, `"images": {`+images+`}, `), `"templates": {`, `"templates": {`+templates, 1)
	w := newWorld(t, setup{provider: troubledLookUps{cloud}, config: conf})
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(cloud.Machines(), func(m nstance.Machine) bool {
			s, _ := cloud.Spec(m.ID)
			return s.Image == "img-1"
		})
	}, 20*time.Second, 5*time.Millisecond)
	w.awaitProblem("you may not list instance types")
}

// TestTrackedImageReplacesMachines: a new image under a tracked name replaces
// machines, although the configuration is the same. The same image does not.
func TestTrackedImageReplacesMachines(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	first, second := simcloud.Image{ID: "img-1", Owner: "me", Name: "base-1", Created: day}, simcloud.Image{ID: "img-2", Owner: "me", Name: "base-2", Created: day.Add(time.Hour)}
	for track, replaced := range map[string]bool{`"track": ["image"], `: true, ``: false} {
		t.Run(fmt.Sprint("replaced: ", replaced), func(t *testing.T) {
			text := configWithTemplate(1, `"userdata": {"content": "{{.Nonce}}"}, "image": "base", `+track, `"images": {"base": {"owner": "me", "name": "base-*"}}, `)
			w := newWorld(t, setup{config: text, cloud: simcloud.Options{Images: []simcloud.Image{first}}})
			w.connectReady(w.awaitMachineOf("web"))
			api := w.admin()
			before := w.getGroup(api, "web")
			looked := w.cloud.Count("resolve_image")
			w.applyConfig(text) // repeats all look-ups
			require.Eventually(t, func() bool { return w.cloud.Count("resolve_image") > looked }, eventually, 5*time.Millisecond)
			require.Equal(t, before.GetInfraHash(), w.getGroup(api, "web").GetInfraHash(), "nothing is new")
			w.cloud.SetImages(first, second)
			w.applyConfig(text)
			w.awaitResolved("img-2")
			if !replaced {
				require.Equal(t, before.GetInfraHash(), w.getGroup(api, "web").GetInfraHash())
				require.Zero(t, w.getGroup(api, "web").GetStale())
				return
			}
			require.Eventually(t, func() bool { return w.getGroup(api, "web").GetStale() == 1 }, eventually, 5*time.Millisecond)
			w.awaitMachinesMatching(1, func(s nstance.MachineSpec) bool { return s.Image == "img-2" })
			w.awaitMachinesMatching(1, func(s nstance.MachineSpec) bool { return s.Image == "img-1" }) // the other machines wait until it is ready
		})
	}
}

func TestImageByID(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{config: configWithTemplate(2, `"image": "fixed", `, `"images": {"fixed": {"id": "img-1"}}, `)})
	w.awaitMachinesMatching(2, func(s nstance.MachineSpec) bool { return s.Image == "img-1" })
}

func TestInstanceTypesMatchArchitecture(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{cloud: simcloud.Options{Types: map[string][]nstance.Arch{"small": {nstance.AMD64}, "arm": {nstance.ARM64}}}, webSize: 1})
	w.awaitMachinesMatching(1, func(s nstance.MachineSpec) bool { return s.InstanceType == "small" })
	text := strings.Replace(fmt.Sprintf(configuration, "", 2), `"instance_type": "small"`, `"instance_types": ["small", "arm"]`, 1)
	w.applyConfig(text)
	w.awaitProblem(`group default/web has a pending definition: instance_type: "arm" does not run amd64`)
	w.applyConfig(strings.Replace(text, `"arm"]`, `"huge"]`, 1))
	w.awaitProblem(`instance type "huge" is none that the provider knows`)
}

func TestLoadBalancersThroughTheServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{cloud: simcloud.Options{Balancers: []string{"lb-1"}}})
	w.applyConfig(configWithTemplate(1, `"userdata": {"content": "{{.Nonce}}"}, "load_balancers": ["front"], `, `"load_balancers": {"front": {"id": "lb-1"}}, `))
	id := w.awaitMachine(nstance.DefaultTenant)
	require.Empty(t, w.cloud.AttachedTo("lb-1"))
	w.connectReady(id)
	require.Eventually(t, func() bool { return len(w.cloud.AttachedTo("lb-1")) == 1 }, eventually, 5*time.Millisecond)
	w.applyConfig(configWithTemplate(1, `"userdata": {"content": "{{.Nonce}}"}, `, ""))
	require.Eventually(t, func() bool { return len(w.cloud.AttachedTo("lb-1")) == 0 }, eventually, 5*time.Millisecond)
}

func TestProviderWithoutAbility(t *testing.T) {
	t.Parallel()
	cloud := simcloud.New(nil)
	defer cloud.Close()
	bare := struct{ nstance.Provider }{cloud}
	for top, field := range map[string]string{
		`"images": {"base": {"name": "x"}}, `:         "images.base.name",
		`"load_balancers": {"front": {"id": "lb"}}, `: "load_balancers.front",
	} {
		read := func(context.Context) (string, []byte, error) { return "c", []byte(configWithTemplate(1, "", top)), nil }
		_, err := server.New(t.Context(), storage.NewMemory(), bare, read, nil)
		require.ErrorIs(t, err, nstance.Invalid)
		require.ErrorContains(t, err, field)
	}
	w := newWorld(t, setup{provider: bare})
	w.conf.set(configWithTemplate(0, "", `"load_balancers": {"front": {"id": "lb"}}, `), nil)
	_, err := w.server.Refresh(t.Context())
	require.ErrorContains(t, err, "load_balancers.front")
}

func TestUserDataMachineVariables(t *testing.T) {
	t.Parallel()
	const says = `{{.Instance.Hostname}} <{{.Instance.FQDN}}{{.Instance.IP4}}{{.Instance.IP6}}>`
	w := newWorld(t, setup{config: configWithTemplate(1, fmt.Sprintf(`"userdata": {"content": %q}, `, says), "")})
	w.awaitMachinesMatching(1, func(s nstance.MachineSpec) bool { return string(s.UserData) == string(s.ID)+" <>" })
}

// TestInvalidUserDataTemplates: they are refused before a machine is created.
func TestInvalidUserDataTemplates(t *testing.T) {
	t.Parallel()
	p, url := newUserDataPage(t)
	p.serve("{{.Clutser.ID}}")
	w := newWorld(t, setup{config: configWithTemplate(1, fmt.Sprintf(`"userdata": {"source": "url", "content": %q}, `, url), "")})
	w.awaitProblem(`there is no .Clutser`)
	require.Empty(t, w.webSpecs())
	api := w.admin()
	text := configWithTemplate(1, `"userdata": {"content": "{{.Vars.color}}"}, `, "")
	w.conf.set(text, nil)
	_, err := w.server.Refresh(t.Context())
	require.ErrorContains(t, err, `there is no variable "color"`)
	_, err = api.Plan(t.Context(), &apiv1.PlanRequest{Config: []byte(text)})
	requireFieldError(t, err, nstance.Invalid, "groups.default.web.vars")
}

// A logBuffer collects log output.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (n *logBuffer) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(p)
}

func (n *logBuffer) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.String()
}

// A signed URL grants access to its content, so it is not shown.
func TestSignedURLsAreRedacted(t *testing.T) {
	t.Parallel()
	_, url := newUserDataPage(t)
	signed := func(url, signature string) string {
		return configWithTemplate(1, fmt.Sprintf(`"userdata": {"source": "url", "content": "%s?X-Signature=%s"}, `, url, signature), "")
	}
	log := &logBuffer{}
	w := newWorld(t, setup{opts: server.Options{Log: slog.New(slog.NewJSONHandler(log, nil))}})
	api := w.admin()
	look := func() (out []string) {
		st, err := api.GetShardStatus(t.Context(), &apiv1.GetShardStatusRequest{})
		require.NoError(t, err)
		out = append(st.GetProblems(), log.String(), w.configStatus(api).String())
		for _, page := range []string{"/", "/status.json", "/metrics"} {
			body, err := io.ReadAll(w.getPage(page).Body)
			require.NoError(t, err)
			out = append(out, string(body))
		}
		return out
	}
	w.applyConfig(signed(url, "geheim"))
	w.awaitProblem("user data " + url + ": ")
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

// A changed file is reloaded with look-ups of new names only. A requested refresh
// repeats all look-ups.
func TestReloadLooksUpNewNames(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte("hello {{.Nonce}}"))
	}))
	t.Cleanup(page.Close)
	conf := func(size int) string {
		return configWithTemplate(size, fmt.Sprintf(`"userdata": {"source": "url", "content": "%s/userdata"}, `, page.URL), "")
	}
	all := func(nstance.MachineSpec) bool { return true }
	w := newWorld(t, setup{config: conf(1), opts: server.Options{Reread: 50 * time.Millisecond}})
	w.awaitMachinesMatching(1, all)
	require.EqualValues(t, 1, asked.Load())
	w.conf.set(conf(3), nil)
	w.awaitMachinesMatching(3, all)
	require.EqualValues(t, 1, asked.Load())
	_, err := w.server.Refresh(t.Context())
	require.NoError(t, err)
	require.Eventually(t, func() bool { return asked.Load() == 2 }, eventually, time.Millisecond)
}
