//go:build servers && linux

package tutorial_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// firstDays are the first days by the names of the pages.
var firstDays = map[string]firstDay{
	"aws":     {open: onAWS, byHand: map[string]string{"`aws:ec2:send-spot-instance-interruptions`": "reclaim"}},
	"gcp":     {open: onGCP, cli: []string{"gcloud"}},
	"azure":   {open: onAzure, cli: []string{"az"}},
	"proxmox": {open: onProxmox, cli: []string{"qm", "scp"}},
}

// delays are short, and longer than nothing.
var delays = testcloud.Delays{
	Visible: 50 * time.Millisecond, Start: 100 * time.Millisecond, Stop: 100 * time.Millisecond, Delete: 100 * time.Millisecond, Linger: time.Minute,
}

// read reads a file of docs/providers.
func (w *world) read(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(w.repository, "docs/providers", name))
}

// runStore runs a storage server beside the script, and returns a proxy to it.
func (w *world) runStore(name, addr string, args ...string) (http.Handler, error) {
	cmd := exec.Command(name, args...)
	log, err := os.Create(filepath.Join(w.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, environment()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(time.Minute)
	for {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			return proxy(addr), conn.Close()
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%s does not listen: %w", name, err)
		}
		sleep.For(context.Background(), 20*time.Millisecond)
	}
}

// proxy leads to a server without TLS. The name of the host, which may be signed, stays.
func proxy(addr string) http.Handler {
	return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: addr})
		r.Out.Host = r.In.Host
	}}
}

// byHost sends requests for a domain to its store, and others to the rest.
func byHost(domain string, store, rest http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.Host, domain) {
			store.ServeHTTP(rw, r)
		} else {
			rest.ServeHTTP(rw, r)
		}
	})
}

// running returns a machine that runs.
func running(c testcloud.Cloud) (testcloud.Machine, error) {
	for _, m := range c.Machines() {
		if m.ID != "" && m.Status == nstance.StatusRunning {
			return m, nil
		}
	}
	return testcloud.Machine{}, fmt.Errorf("no machine runs: %v", c.Machines())
}

// nameOfRunning prints the name of a machine that runs, which is its instance ID.
func nameOfRunning(c testcloud.Cloud) func(string) (string, error) {
	return func(string) (string, error) {
		m, err := running(c)
		return string(m.ID) + "\n", err
	}
}

// call calls an API as its operator, and fails unless the answer is one of success.
func call(api http.Handler, method, url, token, body string) error {
	r := httptest.NewRequest(method, url, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	answer := httptest.NewRecorder()
	api.ServeHTTP(answer, r)
	if answer.Code >= http.StatusMultipleChoices {
		return fmt.Errorf("%s %s: %d %s", method, url, answer.Code, answer.Body)
	}
	return nil
}

// bearer is what a metadata service gives to a machine with an identity.
func bearer(token string) string {
	return fmt.Sprintf(`{"access_token": %q, "expires_in": 3600, "expires_on": "%d", "resource": "any", "token_type": "Bearer"}`, token, time.Now().Add(time.Hour).Unix())
}
