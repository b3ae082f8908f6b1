package secrets_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azsecrets"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure/secrets"
	"github.com/nstance-go/nstance/storage/secret"
)

// A vault speaks the REST form of Key Vault: who asks without a token is told
// where to get one, and an error is a JSON object with a code.
type vault struct {
	mu      sync.Mutex
	answers map[string][]answer // by name; the last one stays
	asked   int
}

type answer struct {
	status int
	body   string
}

func fault(status int, code string) answer {
	return answer{status, fmt.Sprintf(`{"error":{"code":%q,"message":"about hunter2"}}`, code)}
}

func value(v string) answer {
	return answer{200, fmt.Sprintf(`{"value":%q,"id":"https://v.vault.azure.net/secrets/db/4387e9f3","attributes":{"enabled":true}}`, v)}
}

func (v *vault) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	defer v.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if r.Header.Get("Authorization") != "Bearer token" {
		w.Header().Set("WWW-Authenticate", `Bearer authorization="https://login.microsoftonline.com/tenant", resource="https://vault.azure.net"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	v.asked++
	name := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/secrets/app-"), "/")
	a := fault(404, "SecretNotFound")
	if left := v.answers[name]; len(left) > 0 {
		if a = left[0]; len(left) > 1 {
			v.answers[name] = left[1:]
		}
	}
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.body)
}

type login struct{}

func (login) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: "token", ExpiresOn: time.Now().Add(time.Hour)}, nil
}

func TestGet(t *testing.T) {
	v := &vault{answers: map[string][]answer{
		"db":        {value("hunter2")},
		"recovers":  {fault(503, "ServiceUnavailable"), fault(429, "Throttled"), value("hunter2")},
		"denied":    {fault(403, "Forbidden")},
		"throttled": {fault(429, "Throttled")},
		"bad":       {fault(400, "BadParameter")},
		"broken":    {fault(500, "InternalError")},
		"gateway":   {{404, "<html>no such host</html>"}},
		"garbled":   {{200, "<html>sign in to this network</html>"}},
		"unnamed":   {{200, "{}"}},
		"empty":     {value("")},
		"long":      {value(strings.Repeat("x", secret.MaxSize+1))},
	}}
	front := httptest.NewTLSServer(v)
	t.Cleanup(front.Close)
	client, err := azsecrets.NewClient(front.URL, login{}, &azsecrets.ClientOptions{
		ClientOptions:                        azcore.ClientOptions{Transport: front.Client()},
		DisableChallengeResourceVerification: true, // the test's address is not Azure's
	})
	require.NoError(t, err)
	src := secrets.New(client, "app-")
	for _, name := range []string{"db", "recovers"} {
		data, err := src.Get(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, "hunter2", string(data))
	}
	for name, code := range map[string]nstance.Code{
		"absent": nstance.NotFound, "denied": nstance.Denied, "throttled": nstance.Throttled, "bad": nstance.Invalid,
		"broken": nstance.Unavailable, "gateway": nstance.Unavailable, "garbled": nstance.Unavailable, "unnamed": nstance.Unavailable,
		"empty": nstance.Invalid, "long": nstance.Invalid, "a_b": nstance.Invalid, "installation": nstance.Invalid,
	} {
		_, err := src.Get(t.Context(), name)
		require.ErrorIs(t, err, code, name)
		require.NotContains(t, err.Error(), "hunter2", name)
	}
	require.LessOrEqual(t, v.asked, 1+3+10*3, "the client asks three times at most")
	front.Close()
	_, err = src.Get(t.Context(), "db")
	require.ErrorIs(t, err, nstance.Unavailable)
}

func TestOpen(t *testing.T) {
	_, err := secrets.Open(t.Context(), "azurekeyvault://v1?prefix=app-")
	require.NoError(t, err)
	for _, bad := range []string{"azurekeyvault://", "azurekeyvault://v.vault.azure.net", "azurekeyvault://v/x", "azurekeyvault://v?domain=a/b", "azurekeyvault://v?x=1"} {
		_, err := secrets.Open(t.Context(), bad)
		require.ErrorIs(t, err, nstance.Invalid, bad)
	}
}
