package armtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"

	"github.com/nstance-go/nstance/internal/sleep"
)

// A call is one request while it is served.
type call struct {
	o          *Options
	operations *operationLog
	r          *http.Request
	route      *route
	path       map[string]string // what the route's pattern matched, by name
	op         string            // ID of the long-running operation that it has started

	actions []string // permitted; nil: all
}

// id is the ARM ID of a resource of a kind such as Microsoft.Compute/disks.
func (k *call) id(kind, name string) string {
	return fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/%s/%s", k.o.Subscription, k.path["group"], kind, name)
}

func (k *call) notFound(kind, name string) *Refusal {
	return refuse(http.StatusNotFound, "ResourceNotFound", "The Resource '%s/%s' under resource group '%s' was not found.", kind, name, k.path["group"])
}

// ServeHTTP implements http.Handler.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("x-ms-request-id", rand.Text())
	if c.o.Latency > 0 {
		if !sleep.For(r.Context(), c.o.Latency) {
			return
		}
	}
	if id, ok := strings.CutPrefix(r.URL.Path, consolePath); ok {
		c.serveConsole(w, r, id)
		return
	}
	k, err := c.newCall(r)
	if err != nil {
		err.ServeHTTP(w, r)
		return
	}
	c.Faults.Serve(w, r, k.route.name, func(w http.ResponseWriter, r *http.Request) { c.serve(k, w, r) })
}

// newCall checks what Azure checks before it looks at the request itself.
func (c *Cloud) newCall(r *http.Request) (*call, *Refusal) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" {
		return nil, refuse(http.StatusUnauthorized, "AuthenticationFailed", "Authentication failed. The 'Authorization' header is missing.")
	}
	actions, known := c.o.Tokens[token]
	if c.o.Tokens != nil && !known {
		return nil, refuse(http.StatusUnauthorized, "InvalidAuthenticationToken", "The access token is invalid.")
	}
	query := r.URL.Query()
	if !apiVersion.MatchString(query.Get("api-version")) {
		return nil, refuse(http.StatusBadRequest, "MissingApiVersionParameter", "The api-version query parameter (?api-version=) is required for all requests.")
	}
	k := &call{o: c.o, operations: c.operations, r: r, actions: actions}
	if err := k.match(); err != nil {
		return nil, err
	}
	for name := range query {
		if name != "api-version" && !slices.Contains(k.route.query, name) {
			return nil, refuse(http.StatusBadRequest, "InvalidQueryParameter", "The query parameter %q is not known.", name)
		}
	}
	return k, k.permitted(k.route.action, r.URL.Path)
}

var apiVersion = regexp.MustCompile(`^20\d\d-\d\d-\d\d$`)

// match finds the route of the request.
func (k *call) match() *Refusal {
	for i := range routes {
		m := routes[i].pattern.FindStringSubmatch(k.r.URL.Path)
		if m == nil || routes[i].method != k.r.Method {
			continue
		}
		k.route, k.path = &routes[i], map[string]string{}
		for j, name := range routes[i].pattern.SubexpNames() {
			k.path[name] = m[j]
		}
		return k.o.known(k.path)
	}
	return refuse(http.StatusNotFound, "InvalidResourceType", "The resource type of %s %s could not be found.", k.r.Method, k.r.URL.Path)
}

// known refuses other subscriptions and resource groups.
func (o *Options) known(path map[string]string) *Refusal {
	if !strings.EqualFold(path["subscription"], o.Subscription) {
		return refuse(http.StatusNotFound, "SubscriptionNotFound", "The subscription '%s' could not be found.", path["subscription"])
	}
	group, ok := path["group"]
	if !ok || strings.EqualFold(group, o.ResourceGroup) {
		return nil
	}
	if o.mentions("/resourcegroups/" + strings.ToLower(group) + "/") {
		return nil
	}
	return refuse(http.StatusNotFound, "ResourceGroupNotFound", "Resource group '%s' could not be found.", group)
}

// mentions reports whether the ID of something in the options has part in it.
func (o *Options) mentions(part string) bool {
	ids := append(slices.Collect(maps.Keys(o.Subnets)), o.Pools...)
	for _, i := range o.Images {
		ids = append(ids, i.ID)
	}
	return slices.ContainsFunc(ids, func(id string) bool { return strings.Contains(strings.ToLower(id), part) })
}

// permitted refuses an action on a resource that the caller's roles do not name.
func (k *call) permitted(action, id string) *Refusal {
	if action == "" || k.actions == nil || slices.Contains(k.actions, action) {
		return nil
	}
	return refuse(http.StatusForbidden, "AuthorizationFailed",
		"The client does not have authorization to perform action '%s' over scope '%s' or the scope is invalid.", action, id)
}

// linked refuses the use of another resource.
func (k *call) linked(action, id string) *Refusal {
	if r := k.permitted(action, id); r != nil {
		return refuse(http.StatusForbidden, "LinkedAuthorizationFailed",
			"The client has permission on scope '%s', however the linked scope '%s' needs '%s'.", k.r.URL.Path, id, action)
	}
	return nil
}

// serve lets the SDK's fake server parse the request and write the answer.
func (c *Cloud) serve(k *call, w http.ResponseWriter, r *http.Request) {
	err := c.throttled(k)
	if err == nil {
		err = k.strict()
	}
	if err != nil {
		err.ServeHTTP(w, r)
		return
	}
	resp, err := c.do(k, r)
	if err != nil {
		err.ServeHTTP(w, r)
		return
	}
	defer resp.Body.Close()
	maps.Copy(w.Header(), resp.Header)
	w.Header().Del("Fake-Poller-Status") // Azure names the operation instead
	k.nameOperation(w.Header())
	w.WriteHeader(resp.StatusCode)
	io.Copy(w, resp.Body) //nolint:errcheck // the client left
}

// do carries out a call under the lock.
func (c *Cloud) do(k *call, r *http.Request) (*http.Response, *Refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Without cancel: the fake server panics when the context ends while it works.
	req := r.WithContext(context.WithValue(context.WithoutCancel(r.Context()), runtime.CtxAPINameKey{}, k.route.name))
	resp, err := k.route.server(c, k).Do(req)
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		return nil, refusal
	}
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "InvalidRequestContent", "%v", err)
	}
	return resp, nil
}

// exists reports whether a resource is there that machines refer to.
func (o *Options) exists(id string) bool {
	return o.Resources == nil || slices.ContainsFunc(o.Resources, func(r string) bool { return strings.EqualFold(r, id) })
}
