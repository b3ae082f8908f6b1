//go:build browser

package browser_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/wave"
	"github.com/nstance-go/nstance/internal/web"
)

const eventually = time.Minute

// A tab is a page in a browser of its own.
type tab struct {
	*testing.T
	ctx context.Context

	mu    sync.Mutex
	asked []string // URLs
	wrong []string // errors that the browser has logged
}

func newTab(t *testing.T, url string) *tab {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.WindowSize(1280, 900))
	if path, err := exec.LookPath("chromium"); err == nil {
		options = append(options, chromedp.ExecPath(path))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &tab{T: t, ctx: ctx}
	chromedp.ListenTarget(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			b.asked = append(b.asked, e.Request.URL)
		case *log.EventEntryAdded:
			b.wrong = append(b.wrong, e.Entry.Text)
		case *cdpruntime.EventExceptionThrown:
			b.wrong = append(b.wrong, e.ExceptionDetails.Error())
		}
	})
	b.run(network.Enable(), log.Enable(), chromedp.Navigate(url))
	return b
}

func (b *tab) run(actions ...chromedp.Action) {
	b.Helper()
	require.NoError(b, chromedp.Run(b.ctx, actions...))
}

// eval returns the value of an expression.
func eval[T any](b *tab, expression string) (value T) {
	b.Helper()
	b.run(chromedp.Evaluate(expression, &value))
	return value
}

// await waits until an expression is true.
func (b *tab) await(expression string) {
	b.Helper()
	err := chromedp.Run(b.ctx, chromedp.Poll(expression, nil, chromedp.WithPollingTimeout(eventually)))
	if err != nil {
		var page string
		_ = chromedp.Run(b.ctx, chromedp.Evaluate(`document.body.innerText.slice(0, 2000)`, &page))
		require.NoError(b, err, "%s\n%s", expression, page)
	}
}

func (b *tab) requireNothingWrong() {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b, b.wrong)
}

// shoot writes a picture of the page, if pictures are wanted.
func (b *tab) shoot(name string) {
	b.Helper()
	dir := os.Getenv("NSTANCE_SCREENSHOTS")
	if dir == "" {
		return
	}
	var png []byte
	b.run(chromedp.CaptureScreenshot(&png))
	require.NoError(b, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}

// A shard is a server whose status a test makes up.
type shard struct {
	mu     sync.Mutex
	status web.Status
}

func (s *shard) now(context.Context) web.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	status.Time = time.Now()
	status.Instances = append([]web.Instance(nil), s.status.Instances...)
	return status
}

func (s *shard) change(how func(*web.Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	how(&s.status)
}

func (s *shard) handler() http.Handler {
	return web.Handler(&web.Options{Status: s.now, Leading: func() bool { return true }, Ending: make(chan struct{})})
}

// fleet is a status with members in groups of 100, without sums.
func fleet(members int) web.Status {
	s := web.Status{Version: "0.3.0", Cluster: "prod", Shard: "eu1a", Leader: true, Epoch: 7, LeaderAddress: "10.0.0.1:8993", InstancesTotal: members}
	for n := range members {
		group := fmt.Sprintf("group-%02d", n/100)
		if n%100 == 0 {
			s.Groups = append(s.Groups, web.Group{Tenant: "default", Group: group, Size: 100, Ready: 100, States: map[string]int{"ready": min(100, members-n)}})
		}
		s.Instances = append(s.Instances, web.Instance{
			ID: fmt.Sprintf("i%04d", n), Tenant: "default", Group: group, State: "ready", Market: "spot", InstanceType: "m7g.large", Zone: "eu-1a",
			ProviderID: fmt.Sprintf("i-%08x", n), CreatedAt: time.Now().Add(-time.Duration(n) * time.Minute), ReportedAt: time.Now(), Connected: true,
		})
	}
	return s
}

func TestPage(t *testing.T) {
	s := &shard{status: fleet(1000)}
	srv := httptest.NewServer(s.handler())
	t.Cleanup(srv.Close)
	b := newTab(t, srv.URL)
	b.await(`document.querySelectorAll(".member").length === 1000`)

	t.Run("a change of one member touches its elements alone", func(t *testing.T) {
		eval[bool](b, `(() => {
			window.touched = 0;
			new MutationObserver(all => { for (const m of all) if (!m.target.closest?.("#servers")) window.touched++ }).observe(document.body, {subtree: true, childList: true, attributes: true, attributeFilter: ["class"]});
			return true })()`)
		s.change(func(st *web.Status) {
			st.Instances[500].State = "draining"
			st.Instances[500].Deadline = time.Now().Add(90 * time.Second)
		})
		b.await(`document.querySelector("#member-i0500").classList.contains("draining")`)
		b.await(`/drain is cut in \d:\d\d/.test(document.querySelector("#instance-i0500").innerText)`)
		require.Less(t, eval[int](b, `window.touched`), 300, "ages change, a thousand rows do not")
	})
	t.Run("what is gone goes, what is new comes", func(t *testing.T) {
		s.change(func(st *web.Status) {
			st.Instances = append(st.Instances[:999:999], web.Instance{ID: "inew", Tenant: "default", Group: "group-09", State: "booting", CreatedAt: time.Now()})
		})
		b.await(`!document.querySelector("#member-i0999") && document.querySelector("#member-inew.booting") && document.querySelectorAll(".member").length === 1000`)
	})
	t.Run("filter by keyboard, and undo it", func(t *testing.T) {
		b.run(input.DispatchKeyEvent(input.KeyDown).WithKey("/").WithText("/"), input.DispatchKeyEvent(input.KeyUp).WithKey("/")) // one event, as from a keyboard
		b.run(chromedp.KeyEvent("group-03 ready"))
		b.await(`document.querySelectorAll(".member").length === 100 && document.querySelectorAll(".group").length === 1`)
		require.Equal(t, "#q=group-03%20ready", eval[string](b, `location.hash`))
		b.run(chromedp.KeyEvent(kb.Escape))
		b.await(`document.querySelectorAll(".member").length === 1000 && document.activeElement === document.body`)
	})
	t.Run("from member to member, and to its row", func(t *testing.T) {
		eval[bool](b, `(document.querySelector("#member-i0000").focus(), true)`)
		b.run(chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent(kb.ArrowRight))
		b.await(`document.activeElement.id === "member-i0002"`)
		b.run(chromedp.KeyEvent(kb.Enter))
		b.await(`document.querySelector("tr.target")?.id === "instance-i0002" && document.querySelector("tr.target").getBoundingClientRect().top < innerHeight`)
		b.run(chromedp.KeyEvent("1"))
		b.await(`document.activeElement.id === "h-running"`)
		b.run(chromedp.KeyEvent("?"))
		b.await(`document.querySelector("#keys").open`)
		b.run(chromedp.KeyEvent(kb.Escape))
		b.await(`!document.querySelector("#keys").open`)
	})
	t.Run("narrow and dark", func(t *testing.T) {
		light := eval[string](b, `getComputedStyle(document.querySelector("#tools")).backgroundColor`)
		b.run(chromedp.EmulateViewport(360, 740), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}))
		b.await(`document.documentElement.scrollWidth <= 360`)
		require.NotEqual(t, light, eval[string](b, `getComputedStyle(document.querySelector("#tools")).backgroundColor`))
	})
	t.Run("nothing from elsewhere, and nothing wrong", func(t *testing.T) {
		b.requireNothingWrong()
		b.mu.Lock()
		defer b.mu.Unlock()
		require.NotEmpty(t, b.asked)
		for _, url := range b.asked {
			require.Regexp(t, "^("+regexp.QuoteMeta(srv.URL)+"/|data:)", url)
		}
	})
}

func TestInterruptionToScale(t *testing.T) {
	noticed := time.Now().Add(-60 * time.Second)
	s := &shard{status: fleet(10)}
	s.status.Waves = []*wave.Wave{{ID: "w1", Began: noticed, Groups: []string{"default/group-00"}, Count: wave.Count{Machines: 1, Running: 1}, Deadline: noticed.Add(120 * time.Second)}}
	s.status.Interruptions = []web.Interruption{
		{
			Wave: "w1", Result: "drained", DrainDeadline: noticed.Add(108 * time.Second), Event: "e1", Tenant: "default", Group: "group-00", Instance: "i0000", Kind: "reclaim", Source: "aws", NoticedAt: noticed, Deadline: noticed.Add(120 * time.Second),
			Replacement: "i0009", ReplacementRequestedAt: noticed, ReplacementReadyAt: noticed.Add(30 * time.Second),
			DrainStartedAt: noticed.Add(12 * time.Second), DrainedAt: noticed.Add(48 * time.Second), DrainOutcome: "drained",
		},
		{Result: "cut short", Event: "e0", Tenant: "default", Group: "group-00", Instance: "i0xxx", Kind: "reclaim", NoticedAt: noticed.Add(-time.Hour), Deadline: noticed.Add(-58 * time.Minute), DrainedAt: noticed.Add(-57 * time.Minute), DrainOutcome: "cut short", DeletedAt: noticed.Add(-57 * time.Minute)},
		{Result: "drained", Event: "e-", Tenant: "default", Group: "group-00", Instance: "i0yyy", Kind: "reclaim", NoticedAt: noticed.Add(-time.Hour), Deadline: noticed.Add(-58 * time.Minute), DrainedAt: noticed.Add(-59 * time.Minute), DrainOutcome: "drained", DeletedAt: noticed.Add(-59 * time.Minute)},
	}
	srv := httptest.NewServer(s.handler())
	t.Cleanup(srv.Close)
	b := newTab(t, srv.URL)
	b.await(`document.querySelectorAll(".run").length === 1 && document.querySelectorAll("#recent tr").length === 2`)
	share := func(selector, edge string) float64 {
		return eval[float64](b, fmt.Sprintf(`(() => { const t = document.querySelector(".track").getBoundingClientRect(), e = document.querySelector(%q).getBoundingClientRect();
			return (e.%s - t.left) / t.width })()`, selector, edge))
	}
	for _, want := range []struct {
		selector, edge string
		share          float64
	}{
		{".bar.drain", "left", .1}, {".bar.drain", "right", .4}, {".bar.replacement", "left", 0}, {".bar.replacement", "right", .25}, {".mark.deadline", "left", 1}, {".mark.drain-deadline", "left", .9},
	} {
		require.InDelta(t, want.share, share(want.selector, want.edge), .01, "%s of %s", want.edge, want.selector)
	}
	require.InDelta(t, .52, share(".mark.now", "left"), .08)
	require.Regexp(t, `drained after 48 s, replacement ready after 30 s, \d:\d\d to the cloud’s deadline, drain is cut in \d:\d\d`, eval[string](b, `document.querySelector(".track").getAttribute("aria-label")`))
	rows := eval[[]string](b, `[...document.querySelectorAll("#recent tr")].map(tr => tr.innerText)`)
	require.Regexp(t, `✗ cut short\s+missed by 1:00`, rows[0])
	require.Regexp(t, `✓ drained\s+1:00`, rows[1])
	require.Equal(t, []string{"bad", "good"}, eval[[]string](b, `[...document.querySelectorAll("#recent td:nth-child(5)")].map(td => td.className)`), "a drain that was cut short is not green")
	require.True(t, eval[bool](b, `document.querySelector(".bar.drain").classList.contains("done")`))
	s.change(func(st *web.Status) {
		st.Interruptions[0].DrainOutcome, st.Interruptions[0].Result = "cut short", "cut short"
	})
	b.await(`document.querySelector(".bar.drain.incomplete:not(.done)")`)
	b.requireNothingWrong()
}

// TestStates: each state of a shard can be read in light and dark, on narrow and wide screens.
func TestStates(t *testing.T) {
	axe, err := os.ReadFile(os.Getenv("NSTANCE_AXE"))
	require.NoError(t, err, "set NSTANCE_AXE to axe.min.js of axe-core, as make test-browser does")
	for name, state := range states() {
		t.Run(name, func(t *testing.T) {
			s := &shard{status: state()}
			srv := httptest.NewServer(s.handler())
			t.Cleanup(srv.Close)
			b := newTab(t, srv.URL)
			for _, view := range []struct {
				width  int64
				scheme string
			}{{1280, "light"}, {1280, "dark"}, {320, "light"}, {2560, "dark"}} {
				b.run(chromedp.EmulateViewport(view.width, 1300), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: view.scheme}}))
				b.await(`document.querySelectorAll(".member").length > 0`)
				b.await(fmt.Sprintf(`innerWidth === %[1]d && document.documentElement.scrollWidth <= %[1]d`, view.width))
				require.Empty(t, b.violations(string(axe)), "%d %s", view.width, view.scheme)
				b.shoot(picture(name, view.scheme, view.width))
			}
			b.requireNothingWrong()
		})
	}
}

// picture returns the name of a picture of the documents, or of one to look at.
func picture(state, scheme string, width int64) string {
	switch {
	case width == 1280 && scheme == "light":
		return state
	case width == 1280 && state == "wave":
		return "dark"
	case width == 320 && state == "wave":
		return "narrow"
	}
	return fmt.Sprintf("%s-%s-%d", state, scheme, width)
}

// violations returns what axe-core finds wrong: contrast, names, roles, headings, landmarks.
func (b *tab) violations(axe string) (found []string) {
	b.Helper()
	b.run(chromedp.Evaluate(axe+`;0`, nil), chromedp.Evaluate(`axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}).then(r => r.violations.map(v => v.id + ": " + v.nodes.map(n => n.target + " " + n.failureSummary).join("; ")))`,
		&found, func(p *cdpruntime.EvaluateParams) *cdpruntime.EvaluateParams { return p.WithAwaitPromise(true) }))
	return found
}

// TestThousandReclaims: counts are the server's, what is cut is the least urgent, and the page
// stays short.
func TestThousandReclaims(t *testing.T) {
	s := &shard{status: estate(1000, "web")}
	take(&s.status, 1000, 30*time.Second)
	srv := httptest.NewServer(s.handler())
	t.Cleanup(srv.Close)
	b := newTab(t, srv.URL)
	b.await(`document.querySelectorAll(".wave").length === 1`)
	require.Contains(t, eval[string](b, `document.querySelector("#running-count").innerText`), "1,000 interruptions running")
	require.Regexp(t, `1,000 reclaimed · 901 replaced · 333 drained · 20 incomplete · tightest 79 s`, eval[string](b, `document.querySelector(".wave .sum").innerText`))
	require.Zero(t, eval[int](b, `document.querySelectorAll(".run").length`), "its rows are behind a click")
	b.run(chromedp.Click(".wave summary"))
	b.await(`document.querySelectorAll(".run").length === 30`)
	require.Equal(t, s.status.Interruptions[0].Instance, eval[string](b, `document.querySelector(".run a").innerText`), "the earliest deadline comes first")
	require.Contains(t, eval[string](b, `document.querySelector(".wave").innerText`), "and 970 more with later deadlines")
	require.Regexp(t, `^[01]:\d\d$`, eval[string](b, `document.querySelector(".wave .countdown b").innerText`))
	require.Less(t, eval[int](b, `document.documentElement.scrollHeight`), 8000)
	require.Contains(t, eval[string](b, `document.querySelector(".group").innerText`), "and 1,700 more", "of 1,000 that drain and 1,000 that replace them")
	b.requireNothingWrong()
}

// TestLinks: an instance's name leads to its interruption, its row and its events, and back.
func TestLinks(t *testing.T) {
	s := &shard{status: reclaim()}
	srv := httptest.NewServer(s.handler())
	t.Cleanup(srv.Close)
	b := newTab(t, srv.URL)
	b.await(`document.querySelectorAll(".run").length === 1 && document.querySelectorAll("#instances tr").length === 24`)
	id := s.status.Instances[0].ID
	b.run(chromedp.Click(".run a"))
	b.await(`document.querySelectorAll("#instances tr").length === 1 && document.querySelectorAll(".run").length === 1`)
	require.Equal(t, id, eval[string](b, `document.querySelector("#filter").value`))
	require.Equal(t, []string{id}, eval[[]string](b, `[...new Set([...document.querySelectorAll("#events a")].map(a => a.innerText).filter(Boolean))]`))
	b.run(chromedp.NavigateBack())
	b.await(`document.querySelector("#filter").value === "" && document.querySelectorAll("#instances tr").length === 24`)
	b.requireNothingWrong()
}

// TestNamesAreText: names come from people and machines.
func TestNamesAreText(t *testing.T) {
	const evil = `<img src=x onerror="document.title='owned'">`
	s := &shard{status: fleet(1)}
	s.status.Instances[0].Note, s.status.Instances[0].State, s.status.Instances[0].Connected = evil, evil, false
	s.status.Groups[0].Holds = []web.Hold{{Kind: "paused", Reason: evil}}
	s.status.Attention = []web.Attention{{Kind: evil, Count: 1, Subject: evil, Why: evil, Remedy: evil}}
	s.status.Pools = []web.Pool{{InstanceType: evil, Zone: evil}}
	s.status.Day.Marks = []web.Mark{{Time: time.Now(), Event: evil, Reason: evil}}
	s.status.Waves = []*wave.Wave{{ID: evil, Groups: []string{evil}, Count: wave.Count{Machines: 1, Running: 1}, Pools: []wave.Pool{{Zone: evil}}}}
	s.status.Events = []nstance.Event{{Seq: 1, Type: "ready", Reason: evil}}
	s.status.Interruptions = []web.Interruption{{Event: "e", Wave: evil, Instance: evil, Group: evil, Kind: evil, NoticedAt: time.Now()}}
	srv := httptest.NewServer(s.handler())
	t.Cleanup(srv.Close)
	b := newTab(t, srv.URL)
	b.await(`document.querySelectorAll(".run").length === 1`)
	require.Zero(t, eval[int](b, `document.querySelectorAll("img").length`))
	require.NotEqual(t, "owned", eval[string](b, `document.title`))
	require.GreaterOrEqual(t, eval[int](b, `document.body.innerText.split("<img src=x").length - 1`), 12)
}

// TestServerStaysAway: the page says that it is old, and goes on when there is a server
// again.
func TestServerStaysAway(t *testing.T) {
	s := &shard{status: fleet(3)}
	srv := httptest.NewServer(s.handler())
	b := newTab(t, srv.URL)
	b.await(`document.querySelectorAll(".member").length === 3`)
	address := srv.Listener.Addr().String()
	srv.CloseClientConnections()
	srv.Close()
	b.await(`/has not answered for/.test(document.querySelector("#lost").textContent)`)

	s.change(func(st *web.Status) { st.Instances = st.Instances[:2]; st.Epoch = 8 })
	again := httptest.NewUnstartedServer(s.handler())
	_ = again.Listener.Close()
	require.Eventually(t, func() bool { // the last one may hold the address for a moment
		lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		again.Listener = lis
		return err == nil
	}, eventually, 10*time.Millisecond)
	again.Start()
	t.Cleanup(again.Close)
	b.await(`document.querySelectorAll(".member").length === 2 && document.querySelector("#lost").textContent === "" && /term 8/.test(document.body.innerText)`)
}

// TestReclaims: the page of the real server, while real machines are reclaimed and
// replaced. Each takes five seconds to drain, and the page changes every second.
func TestReclaims(t *testing.T) {
	for _, c := range []struct {
		name      string
		instances int
		reclaimed int
		shows     string
	}{
		{"interrupt", 3, 1, `document.querySelector(".run .bar.replacement:not([hidden])") && document.querySelector(".member:is(.draining, .deleting)")`},
		{"mass", 12, 12, `(document.querySelector(".wave details:not([open]) summary:not([hidden])")?.click(), document.querySelectorAll(".run").length >= 6)`},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newShard(t, c.instances)
			b.admin("interrupt", "--group", "web", "--count", strconv.Itoa(c.reclaimed), "--yes")
			b.await(c.shows)
			b.shoot("real-" + c.name)
			b.await(fmt.Sprintf(`document.querySelectorAll("#recent tr").length === %d && document.querySelectorAll(".member.ready").length === %d`, c.reclaimed, c.instances))
			b.shoot("real-" + c.name + "-over")
			require.Regexp(t, `reclaim \(rehearsal\)\s+✓ drained\s+\d:\d\d\s+ready after \d+ s`, eval[string](b.tab, `document.querySelector("#recent tr").innerText`))
			b.requireNothingWrong()
		})
	}
	t.Run("rollout", func(t *testing.T) {
		b := newShard(t, 3)
		b.configure(release+"2", release+"3")
		b.await(`document.querySelector(".member.draining") && document.querySelectorAll(".member").length > 3`)
		b.shoot("real-rollout")
		b.requireNothingWrong()
	})
}

// A localShard is a server with its machines on this one, until the test ends, and its
// page.
type localShard struct {
	*tab
	programs string
	dir      string
}

// newShard starts one, with a group of that size whose members are slow to drain.
func newShard(t *testing.T, size int) *localShard {
	t.Helper()
	s := &localShard{programs: os.Getenv("NSTANCE_BROWSER_PROGRAMS"), dir: t.TempDir()}
	require.NotEmpty(t, s.programs, "set it to the directory of nstance-server and nstance-admin, as make test-browser does")
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, filepath.Join(s.programs, "nstance-server"), "dev", "--http", "127.0.0.1:0", "--instances", "1", "--data", s.dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = eventually
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	url := ""
	for url == "" && lines.Scan() {
		url = regexp.MustCompile(`http://[0-9.:]+/`).FindString(lines.Text())
	}
	var rest sync.WaitGroup
	rest.Go(func() {
		for lines.Scan() {
		}
	})
	t.Cleanup(func() {
		cancel()
		rest.Wait()
		_ = cmd.Wait() // by a signal
	})
	require.NotEmpty(t, url, "it says where its page is")
	s.tab = newTab(t, url)
	s.await(`document.querySelectorAll(".member.ready").length === 1`)
	fast := eval[string](s.tab, `[...instances.keys()][0]`)
	s.configure(`"size": 1`, fmt.Sprintf(`"size": %d`, size), strconv.Quote(fmt.Sprintf(`["%s","drain-demo"]`, cmd.Path)), strconv.Quote(`["sleep","5"]`), release+"1", release+"2")
	s.await(fmt.Sprintf(`!instances.has(%q) && document.querySelectorAll(".member.ready").length === %d`, fast, size))
	return s
}

// release is of the user data, and a number follows it: machines of another one are
// outdated.
const release = `DEV_RELEASE\": \"`

// configure edits the shard's configuration, as pairs of what to look for and what
// to put there, and has it read.
func (s *localShard) configure(edits ...string) {
	s.Helper()
	path := filepath.Join(s.dir, "dev.jsonc")
	text, err := os.ReadFile(path)
	require.NoError(s, err)
	for edit := range slices.Chunk(edits, 2) {
		require.Contains(s, string(text), edit[0])
		text = bytes.ReplaceAll(text, []byte(edit[0]), []byte(edit[1]))
	}
	require.NoError(s, os.WriteFile(path, text, 0o600))
	s.admin("config", "refresh")
}

func (s *localShard) admin(args ...string) {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), filepath.Join(s.programs, "nstance-admin"), args...)
	cmd.Env = append(os.Environ(), "NSTANCE_ADMIN_DIR="+filepath.Join(s.dir, "admin"))
	out, err := cmd.CombinedOutput()
	require.NoError(s, err, "%s", out)
}
