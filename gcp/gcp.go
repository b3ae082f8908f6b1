// Package gcp is a provider for Google Compute Engine, through
// cloud.google.com/go/compute/apiv1 over REST.
//
// A provider works in one zone of one project, or in several zones of one region
// with [Options.Zones]. A machine's name is its instance ID, and its marks are labels.
// Names are unique per zone only: that a machine is absent is proved when every zone
// has answered.
//
// Create returns when the cloud has accepted it; that it failed afterwards, for
// want of capacity say, stands in the cloud's operation, where Get looks when the
// machine is absent.
//
// A [Provider] is safe for concurrent use.
package gcp

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"

	compute "cloud.google.com/go/compute/apiv1"
	"google.golang.org/api/option"
	"google.golang.org/api/transport"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp/internal/adc"
)

// Options are shard.provider.options.
type Options struct {
	Project         string   `json:"project" required:"true" doc:"ID of the project, not its number"`
	Zones           []string `json:"zones,omitempty" doc:"further zones of the region in which machines may be; subnets name theirs, as in default?zone=us-central1-b" default:"only shard.provider.zone"`
	Endpoint        string   `json:"endpoint,omitempty" doc:"base URL of the API, for private endpoints and tests" default:"https://compute.googleapis.com"`
	CredentialsFile string   `json:"credentials_file,omitempty" doc:"file with credentials; without it Application Default Credentials are used: those of the machine's service account, or GOOGLE_APPLICATION_CREDENTIALS"`
	Instance        string   `json:"instance,omitempty" doc:"name of the machine on which the server runs, for the leader address" default:"asked of the metadata service"`

	// HTTP makes the calls, with credentials of its own. Nil: a client with the
	// credentials above.
	HTTP *http.Client `json:"-"`

	// Log is told of what no caller sees. Nil discards.
	Log *slog.Logger `json:"-"`
}

// A Provider makes machines in the zones of its options. It is safe for concurrent use, owns no
// goroutine and needs no closing.
type Provider struct {
	o     Options
	zone  string   // of the server, and of machines whose subnet names none
	zones []string // all, sorted
	http  *http.Client
	host  string // base URL of the API

	instances  *compute.InstancesClient
	operations *compute.ZoneOperationsClient
	types      *compute.MachineTypesClient
	images     *compute.ImagesClient
	subnets    *compute.SubnetworksClient
	negs       *compute.NetworkEndpointGroupsClient
	groups     *compute.InstanceGroupsClient

	clock      *cloudClock
	failed     failedChanges
	seen       zoneMemory
	migrations sync.Map // by machine type: whether its machines move to other hosts
}

var (
	_ nstance.Provider      = (*Provider)(nil)
	_ nstance.AccountNamer  = (*Provider)(nil)
	_ nstance.NodeNamer     = (*Provider)(nil)
	_ nstance.ImageResolver = (*Provider)(nil)
	_ nstance.SubnetCounter = (*Provider)(nil)
	_ nstance.SubnetLocator = (*Provider)(nil)
	_ nstance.TypeLister    = (*Provider)(nil)
	_ nstance.Balancer      = (*Provider)(nil)
	_ nstance.AddressMover  = (*Provider)(nil)
	_ nstance.Parker        = (*Provider)(nil)
	_ nstance.ConsoleReader = (*Provider)(nil)
)

const publicEndpoint = "https://compute.googleapis.com"

var (
	projectPattern = regexp.MustCompile(`^(([a-z0-9-]+\.)+[a-z]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]$`)
	zonePattern    = regexp.MustCompile(`^([a-z]+-[a-z]+[0-9]+)-[a-z0-9]+$`) // also us-central1-ai1a, an AI zone
)

// New returns a provider of a zone, and of the further ones in o. It reads credentials, and asks the cloud
// nothing but, where no file has any, for its metadata service. Fails with Invalid when an option is wrong, Denied when there are no
// credentials.
func New(ctx context.Context, zone string, o *Options) (*Provider, error) {
	p := &Provider{zone: zone, host: publicEndpoint}
	if o != nil {
		p.o = *o
	}
	if err := p.o.check(zone); err != nil {
		return nil, err
	}
	p.zones = p.o.allZones(zone)
	if p.o.Endpoint != "" {
		p.host = strings.TrimSuffix(p.o.Endpoint, "/")
	}
	if p.o.Log == nil {
		p.o.Log = slog.New(slog.DiscardHandler)
	}
	if p.http = p.o.HTTP; p.http == nil {
		client, err := p.o.client(ctx, p.host)
		if err != nil {
			return nil, err
		}
		p.http = client
	}
	client := *p.http
	p.clock = &cloudClock{base: client.Transport}
	client.Transport = p.clock
	p.http = &client
	return p, p.connect(ctx)
}

func (o *Options) check(zone string) error {
	switch {
	case !projectPattern.MatchString(o.Project):
		return nstance.FieldError("shard.provider.options.project", "write the project's ID, such as my-project", "%.64q is no project ID", o.Project)
	case !zonePattern.MatchString(zone):
		return nstance.FieldError("shard.provider.zone", "write a zone, such as us-central1-a", "%.64q is no zone", zone)
	case o.Endpoint != "" && !strings.HasPrefix(o.Endpoint, "http://") && !strings.HasPrefix(o.Endpoint, "https://"):
		return nstance.FieldError("shard.provider.options.endpoint", "write a URL such as "+publicEndpoint, "%.64q is no URL", o.Endpoint)
	case o.Instance != "" && !namePattern.MatchString(o.Instance):
		return nstance.FieldError("shard.provider.options.instance", "write the name of the server's machine", "%.64q is no name", o.Instance)
	}
	return o.checkZones(zone)
}

// client returns an HTTP client that adds credentials.
func (o *Options) client(ctx context.Context, host string) (*http.Client, error) {
	opts := []option.ClientOption{option.WithScopes(compute.DefaultAuthScopes()...)}
	if o.CredentialsFile != "" {
		kind, err := credentialsType(o.CredentialsFile)
		if err != nil {
			return nil, err
		}
		opts = append(opts, option.WithAuthCredentialsFile(kind, o.CredentialsFile))
	} else if err := adc.Available(ctx); err != nil {
		return nil, err
	}
	creds, err := transport.Creds(adc.Context(ctx), opts...)
	if err != nil {
		return nil, nstance.Errorf(nstance.Denied, "no credentials: %w", err)
	}
	client, _, err := transport.NewHTTPClient(context.WithoutCancel(ctx), option.WithCredentials(creds), option.WithEndpoint(host))
	if err != nil {
		return nil, nstance.Errorf(nstance.Denied, "no credentials: %w", err)
	}
	return adc.NewTokens(creds.TokenSource).Client(adc.Stay(client)), nil
}

// credentialsType reads which kind of credentials a file holds. Only kinds that
// are known are used: others could make the process call any address.
func credentialsType(file string) (option.CredentialsType, error) {
	const field = "shard.provider.options.credentials_file"
	b, err := os.ReadFile(file)
	if err != nil {
		return "", nstance.FieldError(field, "name a file that can be read", "%v", err)
	}
	var head struct {
		Type option.CredentialsType `json:"type"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return "", nstance.FieldError(field, "name a file with credentials in JSON", "%s does not hold JSON", file)
	}
	switch head.Type {
	case option.ServiceAccount, option.AuthorizedUser, option.ImpersonatedServiceAccount, option.ExternalAccount:
		return head.Type, nil
	}
	return "", nstance.FieldError(field, "use service_account, authorized_user, impersonated_service_account or external_account", "credentials of type %.32q are not known", head.Type)
}
