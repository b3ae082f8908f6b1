package kubeconfig_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/kubernetes/internal/kubeconfig"
)

// TestConnection: a client that exists sends each request as the latest kubeconfig says: to
// its server, below its path, with its credentials.
func TestConnection(t *testing.T) {
	first, second := newServer(t, unavailable), newServer(t, unavailable)
	c, err := kubeconfig.Connect(first.text("", "token: ONE"), func() {})
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(c.Config())
	require.NoError(t, err)
	get := func() { _, _ = client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{}) }
	get()
	r := <-first.got
	require.Equal(t, "Bearer ONE", r.Header.Get("Authorization"))
	require.Equal(t, "/api/v1/nodes/n", r.URL.Path)
	require.Equal(t, strings.TrimPrefix(first.URL, "https://"), r.Host)

	for _, step := range []struct {
		text            []byte
		changed         bool
		to              server
		path, authority string
	}{
		{first.text("", "token: TWO"), true, first, "/api/v1/nodes/n", "Bearer TWO"},
		{first.text("", "token: TWO"), false, first, "/api/v1/nodes/n", "Bearer TWO"},
		{second.text("server: '"+second.URL+"/clusters/c/'", "token: TWO"), true, second, "/clusters/c/api/v1/nodes/n", "Bearer TWO"},
	} {
		changed, err := c.Use(step.text)
		require.NoError(t, err)
		require.Equal(t, step.changed, changed)
		get()
		r := <-step.to.got
		require.Equal(t, step.authority, r.Header.Get("Authorization"))
		require.Equal(t, step.path, r.URL.Path)
	}

	_, err = c.Use(second.text("", "tokenFile: /etc/passwd"))
	require.ErrorIs(t, err, nstance.Invalid)
	get()
	require.Equal(t, "Bearer TWO", (<-second.got).Header.Get("Authorization"), "the former stays in use")
	require.Empty(t, first.got)

	text := first.text("", "token: ONE")
	_, err = c.Use(text)
	require.NoError(t, err)
	copy(text, second.text("", "token: TWO")) // as long
	changed, err := c.Use(text)
	require.NoError(t, err)
	require.True(t, changed, "the caller may use its bytes again")
	_, err = kubeconfig.Connect([]byte("{}"), func() {})
	require.ErrorIs(t, err, nstance.Invalid)
}

// TestConnectionRefused: credentials in use that are refused are reported, those that were
// replaced meanwhile are not.
func TestConnectionRefused(t *testing.T) {
	var refusals atomic.Int64
	replaced := make(chan struct{})
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer OLD" {
			<-replaced
		}
		w.WriteHeader(http.StatusUnauthorized)
	})
	c, err := kubeconfig.Connect(s.text("", "token: OLD"), func() { refusals.Add(1) })
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(c.Config())
	require.NoError(t, err)
	ended := make(chan error)
	go func() {
		_, err := client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
		ended <- err
	}()
	<-s.got
	_, err = c.Use(s.text("", "token: NEW"))
	require.NoError(t, err)
	close(replaced)
	require.Error(t, <-ended)
	require.Zero(t, refusals.Load())
	_, err = client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	require.Error(t, err)
	require.Equal(t, int64(1), refusals.Load())
}
