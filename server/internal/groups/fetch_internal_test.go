package groups

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

func loopback() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} }

// TestFetchGuard: neither an address, nor a name, nor a redirect leads to this
// machine, its link or a metadata service.
func TestFetchGuard(t *testing.T) {
	hits := 0
	inner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { hits++; _, _ = w.Write([]byte("{{.Nonce}}")) }))
	defer inner.Close()
	_, port, err := net.SplitHostPort(inner.Listener.Addr().String())
	require.NoError(t, err)
	f := newFetcher(storage.NewMemory(), func() []netip.Prefix { return nil })
	defer f.close()
	for _, at := range []string{inner.URL, "http://localhost:" + port, "http://[::ffff:127.0.0.1]:" + port, "http://169.254.169.254/latest", "http://168.63.129.16/", "http://0.0.0.0:" + port} {
		_, err := f.fetch(t.Context(), nstance.UserData{Source: "url", Content: at})
		require.ErrorIs(t, err, nstance.Unavailable, at)
		require.ErrorContains(t, err, "shard.userdata_networks", at)
	}
	require.Zero(t, hits)

	t.Run("a redirect", func(t *testing.T) {
		outer := httptest.NewServer(http.RedirectHandler("http://169.254.169.254/latest/user-data", http.StatusFound))
		defer outer.Close()
		f := newFetcher(storage.NewMemory(), loopback)
		defer f.close()
		_, err := f.fetch(t.Context(), nstance.UserData{Source: "url", Content: outer.URL})
		require.ErrorContains(t, err, "may not be fetched from 169.254.169.254")
	})
	for addr, want := range map[string]bool{
		"10.0.0.1": false, "192.168.1.1": false, "8.8.8.8": false, "2001:db8::1": false, "fd12::1": false, "100.64.0.1": false,
		"127.9.9.9": true, "::1": true, "fe80::1": true, "169.254.1.1": true, "224.0.0.1": true, "255.255.255.255": true, "::": true, "::127.0.0.1": true, "64:ff9b::7f00:1": true, "64:ff9b::808:808": false, "fd00:ec2::254": true, "168.63.129.16": true,
		// The same within IPv6: NAT64 of local use with each length of prefix, 6to4, Teredo by server and by client, translated, ISATAP.
		"64:ff9b:1::a9fe:a9fe": true, "64:ff9b:1:a9fe:a9:fe00::": true, "64:ff9b:1:aa:8:808:800::": false, "64:ff9b:1:a9:fe:a9fe::": true, "64:ff9b:1:1:a9:fea9:fe00:0": true, "64:ff9b:1::808:808": false,
		"2002:a9fe:a9fe::1": true, "2002:7f00:1::": true, "2002:808:808::1": false,
		"2001:0:a9fe:a9fe::1": true, "2001:0:808:808:0:0:5601:5601": true, "2001:0:808:808:0:0:f7f7:f7f7": false,
		"::ffff:0:169.254.169.254": true, "::ffff:0:8.8.8.8": false, "2001:db8::5efe:a9fe:a9fe": true, "2001:db8::200:5efe:7f00:1": true, "2001:db8::5efe:808:808": false,
		"fd00:42::42": true, "fd00:c1::a9fe:a9fe": true, "fd20:ce::254": true,
	} {
		require.Equal(t, want, forbiddenSource(netip.MustParseAddr(addr)), addr)
	}
}

func TestFetch(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/good", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{{.Nonce}}")) })
	mux.HandleFunc("/empty", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/long", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, maxFetched+1)) })
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{{.Nonce")) })
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("x"))
	})
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/good", http.StatusFound) })
	mux.HandleFunc("/round", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/round", http.StatusFound) })
	mux.HandleFunc("/hops/{left}", func(w http.ResponseWriter, r *http.Request) {
		next := "/good"
		if left, _ := strconv.Atoi(r.PathValue("left")); left > 1 {
			next = fmt.Sprint("/hops/", left-1)
		}
		http.Redirect(w, r, next, http.StatusFound)
	})
	mux.HandleFunc("/full", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bytes.Repeat([]byte("x"), maxFetched)) })
	mux.HandleFunc("/packed", func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			_, _ = w.Write([]byte("as it is stored"))
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		packer := gzip.NewWriter(w)
		_, _ = packer.Write([]byte("packed on the way"))
		_ = packer.Close()
	})
	web := httptest.NewServer(mux)
	defer web.Close()
	store := storage.NewMemory()
	_, err := store.PutIfAbsent(t.Context(), "userdata/base", []byte("from the store"))
	require.NoError(t, err)
	f := newFetcher(store, loopback)
	defer f.close()
	digest := digestOf([]byte("{{.Nonce}}"))
	for _, c := range []struct {
		name, at, digest, encoding string
		want                       string
		code                       nstance.Code
		says                       string
	}{
		{name: "what is there", at: web.URL + "/good", want: "{{.Nonce}}"},
		{name: "with its digest", at: web.URL + "/good", digest: digest, want: "{{.Nonce}}"},
		{name: "after a redirect", at: web.URL + "/moved", want: "{{.Nonce}}"},
		{name: "after three redirects", at: web.URL + "/hops/3", want: "{{.Nonce}}"},
		{name: "after four redirects", at: web.URL + "/hops/4", code: nstance.Unavailable, says: "too many redirects"},
		{name: "as much as is permitted", at: web.URL + "/full", want: strings.Repeat("x", maxFetched)},
		{name: "the stored bytes", at: web.URL + "/packed", want: "as it is stored"},
		{name: "an object", at: "storage:userdata/base", want: "from the store"},
		{name: "another digest", at: web.URL + "/good", digest: strings.Repeat("a", 64), code: nstance.Invalid, says: "write " + digest},
		{name: "nothing", at: web.URL + "/empty", code: nstance.Invalid, says: "nothing is there"},
		{name: "too much", at: web.URL + "/long", code: nstance.Invalid, says: "more than"},
		{name: "without end", at: web.URL + "/endless", code: nstance.Invalid, says: "more than"},
		{name: "a broken template", at: web.URL + "/broken", code: nstance.Invalid, says: "unclosed action"},
		{name: "another encoding", at: web.URL + "/good", encoding: "gzip", code: nstance.Invalid, says: "not gzip"},
		{name: "cut off", at: web.URL + "/cut", code: nstance.Unavailable},
		{name: "not there", at: web.URL + "/none?token=hush", code: nstance.Unavailable, says: "404"},
		{name: "round in circles", at: web.URL + "/round", code: nstance.Unavailable, says: "too many redirects"},
		{name: "nobody there", at: "http://127.0.0.1:1/x?token=hush", code: nstance.Unavailable},
		{name: "no such object", at: "storage:userdata/none", code: nstance.NotFound},
		{name: "an object of another kind", at: "storage:secret/ca", code: nstance.Invalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := f.fetch(t.Context(), nstance.UserData{Source: "url", Content: c.at, SHA256: c.digest, Encoding: nstance.UserDataEncoding(c.encoding)})
			require.Equal(t, c.code, nstance.CodeOf(err), "%v", err)
			if c.code != "" {
				require.ErrorContains(t, err, c.says)
				require.NotContains(t, err.Error(), "hush", "what is in a query may be a secret")
				return
			}
			require.Equal(t, c.want, string(got))
		})
	}
	t.Run("an answer that does not come", func(t *testing.T) {
		release := make(chan struct{})
		slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
		defer slow.Close()
		defer close(release)
		f := newFetcher(store, loopback)
		f.http.Timeout = 20 * time.Millisecond
		_, err := f.fetch(t.Context(), nstance.UserData{Source: "url", Content: slow.URL})
		require.ErrorIs(t, err, nstance.Unavailable)
		require.Equal(t, fetchTimeout, newFetcher(store, loopback).http.Timeout)
	})
	t.Run("a network that is allowed no more", func(t *testing.T) {
		allowed := loopback()
		f := newFetcher(store, func() []netip.Prefix { return allowed })
		defer f.close()
		u := nstance.UserData{Source: "url", Content: web.URL + "/good"}
		_, err := f.fetch(t.Context(), u)
		require.NoError(t, err)
		allowed = nil
		_, err = f.fetch(t.Context(), u)
		require.ErrorIs(t, err, nstance.Denied, "no connection from before is used")
	})
	t.Run("a redirect away from https", func(t *testing.T) {
		next, _ := http.NewRequest(http.MethodGet, "http://example", http.NoBody)
		first, _ := http.NewRequest(http.MethodGet, "https://example", http.NoBody)
		require.Error(t, f.http.CheckRedirect(next, []*http.Request{first}))
	})
}
