//go:build servers && linux

package tutorial_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/sleep"
	"github.com/nstance-go/nstance/provider/testcloud"
)

// firstDays are the first days by the names of the pages.
var firstDays = map[string]firstDay{
	"aws": {open: onAWS, byHand: map[string]string{"`aws:ec2:send-spot-instance-interruptions`": "reclaim"}},
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

// running returns the handle of a machine that runs.
func running(c testcloud.Cloud) (string, error) {
	for _, m := range c.Machines() {
		if m.ID != "" && m.Status == nstance.StatusRunning {
			return m.Handle, nil
		}
	}
	return "", fmt.Errorf("no machine runs: %v", c.Machines())
}
