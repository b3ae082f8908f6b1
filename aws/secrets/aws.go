// Package secrets reads secrets from AWS Secrets Manager and from the Parameter
// Store of AWS Systems Manager. docs/secrets.md has the details.
//
// Its sources are safe for concurrent use.
package secrets

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/smithy-go"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws/internal/awsconf"
	"github.com/nstance-go/nstance/internal/manager"
	"github.com/nstance-go/nstance/storage/secret"
)

// The schemes of the URLs that Open reads.
const (
	SecretsManager = "awssecretsmanager"
	ParameterStore = "awsparamstore"
)

// Open opens awssecretsmanager:// or awsparamstore://. Parameters:
//
//   - prefix: goes before every name, such as prod/ or /prod/
//   - region, profile, role, dualstack, fips: those of the AWS SDK
//   - endpoint: URL of the service, if not Amazon's public one
//
// Credentials come from where AWS programs find them: environment, shared
// files, the machine's role. Nothing is asked of the service yet. It fails with
// Invalid when the URL is wrong or no region is known.
func Open(ctx context.Context, rawURL string) (secret.Source, error) {
	scheme, _, _ := strings.Cut(rawURL, ":")
	if scheme != SecretsManager {
		scheme = ParameterStore
	}
	u, err := manager.ParseURL(rawURL, scheme, "region", "profile", "role", "dualstack", "fips", "endpoint")
	if err != nil {
		return nil, err
	}
	if u.Place != "" {
		return nil, manager.Invalid("use "+scheme+"://?region=...&prefix=...", "names a place, which belongs into prefix")
	}
	endpoint := u.Params.Get("endpoint")
	if endpoint != "" && !strings.HasPrefix(endpoint, "https://") && !strings.HasPrefix(endpoint, "http://") {
		return nil, manager.Invalid("use https://host", "parameter %q is not valid", "endpoint")
	}
	u.Params.Del("endpoint")
	conf, err := awsconf.Load(ctx, u.Params)
	if err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "%s: AWS configuration: %w", manager.Field, err)
	}
	if conf.Region == "" {
		return nil, manager.Invalid("add region=... or set AWS_REGION", "no region is known")
	}
	conf.Retryer = func() aws.Retryer { return retry.NewStandard(patience) }
	if endpoint != "" {
		conf.BaseEndpoint = &endpoint
	}
	o := manager.Options{Prefix: u.Prefix}
	if scheme == SecretsManager {
		return manager.New(&secrets{client: secretsmanager.NewFromConfig(conf)}, "AWS Secrets Manager", o), nil
	}
	return manager.New(&parameters{client: ssm.NewFromConfig(conf)}, "AWS Parameter Store", o), nil
}

func patience(o *retry.StandardOptions) {
	o.MaxAttempts, o.MaxBackoff, o.RateLimiter = manager.Attempts, 500*time.Millisecond, ratelimit.None
}

type secrets struct {
	faults
	client *secretsmanager.Client
}

// Get returns the version that the service labels AWSCURRENT.
func (s *secrets) Get(ctx context.Context, name string) ([]byte, error) {
	out, err := s.client.GetSecretValue(ctx, &secretsmanager.GetSecretValueInput{SecretId: &name})
	switch {
	case err != nil:
		return nil, err
	case aws.ToString(out.Name) == "":
		return nil, manager.NotNamed(name)
	case out.SecretString != nil:
		return []byte(*out.SecretString), nil
	}
	return out.SecretBinary, nil
}

type parameters struct {
	faults
	client *ssm.Client
}

// Get returns the newest version, decrypted.
func (p *parameters) Get(ctx context.Context, name string) ([]byte, error) {
	out, err := p.client.GetParameter(ctx, &ssm.GetParameterInput{Name: &name, WithDecryption: aws.Bool(true)})
	if err != nil {
		return nil, err
	}
	if out.Parameter == nil || aws.ToString(out.Parameter.Name) == "" {
		return nil, manager.NotNamed(name)
	}
	return []byte(aws.ToString(out.Parameter.Value)), nil
}

// faults are the answers of both services.
type faults struct{}

// meanings are what those error codes mean that come with status 400, as most
// do. https://docs.aws.amazon.com/secretsmanager/latest/apireference/CommonErrors.html
var meanings = map[string]nstance.Code{
	"ResourceNotFoundException": nstance.NotFound,
	"ParameterNotFound":         nstance.NotFound,

	"AccessDeniedException":          nstance.Denied,
	"DecryptionFailure":              nstance.Denied, // KMS does not permit it
	"ExpiredTokenException":          nstance.Denied,
	"IncompleteSignature":            nstance.Denied,
	"InvalidClientTokenId":           nstance.Denied,
	"InvalidSignatureException":      nstance.Denied,
	"MissingAuthenticationToken":     nstance.Denied,
	"NotAuthorized":                  nstance.Denied,
	"OptInRequired":                  nstance.Denied,
	"RequestExpired":                 nstance.Denied,
	"UnrecognizedClientException":    nstance.Denied,
	"RequestLimitExceeded":           nstance.Throttled,
	"ThrottlingException":            nstance.Throttled,
	"TooManyRequestsException":       nstance.Throttled,
	"InternalServerError":            nstance.Unavailable,
	"InternalServiceError":           nstance.Unavailable,
	"InternalServiceErrorException":  nstance.Unavailable,
	"ServiceUnavailable":             nstance.Unavailable,
	"KMSInternalException":           nstance.Unavailable,
	"DependencyTimeoutException":     nstance.Unavailable,
	"RequestTimeoutException":        nstance.Unavailable,
	"IDPCommunicationErrorException": nstance.Unavailable,
}

// Fault implements manager.Driver.
func (faults) Fault(err error) (manager.Fault, bool) {
	answer, ok := errors.AsType[*http.ResponseError](err)
	if !ok || answer.HTTPStatusCode() < 300 {
		return manager.Fault{}, false
	}
	f := manager.Fault{Status: answer.HTTPStatusCode()}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		f.Word = api.ErrorCode()
		f.Means = meanings[f.Word]
	}
	return f, true
}
