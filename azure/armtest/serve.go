package armtest

import (
	"context"
	"crypto/rand"
	"errors"
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
	c     *Cloud
	r     *http.Request
	route *route
	path  map[string]string // what the route's pattern matched, by name
	op    string            // ID of the long-running operation that it has started

	actions []string // permitted; nil: all
}

// ServeHTTP implements http.Handler.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("x-ms-request-id", rand.Text())
	if c.o.Latency > 0 {
		if !sleep.For(r.Context(), c.o.Latency) {
			return
		}
	}
	if c.serveConsole(w, r) {
		return
	}
	k, err := c.newCall(r)
	if err != nil {
		err.ServeHTTP(w, r)
		return
	}
	c.Faults.Serve(w, r, k.route.name, k.serve)
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
	k := &call{c: c, r: r, actions: actions}
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
		return k.c.known(k.path)
	}
	return refuse(http.StatusNotFound, "InvalidResourceType", "The resource type of %s %s could not be found.", k.r.Method, k.r.URL.Path)
}

// known refuses other subscriptions and resource groups.
func (c *Cloud) known(path map[string]string) *Refusal {
	if !strings.EqualFold(path["subscription"], c.o.Subscription) {
		return refuse(http.StatusNotFound, "SubscriptionNotFound", "The subscription '%s' could not be found.", path["subscription"])
	}
	group, ok := path["group"]
	if !ok || strings.EqualFold(group, c.o.ResourceGroup) {
		return nil
	}
	if c.o.mentions("/resourcegroups/" + strings.ToLower(group) + "/") {
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
func (k *call) serve(w http.ResponseWriter, r *http.Request) {
	if err := k.throttled(); err != nil {
		err.ServeHTTP(w, r)
		return
	}
	if k.route.serve != nil {
		k.route.serve(k, w)
		return
	}
	if err := k.strict(); err != nil {
		err.ServeHTTP(w, r)
		return
	}
	// Without cancel: the fake server panics when the context ends while it works.
	req := r.WithContext(context.WithValue(context.WithoutCancel(r.Context()), runtime.CtxAPINameKey{}, k.route.name))
	resp, err := k.route.server(k).Do(req)
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		refusal.ServeHTTP(w, r)
		return
	}
	if err != nil {
		refuse(http.StatusBadRequest, "InvalidRequestContent", "%v", err).ServeHTTP(w, r)
		return
	}
	defer resp.Body.Close()
	maps.Copy(w.Header(), resp.Header)
	w.Header().Del("Fake-Poller-Status") // Azure names the operation instead
	k.nameOperation(w.Header())
	w.WriteHeader(resp.StatusCode)
	io.Copy(w, resp.Body) //nolint:errcheck // the client left
}
