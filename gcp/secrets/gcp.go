// Package secrets reads secrets from Google Cloud's Secret Manager. docs/secrets.md
// has the details.
//
// Its sources are safe for concurrent use.
package secrets

import (
	"context"
	"errors"
	"hash/crc32"
	"net/http"
	"strings"
	"time"

	secretmanager "cloud.google.com/go/secretmanager/apiv1"
	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"
	"github.com/googleapis/gax-go/v2"
	"gocloud.dev/gcp"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp/internal/adc"
	"github.com/nstance-go/nstance/internal/manager"
	"github.com/nstance-go/nstance/storage/secret"
)

// Scheme is the scheme of the URLs that Open reads.
const Scheme = "gcpsecretmanager"

// Open opens gcpsecretmanager://projects/PROJECT. The only parameter is prefix,
// which goes before every name. Credentials are Google's application default
// credentials. Nothing is asked of the service yet. It fails with Invalid when
// the URL is wrong, Denied when there are no credentials.
func Open(ctx context.Context, rawURL string) (secret.Source, error) {
	u, err := manager.ParseURL(rawURL, Scheme)
	if err != nil {
		return nil, err
	}
	project, ok := strings.CutPrefix(u.Place, "projects/")
	if !ok || project == "" || strings.Contains(project, "/") {
		return nil, manager.Invalid("use "+Scheme+"://projects/PROJECT", "names no project")
	}
	if err := adc.Available(ctx); err != nil {
		return nil, err
	}
	creds, err := gcp.DefaultCredentials(adc.Context(ctx))
	if err != nil {
		return nil, nstance.Errorf(nstance.Denied, "%s: Google credentials: %w", manager.Field, err)
	}
	transport, err := gcp.NewHTTPClient(gcp.DefaultTransport(), gcp.CredentialsTokenSource(creds))
	if err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "%s: Google client: %w", manager.Field, err)
	}
	authorized := adc.NewTokens(creds.TokenSource).Client(adc.Stay(&transport.Client))
	client, err := secretmanager.NewRESTClient(context.WithoutCancel(ctx), option.WithHTTPClient(authorized))
	if err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "%s: Google client: %w", manager.Field, err)
	}
	return New(client, project, u.Prefix), nil
}

// New returns the secrets of a project, for those who have a client.
func New(client *secretmanager.Client, project, prefix string) secret.Source {
	return manager.New(&driver{client, "projects/" + project + "/secrets/"}, "Google Secret Manager", manager.Options{Prefix: prefix})
}

type driver struct {
	client *secretmanager.Client
	parent string
}

// Get returns the newest version.
func (d *driver) Get(ctx context.Context, name string) ([]byte, error) {
	if strings.Contains(name, ".") {
		return nil, nstance.Errorf(nstance.Invalid, "secret %s: Google Secret Manager has no names with a dot: use another name", name)
	}
	in := &secretmanagerpb.AccessSecretVersionRequest{Name: d.parent + name + "/versions/latest"}
	out, err := d.client.AccessSecretVersion(ctx, in, gax.WithRetry(patience))
	if err != nil {
		return nil, err
	}
	if out.GetName() == "" {
		return nil, manager.NotNamed(name)
	}
	data, p := out.GetPayload().GetData(), out.GetPayload()
	if p.DataCrc32C != nil && *p.DataCrc32C != int64(crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))) {
		return nil, nstance.Errorf(nstance.Unavailable, "secret %s arrived damaged", name)
	}
	return data, nil
}

func patience() gax.Retryer {
	return &retryer{backoff: gax.Backoff{Initial: 100 * time.Millisecond, Max: 500 * time.Millisecond}}
}

// A retryer repeats what may be better next time, as often as is permitted.
type retryer struct {
	backoff gax.Backoff
	tries   int
}

// Retry implements gax.Retryer.
func (r *retryer) Retry(err error) (time.Duration, bool) {
	answer, ok := errors.AsType[*googleapi.Error](err)
	if r.tries++; r.tries >= manager.Attempts || ok && answer.Code < 500 && answer.Code != http.StatusTooManyRequests {
		return 0, false
	}
	return r.backoff.Pause(), true
}

// Fault implements manager.Driver.
func (d *driver) Fault(err error) (manager.Fault, bool) {
	answer, ok := errors.AsType[*googleapi.Error](err)
	if !ok || answer.Code < 300 {
		return manager.Fault{}, false
	}
	f := manager.Fault{Status: answer.Code}
	if answer.Code == http.StatusNotFound && answer.Message != "" { // else it is not the service that speaks
		f.Means = nstance.NotFound
	}
	return f, true
}
