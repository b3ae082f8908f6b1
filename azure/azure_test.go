package azure_test

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"os"

	"encoding/pem"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/azure"
	"github.com/nstance-go/nstance/azure/armtest"
	"github.com/nstance-go/nstance/provider/providertest"
	"github.com/nstance-go/nstance/provider/testcloud"
)

const (
	subscription = "00000000-0000-0000-0000-000000000001"
	vnet         = "/subscriptions/" + subscription + "/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/main"
	subnetA      = vnet + "/subnets/a"
	subnetB      = vnet + "/subnets/b"
	urn          = "Canonical:ubuntu-24_04-lts:server:24.04.202611010"
	key          = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBxO6yq0 test"
)

// token is the credential of the tests.
type token string

func (t token) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: string(t), ExpiresOn: time.Now().Add(time.Hour)}, nil
}

func defaults(o *armtest.Options) *armtest.Options {
	if o == nil {
		o = &armtest.Options{}
	}
	o.Subscription, o.ResourceGroup = subscription, "machines"
	if o.Tokens == nil {
		o.Tokens = map[string][]string{"secret": nil}
	}
	if o.Subnets == nil {
		o.Subnets = map[string]int{subnetA: 251, subnetB: 251}
	}
	return o
}

// serve starts a test cloud behind a real socket with TLS.
func serve(t *testing.T, o *armtest.Options) (*armtest.Cloud, *httptest.Server) {
	t.Helper()
	cloud := armtest.New(defaults(o))
	server := httptest.NewTLSServer(cloud)
	t.Cleanup(func() {
		server.Close()
		require.NoError(t, cloud.Close())
	})
	return cloud, server
}

func options(t *testing.T, server *httptest.Server) azure.Options {
	t.Helper()
	return azure.Options{
		Subscription: subscription, ResourceGroup: "machines", Location: "westeurope", Endpoint: server.URL,
		Tokens: token("secret"), Transport: server.Client(),
	}
}

func open(t *testing.T, o *armtest.Options) (*armtest.Cloud, *azure.Provider) {
	t.Helper()
	cloud, server := serve(t, o)
	p, err := azure.New(options(t, server))
	require.NoError(t, err)
	return cloud, p
}

func args(t *testing.T, change map[string]any) json.RawMessage {
	t.Helper()
	all := map[string]any{"ssh_public_keys": []string{key}}
	for name, v := range change {
		all[name] = v
	}
	b, err := json.Marshal(all)
	require.NoError(t, err)
	return b
}

func shape(s *nstance.MachineSpec) {
	s.Image, s.InstanceType, s.Subnet = urn, "Standard_D2s_v5", subnetA
	s.Args = json.RawMessage(`{"ssh_public_keys": ["` + key + `"]}`)
}

func newSpec(t *testing.T) nstance.MachineSpec {
	t.Helper()
	now := time.Now().UTC().Truncate(time.Millisecond)
	id, err := nstance.NewInstanceID("tst", now)
	require.NoError(t, err)
	s := nstance.MachineSpec{
		ID: id, Owner: nstance.Owner{Installation: "inst", Cluster: "c", Shard: "a", Tenant: "default"}, Group: "web",
		CreatedAt: now, Epoch: 7, Arch: nstance.AMD64, UserData: []byte("#cloud-config\n"), Token: string(id) + "-01",
	}
	shape(&s)
	return s
}

func subject(t *testing.T, o *armtest.Options) providertest.Subject {
	c, server := serve(t, o)
	again := func() nstance.Provider {
		p, err := azure.New(options(t, server))
		require.NoError(t, err)
		return p
	}
	return providertest.Subject{
		Break: c.Faults.Outage, Provider: again(), Again: again, Shape: shape, Spot: true, Park: []nstance.ParkMode{nstance.ParkStopped},
		BadArgs: map[string]json.RawMessage{
			"zone":            json.RawMessage(`{"zone": "4x", "ssh_public_keys": ["ssh-rsa AAAA"]}`),
			"ssh_public_keys": json.RawMessage(`{"ssh_public_keys": []}`),
			"os_disk.size_gb": json.RawMessage(`{"os_disk": {"size_gb": "x"}}`),
			"priority":        json.RawMessage(`{"priority": "Spot"}`),
		},
	}
}

// TestConformance runs the suite against a fast cloud, and against a slow one with small
// pages.
func TestConformance(t *testing.T) {
	t.Run("quick", func(t *testing.T) {
		providertest.Run(t, func(t *testing.T) providertest.Subject { return subject(t, nil) })
	})
	t.Run("slow", func(t *testing.T) {
		providertest.Run(t, func(t *testing.T) providertest.Subject {
			return subject(t, &armtest.Options{PageSize: 2, Delays: testcloud.Delays{
				Visible: 5 * time.Millisecond, Start: 20 * time.Millisecond, Stop: 5 * time.Millisecond, Delete: 10 * time.Millisecond,
			}})
		})
	})
}

// TestTLS opens the provider as a configuration does: with a file of certificates and a
// file with a token.
func TestTLS(t *testing.T) {
	_, server := serve(t, nil)
	dir := t.TempDir()
	ca, secret := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "token")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	require.NoError(t, os.WriteFile(secret, []byte("secret\n"), 0o600))
	o := azure.Options{Subscription: subscription, ResourceGroup: "machines", Location: "West Europe", Endpoint: server.URL, CAFile: ca, Credential: "token_file", TokenFile: secret}
	p, err := azure.New(o)
	require.NoError(t, err)
	s := newSpec(t)
	_, err = p.Create(t.Context(), s)
	require.NoError(t, err)

	require.NoError(t, os.WriteFile(secret, []byte("wrong"), 0o600))
	p, err = azure.New(o)
	require.NoError(t, err)
	_, err = p.Get(t.Context(), s.ID)
	require.Equal(t, nstance.Denied, nstance.CodeOf(err), "%v", err)

	o.CAFile = ""
	p, err = azure.New(o)
	require.NoError(t, err)
	_, err = p.Get(t.Context(), s.ID)
	require.Equal(t, nstance.Unavailable, nstance.CodeOf(err), "%v", err)
}
