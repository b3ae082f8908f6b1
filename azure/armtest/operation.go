package armtest

import (
	"fmt"
	"net/http"
	"strings"

	azfake "github.com/Azure/azure-sdk-for-go/sdk/azcore/fake"
)

// maxOperations bounds the operations that are remembered.
const maxOperations = 20_000

// operations are the long-running ones, by ID.
type operations struct {
	byID  map[string]*operation
	order []string
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

// begin makes an operation, and has the call name it. It needs the cloud's lock.
func (k *call) begin() *operation {
	c := k.c
	c.serial++
	op := &operation{ID: fmt.Sprintf("op-%08d", c.serial), Status: opRunning}
	if c.operations.byID == nil {
		c.operations.byID = map[string]*operation{}
	}
	c.operations.byID[op.ID] = op
	c.operations.order = append(c.operations.order, op.ID)
	if len(c.operations.order) > maxOperations {
		delete(c.operations.byID, c.operations.order[0])
		c.operations.order = c.operations.order[1:]
	}
	k.op = op.ID
	return op
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
		k.base(), k.c.o.Subscription, namespace, k.c.o.Location, k.op, k.r.URL.Query().Get("api-version")))
}

// base is the address under which the client has found the cloud.
func (k *call) base() string {
	if k.r.TLS == nil {
		return "http://" + k.r.Host
	}
	return "https://" + k.r.Host
}

func serveOperation(k *call, w http.ResponseWriter) {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	op := k.c.operations.byID[k.path["operation"]]
	if op == nil {
		refuse(http.StatusNotFound, "NotFound", "The operation could not be found.").ServeHTTP(w, k.r)
		return
	}
	writeJSON(w, http.StatusOK, op)
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
