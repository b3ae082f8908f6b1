// Package secrets reads secrets from an Azure Key Vault. docs/secrets.md has the
// details.
//
// Its sources are safe for concurrent use.
package secrets

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azsecrets"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/manager"
	"github.com/nstance-go/nstance/internal/proxy"
	"github.com/nstance-go/nstance/storage/secret"
)

// Scheme is the scheme of the URLs that Open reads.
const Scheme = "azurekeyvault"

// Open opens azurekeyvault://VAULT. Parameters:
//
//   - prefix: goes before every name
//   - domain: vault.azure.net, or that of another cloud
//
// Credentials come from Azure's default chain: environment, workload identity,
// the machine's managed identity. Nothing is asked of the vault yet. It fails
// with Invalid when the URL is wrong, Denied when there can be no credentials.
func Open(_ context.Context, rawURL string) (secret.Source, error) {
	u, err := manager.ParseURL(rawURL, Scheme, "domain")
	if err != nil {
		return nil, err
	}
	const chars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"
	if u.Place == "" || strings.Trim(u.Place, chars) != "" {
		return nil, manager.Invalid("use "+Scheme+"://VAULT", "names no vault")
	}
	domain := cmp.Or(u.Params.Get("domain"), "vault.azure.net")
	if strings.Trim(domain, chars+".") != "" {
		return nil, manager.Invalid("use the name of a domain", "parameter %q is not valid", "domain")
	}
	creds, err := azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: policy.ClientOptions{Transport: proxy.Client()}})
	if err != nil {
		return nil, nstance.Errorf(nstance.Denied, "%s: Azure credentials: %w", manager.Field, err)
	}
	client, err := azsecrets.NewClient("https://"+u.Place+"."+domain, creds, nil)
	if err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "%s: Azure client: %w", manager.Field, err)
	}
	return New(client, u.Prefix), nil
}

// New returns the secrets of a vault, for those who have a client.
func New(client *azsecrets.Client, prefix string) secret.Source {
	return manager.New(&driver{client}, "Azure Key Vault", manager.Options{Prefix: prefix})
}

type driver struct{ client *azsecrets.Client }

// Get returns the newest version.
func (d *driver) Get(ctx context.Context, name string) ([]byte, error) {
	if strings.ContainsAny(name, "._") {
		return nil, nstance.Errorf(nstance.Invalid, "secret %s: Azure Key Vault has only names of letters, digits and -: use another name", name)
	}
	ctx = policy.WithRetryOptions(ctx, policy.RetryOptions{MaxRetries: manager.Attempts - 1, RetryDelay: 100 * time.Millisecond, MaxRetryDelay: 500 * time.Millisecond})
	out, err := d.client.GetSecret(ctx, name, "", nil)
	switch {
	case err != nil:
		return nil, err
	case out.ID == nil || *out.ID == "":
		return nil, manager.NotNamed(name)
	case out.Value == nil:
		return nil, nil
	}
	return []byte(*out.Value), nil
}

// Fault implements manager.Driver.
func (d *driver) Fault(err error) (manager.Fault, bool) {
	answer, ok := errors.AsType[*azcore.ResponseError](err)
	if !ok {
		return manager.Fault{}, false
	}
	f := manager.Fault{Status: answer.StatusCode, Word: answer.ErrorCode}
	if f.Status == http.StatusNotFound && f.Word == "SecretNotFound" {
		f.Means = nstance.NotFound
	}
	return f, true
}
