package ec2test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"
)

// The services that speak AWS JSON ("AWS JSON 1.0 protocol" and "AWS JSON 1.1 protocol",
// Smithy): X-Amz-Target names service and action.
const (
	queues     = "sqs"
	parameters = "ssm"
)

// jsonServices are those services, by what begins the target.
var jsonServices = map[string]struct{ name, mimeType string }{
	"AmazonSQS": {queues, "application/x-amz-json-1.0"},
	"AmazonSSM": {parameters, "application/x-amz-json-1.1"},
}

// A jsonAction is an action, and the permission that it needs, which begins with its
// service.
type jsonAction struct {
	permission string
	serve      func(context.Context, []byte) (any, error)
}

func (c *Cloud) jsonActions(inventory *inventory) map[string]jsonAction {
	return map[string]jsonAction{
		"GetParameter":       jsonOperation("ssm:GetParameter", inventory.getParameter),
		"DeleteMessageBatch": jsonOperation("sqs:DeleteMessage", c.queues.deleteBatch),
		"ReceiveMessage":     jsonOperation("sqs:ReceiveMessage", c.queues.receive),
		"SendMessage":        jsonOperation("sqs:SendMessage", c.queues.send),
	}
}

// jsonOperation makes an action of a method, which takes the cloud's lock itself.
func jsonOperation[In, Out any](permission string, do func(context.Context, *In) (*Out, error)) jsonAction {
	return jsonAction{permission, func(ctx context.Context, body []byte) (any, error) {
		in := new(In)
		d := json.NewDecoder(bytes.NewReader(body))
		d.DisallowUnknownFields()
		if err := d.Decode(in); err != nil {
			return nil, refuse("SerializationException", "%s", err)
		}
		return do(ctx, in)
	}}
}

// serveJSON answers a call of such a service.
func (g *gateway) serveJSON(w http.ResponseWriter, r *http.Request, body []byte) {
	target, name, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	service := jsonServices[target]
	g.o.Faults.Serve(w, r, name, func(w http.ResponseWriter, r *http.Request) {
		out, err := g.doJSON(r, service.name, name, body)
		switch {
		case errors.Is(err, context.Canceled):
			panic(http.ErrAbortHandler) // the caller has gone: there is no answer
		case err != nil:
			writeJSONError(w, service.name, err)
		default:
			writeJSON(w, service.name, http.StatusOK, out)
		}
	})
}

func (g *gateway) doJSON(r *http.Request, service, name string, body []byte) (any, error) {
	if err := g.authenticate(service, r, body, time.Now()); err != nil {
		return nil, err
	}
	a, known := g.jsonActions[name]
	if !known || !strings.HasPrefix(a.permission, service+":") || r.Header.Get("Content-Type") != mimeTypeOf(service) {
		return nil, refuse("UnknownOperationException", "The operation %s is not known", name)
	}
	if !g.o.permits(a.permission) {
		return nil, refuse("AccessDenied", "User is not authorized to perform: %s on the resource because no identity-based policy allows the action", a.permission)
	}
	return a.serve(r.Context(), body)
}

func mimeTypeOf(service string) string {
	for _, s := range jsonServices {
		if s.name == service {
			return s.mimeType
		}
	}
	return "application/json" // as restJson1 has it
}

// jsonErrors are the errors with another name in the JSON protocol than in the older one,
// whose name is in the header X-Amzn-Query-Error ("Interpreting Amazon SQS JSON API
// responses", SQS Developer Guide).
var jsonErrors = map[string]struct {
	name, query string
	status      int
}{
	"AccessDenied":               {"AccessDeniedException", "AccessDenied", http.StatusForbidden},
	"InvalidClientTokenId":       {"UnrecognizedClientException", "InvalidClientTokenId", http.StatusForbidden},
	"InvalidParameterValue":      {"InvalidParameterValueException", "InvalidParameterValue", http.StatusBadRequest},
	"MissingAuthenticationToken": {"MissingAuthenticationTokenException", "MissingAuthenticationToken", http.StatusForbidden},
	"MissingParameter":           {"MissingRequiredParameterException", "MissingParameter", http.StatusBadRequest},
	"QueueDoesNotExist":          {"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", http.StatusBadRequest},
	"SignatureDoesNotMatch":      {"InvalidSignatureException", "SignatureDoesNotMatch", http.StatusForbidden},
	"UnknownOperationException":  {"UnknownOperationException", "InvalidAction", http.StatusNotFound},

	"BatchEntryIdsNotDistinct":     {"BatchEntryIdsNotDistinct", "AWS.SimpleQueueService.BatchEntryIdsNotDistinct", http.StatusBadRequest},
	"EmptyBatchRequest":            {"EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest", http.StatusBadRequest},
	"InvalidBatchEntryId":          {"InvalidBatchEntryId", "AWS.SimpleQueueService.InvalidBatchEntryId", http.StatusBadRequest},
	"TooManyEntriesInBatchRequest": {"TooManyEntriesInBatchRequest", "AWS.SimpleQueueService.TooManyEntriesInBatchRequest", http.StatusBadRequest},
}

// QueueRefusal is a Refusal in the form of SQS.
func QueueRefusal(code, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { writeJSONError(w, queues, &apiError{code, message}) }
}

func writeJSONError(w http.ResponseWriter, service string, err error) {
	refused := refusalOf(err, "InternalFailure")
	name, query, status := refused.code, refused.code, statusOf(queues, refused.code)
	if e, ok := jsonErrors[refused.code]; ok {
		name, query, status = e.name, e.query, e.status
	}
	fault := "Sender"
	if status >= http.StatusInternalServerError {
		fault = "Receiver"
	}
	if service != queues { // it has no older protocol, and 400 for every error of a caller
		if fault == "Sender" {
			status = http.StatusBadRequest
		}
		writeJSON(w, service, status, map[string]string{"__type": name, "message": refused.message})
		return
	}
	w.Header().Set("X-Amzn-Query-Error", query+";"+fault)
	writeJSON(w, service, status, map[string]string{"__type": "com.amazonaws.sqs#" + name, "message": refused.message})
}

func writeJSON(w http.ResponseWriter, service string, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", mimeTypeOf(service))
	w.Header().Set("X-Amzn-RequestId", newRequestID())
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
