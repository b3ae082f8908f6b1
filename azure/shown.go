package azure

import (
	"bytes"
	"encoding/json"
	"net/http"
	"path"
	"regexp"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"

	"github.com/nstance-go/nstance"
)

// resourcePath is that of one resource, and not of a list; operations are in locations.
var resourcePath = regexp.MustCompile(`(?i)/providers/microsoft\.[^/]+(/[^/]+/[^/]+)+$`)

var operationPath = regexp.MustCompile(`(?i)/providers/microsoft\.[^/]+/locations/`)

// someList is in a page of a list: Azure writes an empty one too.
var someList = regexp.MustCompile(`"value"\s*:\s*\[`)

// A shownPolicy fails a read whose answer shows neither a resource nor a list, such as that of a
// proxy. The SDK takes any object, and nothing at all, for one without content: so for a machine
// without marks, a pool without members, or an image without versions.
type shownPolicy struct{}

// Do implements [policy.Policy].
func (shownPolicy) Do(r *policy.Request) (*http.Response, error) {
	resp, err := r.Next()
	at := r.Raw().URL.Path
	if err != nil || r.Raw().Method != http.MethodGet || resp.StatusCode != http.StatusOK || operationPath.MatchString(at) {
		return resp, err
	}
	body, err := runtime.Payload(resp)
	switch {
	case err != nil:
		return nil, err
	case resourcePath.MatchString(at) && !showsResource(body), !resourcePath.MatchString(at) && !someList.Match(body):
		return nil, nstance.Errorf(nstance.Unavailable, "azure: the answer shows nothing of %s", path.Base(at))
	}
	return resp, nil
}

func showsResource(body []byte) bool {
	var said struct {
		ID         string `json:"id"`
		Properties any    `json:"properties"`
	}
	return json.Unmarshal(bytes.TrimPrefix(body, []byte("\xef\xbb\xbf")), &said) == nil && said.ID != "" && said.Properties != nil
}
