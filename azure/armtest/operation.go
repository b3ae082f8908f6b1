package armtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	azfake "github.com/Azure/azure-sdk-for-go/sdk/azcore/fake"

	"github.com/nstance-go/nstance/provider/testcloud"
)

// maxOperations bounds the operations that are remembered.
const maxOperations = 20_000

// An operationLog is the long-running operations.
type operationLog struct {
	timers  *testcloud.Timers
	serial  int
	byID    map[string]*operation
	order   []string
	failing map[string][]failure // of the next operations, by the call that begins them
}

// An operation is what is still being done after a request was accepted. Its states
// are those of "Track asynchronous Azure operations" (Azure Resource Manager).
type operation struct {
	ID     string  `json:"name"`
	Status string  `json:"status"`
	Error  *Detail `json:"error,omitempty"`
}

// The states of an operation.
const (
	opRunning   = "InProgress"
	opSucceeded = "Succeeded"
	opFailed    = "Failed"
	opCanceled  = "Canceled"
)

// begin makes an operation, and has the call name it.
func (k *call) begin() *operation {
	l := k.operations
	l.serial++
	op := &operation{ID: fmt.Sprintf("op-%08d", l.serial), Status: opRunning}
	l.byID[op.ID] = op
	l.order = append(l.order, op.ID)
	if len(l.order) > maxOperations {
		delete(l.byID, l.order[0])
		l.order = l.order[1:]
	}
	k.op = op.ID
	return op
}

// beginNetwork makes one that takes as long as those of network interfaces do, and ends
// with do.
func (k *call) beginNetwork(do func()) {
	op := k.begin()
	k.operations.timers.After(k.o.Network, func() {
		do()
		op.end(opSucceeded, nil)
	})
}

// beginPut makes one that carries out a PUT, whose resource is in state meanwhile. One that is
// to fail does so after the PUT was answered.
func (k *call) beginPut(state *string) {
	*state = updating
	next := k.operations.failing[k.route.name]
	if len(next) == 0 {
		k.beginNetwork(func() { *state = succeeded })
		return
	}
	k.operations.failing[k.route.name] = next[1:]
	op := k.begin()
	k.operations.timers.After(max(k.o.Network, time.Millisecond), func() {
		*state = failed
		op.end(opFailed, &Detail{next[0].code, next[0].message})
	})
}

// end settles an operation once.
func (o *operation) end(status string, cause *Detail) {
	if o.Status == opRunning {
		o.Status, o.Error = status, cause
	}
}

// nameOperation sends the client the address of the call's operation.
func (k *call) nameOperation(h http.Header) {
	if k.op == "" {
		return
	}
	namespace := "Microsoft.Compute"
	if strings.Contains(strings.ToLower(k.r.URL.Path), "/microsoft.network/") {
		namespace = "Microsoft.Network"
	}
	h.Set("Azure-AsyncOperation", fmt.Sprintf("%s/subscriptions/%s/providers/%s/locations/%s/operations/%s?api-version=%s",
		k.base(), k.o.Subscription, namespace, k.o.Location, k.op, k.r.URL.Query().Get("api-version")))
}

// base is the address under which the client has found the cloud.
func (k *call) base() string {
	if k.r.TLS == nil {
		return "http://" + k.r.Host
	}
	return "https://" + k.r.Host
}

// An operationCall reads an operation, for which the SDK has no fake server.
type operationCall struct{ *call }

// Do implements doer.
func (k operationCall) Do(*http.Request) (*http.Response, error) {
	op := k.operations.byID[k.path["operation"]]
	if op == nil {
		return nil, refuse(http.StatusNotFound, "NotFound", "The operation could not be found.")
	}
	b, err := json.Marshal(op)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {jsonType}}, Body: io.NopCloser(bytes.NewReader(b))}, err
}

// answered is the answer of a call that changes something.
func answered[T any](status int, body T, err *Refusal) (p azfake.PollerResponder[T], e azfake.ErrorResponder) {
	if err != nil {
		e.SetError(err)
		return p, e
	}
	p.SetTerminalResponse(status, body, nil)
	return p, e
}

// accepted is the same without a body.
func accepted[T any](status int, err *Refusal) (p azfake.PollerResponder[T], e azfake.ErrorResponder) {
	if err != nil {
		e.SetError(err)
		return p, e
	}
	p.AddNonTerminalResponse(status, nil)
	return p, e
}

// found is the answer of a read.
func found[T any](body T, err *Refusal) (r azfake.Responder[T], e azfake.ErrorResponder) {
	if err != nil {
		e.SetError(err)
		return r, e
	}
	r.SetResponse(http.StatusOK, body, nil)
	return r, e
}
