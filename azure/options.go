package azure

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/proxy"
)

// Options are what shard.provider.options says, and what a program that embeds
// the provider can set beside.
type Options struct {
	Subscription  string `json:"subscription_id" doc:"ID of the subscription" required:"true"`
	ResourceGroup string `json:"resource_group" doc:"resource group of the machines; it belongs to this installation alone" required:"true"`
	Location      string `json:"location" doc:"Azure's name of the region, such as westeurope" default:"shard.provider.region"`
	Credential    string `json:"credential" doc:"where tokens come from; default tries the environment, a workload identity, a managed identity and the az command, in this order" default:"default" enum:"default|environment|workload_identity|managed_identity|cli|token_file"`
	ClientID      string `json:"client_id" doc:"client ID of the user-assigned managed identity to use"`
	TokenFile     string `json:"token_file" doc:"file with a bearer token, which another program renews; it is read for each request"`
	Cloud         string `json:"cloud" doc:"which of Azure's clouds" default:"public" enum:"public|government|china"`
	Endpoint      string `json:"endpoint" doc:"address of Resource Manager, for private endpoints and tests; http only on loopback" default:"the cloud's own"`
	Interface     string `json:"network_interface" doc:"ARM ID of the network interface of the machine on which this server runs; it takes the leader's address"`
	CAFile        string `json:"ca_file" doc:"file with certificates in PEM that are trusted in addition to the system's"`

	// Zone is what machines are placed in when their args name none; empty: none.
	Zone string `json:"-"`

	// Tokens replaces Credential. Transport replaces the HTTP client. Log gets what
	// a caller does not see. All may be nil.
	Tokens    azcore.TokenCredential `json:"-"`
	Transport policy.Transporter     `json:"-"`
	Log       *slog.Logger           `json:"-"`
}

var (
	groupName = regexp.MustCompile(`^[\p{L}\p{N}_().-]{1,90}$`)
	uuid      = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	nicID     = regexp.MustCompile(`(?i)^/subscriptions/[^/]+/resourceGroups/([^/]+)/providers/Microsoft\.Network/networkInterfaces/([^/]+)$`)
	zoneName  = regexp.MustCompile(`^[1-9]$`)
)

// resolve returns a checked copy of o.
func (o Options) resolve() (Options, error) {
	const at = "options."
	o.Location = strings.ToLower(strings.ReplaceAll(o.Location, " ", ""))
	o.Credential, o.Cloud = cmp.Or(o.Credential, "default"), cmp.Or(o.Cloud, "public")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case !uuid.MatchString(o.Subscription):
		return o, nstance.FieldError(at+"subscription_id", "write the subscription's ID, as az account show prints it", "%q is no ID of a subscription", o.Subscription)
	case !groupName.MatchString(o.ResourceGroup) || strings.HasSuffix(o.ResourceGroup, "."):
		return o, nstance.FieldError(at+"resource_group", "write the name of a resource group that has been made for these machines", "%q is no name of a resource group", o.ResourceGroup)
	case o.Location == "":
		return o, nstance.FieldError("shard.provider.region", "write Azure's name of the region, such as westeurope", "is empty")
	case clouds[o.Cloud].ActiveDirectoryAuthorityHost == "":
		return o, nstance.FieldError(at+"cloud", "use public, government or china", "%q is none of Azure's clouds", o.Cloud)
	case o.Zone != "" && !zoneName.MatchString(o.Zone):
		return o, nstance.FieldError("shard.provider.zone", "use 1, 2 or 3, or leave it empty", "%q is no zone of Azure", o.Zone)
	case o.Interface != "" && !nicID.MatchString(o.Interface):
		return o, nstance.FieldError(at+"network_interface", "use its ARM ID", "%q is no ARM ID of a network interface", o.Interface)
	case o.Credential == "token_file" && o.TokenFile == "":
		return o, nstance.FieldError(at+"token_file", "name the file", "is empty")
	}
	return o, o.checkEndpoint(at + "endpoint")
}

// clouds are where Resource Manager and its tokens are.
var clouds = map[string]cloud.Configuration{
	"public": cloud.AzurePublic, "government": cloud.AzureGovernment, "china": cloud.AzureChina,
}

func (o Options) checkEndpoint(field string) error {
	if o.Endpoint == "" {
		return nil
	}
	u, err := url.Parse(o.Endpoint)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.RawQuery != "" || u.User != nil:
		return nstance.FieldError(field, "use https://host or https://host:port", "is not an address of Resource Manager")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return nstance.FieldError(field, "use https", "%q would send tokens in clear text", u.Redacted())
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// credential returns where tokens come from.
func (o Options) credential() (azcore.TokenCredential, error) {
	if o.Tokens != nil {
		return o.Tokens, nil
	}
	cred, err := o.chain()
	if err != nil {
		return nil, nstance.Errorf(nstance.Denied, "credentials of Azure: %w", err)
	}
	return cred, nil
}

func (o Options) chain() (azcore.TokenCredential, error) {
	client := azcore.ClientOptions{Cloud: clouds[o.Cloud], Transport: proxy.Client()}
	switch o.Credential {
	case "environment":
		return azidentity.NewEnvironmentCredential(&azidentity.EnvironmentCredentialOptions{ClientOptions: client})
	case "workload_identity":
		return azidentity.NewWorkloadIdentityCredential(&azidentity.WorkloadIdentityCredentialOptions{ClientOptions: client, ClientID: o.ClientID})
	case "managed_identity":
		options := &azidentity.ManagedIdentityCredentialOptions{ClientOptions: client}
		if o.ClientID != "" {
			options.ID = azidentity.ClientID(o.ClientID)
		}
		return azidentity.NewManagedIdentityCredential(options)
	case "cli":
		return azidentity.NewAzureCLICredential(nil)
	case "token_file":
		return tokenFile(o.TokenFile), nil
	case "default":
		return azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: client})
	}
	return nil, nstance.FieldError("options.credential", "see docs/providers/azure.md", "%q is not known", o.Credential)
}

// A tokenFile is a file with a bearer token.
type tokenFile string

// maxToken is how long a token file may be, in bytes.
const maxToken = 64 << 10

// GetToken implements [azcore.TokenCredential]. What it returns is used for one
// minute at most, then the file is read again.
func (f tokenFile) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	info, err := os.Stat(string(f))
	if err != nil {
		return azcore.AccessToken{}, nstance.Errorf(nstance.Denied, "token file: %w", err)
	}
	if info.Size() > maxToken {
		return azcore.AccessToken{}, nstance.Errorf(nstance.Denied, "token file %s is longer than %d bytes", string(f), maxToken)
	}
	b, err := os.ReadFile(string(f))
	if err != nil {
		return azcore.AccessToken{}, nstance.Errorf(nstance.Denied, "token file: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return azcore.AccessToken{}, nstance.Errorf(nstance.Denied, "token file %s is empty", string(f))
	}
	return azcore.AccessToken{Token: token, ExpiresOn: time.Now().Add(time.Minute)}, nil
}

// client returns how the SDK's clients call. They repeat nothing by themselves: a
// throttled create would be hidden from the budget of creates, and an accepted PUT
// that is repeated fails as one that exists.
func (o Options) client() (*arm.ClientOptions, error) {
	config := clouds[o.Cloud]
	if o.Endpoint != "" {
		config.Services = map[cloud.ServiceName]cloud.ServiceConfiguration{cloud.ResourceManager: {
			Endpoint: strings.TrimRight(o.Endpoint, "/"), Audience: clouds[o.Cloud].Services[cloud.ResourceManager].Audience,
		}}
	}
	transport, err := o.transport()
	if err != nil {
		return nil, err
	}
	return &arm.ClientOptions{
		DisableRPRegistration: true,
		ClientOptions: policy.ClientOptions{
			Cloud: config, Transport: transport, Retry: policy.RetryOptions{MaxRetries: -1},
			PerCallPolicies:                 []policy.Policy{shownPolicy{}},
			Telemetry:                       policy.TelemetryOptions{ApplicationID: "nstance"},
			InsecureAllowCredentialWithHTTP: strings.HasPrefix(o.Endpoint, "http://"),
		},
	}, nil
}

func (o Options) transport() (policy.Transporter, error) {
	if o.Transport != nil {
		return o.Transport, nil
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 100
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, nstance.FieldError("options.ca_file", "name a readable file", "%v", err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, nstance.FieldError("options.ca_file", "write certificates in PEM", "%s has none", o.CAFile)
		}
		t.TLSClientConfig.RootCAs = pool
	}
	return &http.Client{Transport: t}, nil
}
