package gcp

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
)

// connect makes the SDK's clients, all with one HTTP client. Their own repeats
// and timeouts are off: reads are repeated by [provider.Client], creates by the
// reconciler.
func (p *Provider) connect(ctx context.Context) error {
	opts := p.options(p.http)
	var err error
	if p.instances, err = compute.NewInstancesRESTClient(ctx, opts...); err != nil {
		return err
	}
	if p.operations, err = compute.NewZoneOperationsRESTClient(ctx, opts...); err != nil {
		return err
	}
	if p.types, err = compute.NewMachineTypesRESTClient(ctx, opts...); err != nil {
		return err
	}
	if p.images, err = compute.NewImagesRESTClient(ctx, opts...); err != nil {
		return err
	}
	if p.subnets, err = compute.NewSubnetworksRESTClient(ctx, opts...); err != nil {
		return err
	}
	if p.negs, err = compute.NewNetworkEndpointGroupsRESTClient(ctx, opts...); err != nil {
		return err
	}
	if p.groups, err = compute.NewInstanceGroupsRESTClient(ctx, opts...); err != nil {
		return err
	}
	// In place: the SDK has a pointer of its own to each.
	*p.instances.CallOptions = compute.InstancesCallOptions{}
	*p.operations.CallOptions = compute.ZoneOperationsCallOptions{}
	*p.types.CallOptions = compute.MachineTypesCallOptions{}
	*p.images.CallOptions = compute.ImagesCallOptions{}
	*p.subnets.CallOptions = compute.SubnetworksCallOptions{}
	*p.negs.CallOptions = compute.NetworkEndpointGroupsCallOptions{}
	*p.groups.CallOptions = compute.InstanceGroupsCallOptions{}
	return nil
}

func (p *Provider) options(client *http.Client) []option.ClientOption {
	return []option.ClientOption{option.WithHTTPClient(client), option.WithEndpoint(p.host)}
}

// bound returns options for a client whose requests end with ctx. The SDK's
// methods that list make their requests without the caller's context
// (InstancesClient.List of compute/apiv1 v1.74.1), so each listing gets a client
// of its own.
func (p *Provider) bound(ctx context.Context) []option.ClientOption {
	client := *p.http
	client.Transport = boundTransport{ctx, p.http.Transport}
	return p.options(&client)
}

type boundTransport struct {
	ctx  context.Context
	base http.RoundTripper // nil: the default
}

func (b boundTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := b.base
	if base == nil {
		base = http.DefaultTransport
	}
	return base.RoundTrip(r.WithContext(b.ctx))
}

// maxPage is the most that a page of a list holds (instances.list, maxResults).
const maxPage = 500

// noResults is the one warning that says nothing: a page may be empty.
const noResults = "NO_RESULTS_ON_PAGE"

// A pageFetch requests one page: InternalFetch of an iterator of the SDK. A pager makes several
// requests for a page of its own, and shows the warning of the last one only
// (Pager.NextPage of google.golang.org/api v0.307.0).
type pageFetch[T any] func(pageSize int, pageToken string) (items []T, next string, err error)

// eachPage calls visit with the pages of a list until one is the last, or visit
// says that it is enough. what is what is listed, or the path of what is listed
// from: that this was not found is NotFound. page returns the answer just read: a list with a
// warning is not whole, and without a kind it is none.
func eachPage[T any](ctx context.Context, what string, fetch pageFetch[T], page func() any, visit func([]T) bool) error {
	token := ""
	for {
		if err := ctx.Err(); err != nil {
			return nstance.Errorf(nstance.Unavailable, "nothing was sent: %w", err)
		}
		items, next, err := fetch(maxPage, token)
		if err != nil {
			return classify(err, what, false)
		}
		if err := checkPage(what, token, next, page().(listAnswer)); err != nil {
			return err
		}
		if !visit(items) || next == "" {
			return nil
		}
		token = next
	}
}

// A listAnswer is one page of a list.
type listAnswer interface {
	GetKind() string
	GetWarning() *computepb.Warning
}

// checkPage fails when a page does not belong to a whole list: another server may have
// answered, the cloud may say that something is missing, or the list may not go on.
func checkPage(what, token, next string, is listAnswer) error {
	switch warning := is.GetWarning().GetCode(); {
	case is.GetKind() == "":
		return nstance.Errorf(nstance.Unavailable, "the answer is no list of %s", what)
	case warning != "" && warning != noResults:
		return incomplete(what, warning)
	case next != "" && next == token:
		return nstance.Errorf(nstance.Unavailable, "the list of %s goes on with the same page", what)
	}
	return nil
}

// shown fails when an answer shows no resource: the SDK takes any object for one.
func shown(what string, is interface{ GetKind() string }, err error) error {
	if err == nil && is.GetKind() == "" {
		return nstance.Errorf(nstance.Unavailable, "the answer does not show %s", what)
	}
	return err
}

// incomplete refuses a list of which the cloud says that something is missing.
// Since API version 2026-09-01 an unreachable part no longer fails a list.
func incomplete(what, code string) error {
	if code == "LIST_OVERHEAD_QUOTA_EXCEED" {
		return nstance.Errorf(nstance.Throttled, "the list of %s is not whole: %s", what, code)
	}
	return nstance.Errorf(nstance.Unavailable, "the list of %s is not whole: %s", what, code)
}

// send makes a request that the SDK cannot make.
func (p *Provider) send(ctx context.Context, method, path string, query url.Values, body any, out proto.Message) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	q, err := http.NewRequestWithContext(ctx, method, p.host+"/compute/v1/"+path+"?"+query.Encode(), bytes.NewReader(text))
	if err != nil {
		return err
	}
	q.Header.Set("Content-Type", "application/json")
	r, err := p.http.Do(q)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if err := googleapi.CheckResponse(r); err != nil {
		return err
	}
	answer, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(answer, out)
}
