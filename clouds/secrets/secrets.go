// Package secrets opens any source of secrets by its URL, for programs that are
// configured with one. It links the clients of all clouds; a program that needs
// only one imports aws/secrets, gcp/secrets or azure/secrets. Open may be called concurrently.
package secrets

import (
	"context"
	"strings"

	aws "github.com/nstance-go/nstance/aws/secrets"
	azure "github.com/nstance-go/nstance/azure/secrets"
	gcp "github.com/nstance-go/nstance/gcp/secrets"
	"github.com/nstance-go/nstance/internal/manager"
	"github.com/nstance-go/nstance/storage/secret"
)

// Open opens env://PREFIX_, file:///directory, awssecretsmanager://,
// awsparamstore://, gcpsecretmanager://projects/PROJECT and
// azurekeyvault://VAULT, with the parameters that those packages document. It
// does not call them yet. It returns nil for store:, the cluster's own storage,
// which every server has.
func Open(ctx context.Context, rawURL string) (secret.Source, error) {
	scheme, _, _ := strings.Cut(rawURL, ":")
	switch scheme {
	case manager.SchemeStore, manager.SchemeEnv, manager.SchemeFile:
		return manager.OpenLocal(ctx, rawURL)
	case aws.SecretsManager, aws.ParameterStore:
		return aws.Open(ctx, rawURL)
	case gcp.Scheme:
		return gcp.Open(ctx, rawURL)
	case azure.Scheme:
		return azure.Open(ctx, rawURL)
	}
	return nil, manager.Invalid("use store:, env, file, awssecretsmanager, awsparamstore, gcpsecretmanager or azurekeyvault", "scheme %.32q is unknown", scheme)
}
