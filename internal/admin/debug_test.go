package admin_test

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/admin"
)

// unpack returns the files of a bundle, without the folder that they are in.
func unpack(t *testing.T, path string) map[string]string {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	packed, err := gzip.NewReader(f)
	require.NoError(t, err)
	files, r := map[string]string{}, tar.NewReader(packed)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		content, err := io.ReadAll(r)
		require.NoError(t, err)
		dir, name, _ := strings.Cut(h.Name, "/")
		require.Regexp(t, `^nstance-prod-eu1a-\d{8}T\d{6}Z$`, dir)
		require.NotContains(t, files, name)
		files[name] = string(content)
	}
}

func TestDebug(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	standby := newWorldWith(t, w.keys)
	standby.set(func() { standby.standby, standby.leader = true, w.operator })
	w.set(func() {
		w.groups[1].Vars["color"], w.groups[1].Args = "s3cret", `{"token": "s3cret"}`
		w.fail["ListOrphans"] = nstance.Errorf(nstance.Unavailable, "the provider does not answer")
	})
	closed := closedPort(t)
	pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			http.Error(w, "no leader is known", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "of "+r.URL.Path)
	}))
	t.Cleanup(pages.Close)
	web := pages.Listener.Addr().String()

	file := filepath.Join(t.TempDir(), "incident.tar.gz")
	r := w.run("debug", file, "--server", standby.operator+","+closed, "--http", web, "-o", "json")
	require.Zero(t, r.code, r.errors)
	var done admin.Debugged
	require.NoError(t, json.Unmarshal([]byte(r.out), &done))
	files := unpack(t, file)
	require.Len(t, files, len(done.Files))
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	for _, name := range []string{"status", "configuration", "keys", "avoided-pools", "rates", "interruptions", "instances", "groups", "events", "alarms", "operators"} {
		require.True(t, json.Valid([]byte(files[name+".json"])), name)
	}
	require.Contains(t, files["instances.json"], webA)
	require.Contains(t, files["groups.json"], `"color": ""`)
	require.NotContains(t, strings.Join(values(files), ""), "s3cret")
	require.Contains(t, files["events.json"], "notice_received")
	require.NotContains(t, files["alarms.json"], "notice_received")
	require.Contains(t, done.Lacks, "servers/server-b.example_8993.json", "the standby that the leader knows is asked, too")
	require.NotContains(t, files, "orphans.json")
	require.Contains(t, done.Lacks["orphans.json"], "the provider does not answer")

	name := func(addr string) string { return "servers/" + strings.ReplaceAll(addr, ":", "_") + ".json" }
	require.Contains(t, files[name(w.operator)], `"leads": true`)
	require.Contains(t, files[name(standby.operator)], `"leader": "`+w.operator)
	require.Contains(t, done.Lacks[name(closed)], "cannot be reached")
	require.Equal(t, "of /metrics", files["http/"+strings.ReplaceAll(web, ":", "_")+"/metrics"])
	require.Contains(t, files["http/"+strings.ReplaceAll(web, ":", "_")+"/readyz"], "503 Service Unavailable\nno leader is known")
	require.Contains(t, files["about.json"], "the provider does not answer")

	require.Equal(t, 6, w.run("debug", file).code, "it exists")
	require.Equal(t, 2, w.run("debug", filepath.Join(t.TempDir(), "no", "folder")).code)
}

// TestDebugWithoutLeader: what there is is gathered when no server leads.
func TestDebugWithoutLeader(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set(func() { w.standby = true })
	file := filepath.Join(t.TempDir(), "incident.tar.gz")
	r := w.run("debug", file)
	require.Zero(t, r.code, r.errors)
	require.Contains(t, r.out, "lacks leader: ")
	require.Contains(t, unpack(t, file), "about.json")
}

func values(files map[string]string) (all []string) {
	for _, f := range files {
		all = append(all, f)
	}
	return all
}

// TestDebugWithASilentServer: what does not answer is lacking, and holds up nothing.
func TestDebugWithASilentServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t).populate()
	silent := silentPort(t)
	r := w.run("debug", filepath.Join(t.TempDir(), "incident.tar.gz"), "--http", silent, "--timeout", "1s", "-o", "json")
	require.Zero(t, r.code, r.errors)
	for _, page := range []string{"metrics", "healthz", "readyz", "status.json"} {
		require.Contains(t, decoded[admin.Debugged](t, r).Lacks["http/"+strings.ReplaceAll(silent, ":", "_")+"/"+page], "deadline exceeded")
	}
}
