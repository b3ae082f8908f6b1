package gcp

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/compute/apiv1/computepb"
	"github.com/googleapis/gax-go/v2/apierror"
	"google.golang.org/api/googleapi"

	"github.com/nstance-go/nstance"
)

// A rule says what one of the cloud's error codes means. A status never decides:
// 403 is a missing permission, a quota or a rate.
type rule struct {
	seen string       // the reason of an HTTP error, or the code in an operation; a * stands for anything
	text string       // part of the message; empty: any
	code nstance.Code // what it is to a caller
	note string
}

// rules are looked through in order. Sources: Compute Engine's error catalog
// (rest/v1/errors), its pages on troubleshooting and on rate quotas.
var rules = []rule{
	{"*", "does not have enough resources available", nstance.Capacity, "of the zone, machine type and market"},
	{"*", "is currently unavailable in the", nstance.Capacity, "also when a machine is started or resumed"},
	{"*", "does not have available resources for the request", nstance.Capacity, "of the reservation that `args.reservation` names"},
	{"*", "No available resources in specified reservations", nstance.Capacity, "of that reservation, for this machine type"},
	{"*", "No feasible nodes found", nstance.Capacity, "no sole-tenant node has room, or none has the labels"},
	{"ZONE_RESOURCE_POOL_EXHAUSTED*", "", nstance.Capacity, "also with _WITH_DETAILS"},
	{"RESOURCE_POOL_EXHAUSTED", "", nstance.Capacity, ""},
	{"insufficientCapacity", "", nstance.Capacity, ""},
	{"IP_SPACE_EXHAUSTED*", "", nstance.Capacity, "of the subnet: another machine type cannot help"},
	{"*", "does not exist in zone", nstance.Capacity, "a machine type that this zone does not have"},
	{"CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", "", nstance.Throttled, ""},
	{"rateLimitExceeded", "", nstance.Throttled, "HTTP 403; the quota refills at the next whole minute"},
	{"userRateLimitExceeded", "", nstance.Throttled, ""},
	{"RATE_LIMIT_EXCEEDED", "", nstance.Throttled, ""},
	{"RESOURCE_OPERATION_RATE_EXCEEDED", "", nstance.Throttled, "per source image or disk"},
	{"quotaExceeded", "", nstance.Quota, "HTTP 403; spot has quotas of its own"},
	{"QUOTA_EXCEEDED", "", nstance.Quota, ""},
	{"*QUOTA*", "", nstance.Quota, "any other operation code with this word"},
	{"CONDITION_NOT_MET", "Constraint constraints/", nstance.Denied, "an organisation policy"},
	{"conditionNotMet", "Constraint constraints/", nstance.Denied, "an organisation policy"},
	{"forbidden", "", nstance.Denied, "the message names the permission"},
	{"PERMISSIONS_ERROR", "", nstance.Denied, ""},
	{"IAM_PERMISSION_DENIED", "", nstance.Denied, ""},
	{"accessNotConfigured", "", nstance.Denied, "the API is not enabled in the project"},
	{"SERVICE_DISABLED", "", nstance.Denied, "the API is not enabled in the project"},
	{"authError", "", nstance.Denied, "HTTP 401"},
	{"required", "", nstance.Invalid, ""},
	{"invalid", "", nstance.Invalid, ""},
	{"badRequest", "", nstance.Invalid, ""},
	{"INVALID_FIELD_VALUE", "", nstance.Invalid, ""},
	{"INVALID_USAGE", "", nstance.Invalid, ""},
	{"FIELD_SIZE_TOO_LARGE", "", nstance.Invalid, ""},
	{"MISSING_REQUIRED_FIELD", "", nstance.Invalid, ""},
	{"alreadyExists", "", nstance.Conflict, "Create looks whether it is the same machine"},
	{"RESOURCE_ALREADY_EXISTS", "", nstance.Conflict, "in an operation: the machine was deleted while it was made"},
	{"unsupportedOperation", "", nstance.Conflict, "not in this status: look again"},
	{"UNSUPPORTED_OPERATION", "", nstance.Conflict, "not in this status: look again"},
	{"resourceNotReady", "", nstance.Conflict, "the machine is still stopping"},
	{"RESOURCE_NOT_READY", "", nstance.Conflict, "the machine is still stopping"},
	{"conditionNotMet", "", nstance.Conflict, "HTTP 412: the fingerprint is stale"},
	{"CONDITION_NOT_MET", "", nstance.Conflict, ""},
	{"IP_IN_USE_BY_ANOTHER_RESOURCE", "", nstance.Conflict, ""},
	{"notFound", "", nstance.Invalid, "a project, network, image or subnet; only the machine's own path is `not_found`"},
	{"RESOURCE_NOT_FOUND", "", nstance.Invalid, ""},
	{"INTERNAL_ERROR", "", nstance.Unavailable, "`ambiguous` for what was sent to change something"},
	{"internalError", "", nstance.Unavailable, "the same"},
	{"backendError", "", nstance.Unavailable, "the same"},
	{"SERVICE_UNAVAILABLE_FOR_LOCATION", "", nstance.Unavailable, "the same"},
}

func (r rule) fits(reason, message string) bool {
	fits, err := path.Match(r.seen, reason)
	return err == nil && fits && strings.Contains(message, r.text)
}

// A statement is one of the errors in an answer or an operation.
type statement struct{ reason, message string }

// meaning returns the code of what the cloud said, or "". Of several errors the first rule
// decides, wherever its error stands.
func meaning(said ...statement) nstance.Code {
	for _, r := range rules {
		if slices.ContainsFunc(said, func(s statement) bool { return r.fits(s.reason, s.message) }) {
			return r.code
		}
	}
	return ""
}

// classify gives the error of a call its code. own is the path of the machine that
// the call is about: only when the cloud says that this one was not found is it
// NotFound. change says that the call may have changed something.
func classify(err error, own string, change bool) error {
	if err == nil {
		return nil
	}
	if _, classified := errors.AsType[*nstance.Error](err); classified {
		return err
	}
	if answer, ok := errors.AsType[*googleapi.Error](err); ok {
		return nstance.Errorf(codeOf(answer, statementsOf(err, answer), own, change), "%w%s", err, more(err, answer))
	}
	return nstance.Errorf(unanswered(err, change), "no answer: %w", err)
}

// statementsOf returns what an answer says: in its ErrorInfo, and in the errors that it lists.
func statementsOf(err error, answer *googleapi.Error) []statement {
	said := []statement{{message: answer.Message}}
	if e, ok := errors.AsType[*apierror.APIError](err); ok {
		said[0].reason = e.Reason()
	}
	for _, e := range answer.Errors {
		said = append(said, statement{e.Reason, answer.Message + " " + e.Message})
	}
	return said
}

// more returns what an answer says beside the text of its error.
func more(err error, answer *googleapi.Error) (words string) {
	for _, e := range answer.Errors {
		if e.Message != "" && !strings.Contains(err.Error()+words, e.Message) {
			words += "; " + e.Reason + ": " + e.Message
		}
	}
	return words
}

func codeOf(e *googleapi.Error, said []statement, own string, change bool) nstance.Code {
	if e.Code == http.StatusNotFound && own != "" && strings.Contains(e.Message, "'"+own+"'") {
		return nstance.NotFound
	}
	code := meaning(said...)
	switch {
	case code == nstance.Unavailable || code == "" && e.Code >= 500:
		return afterSending(change)
	case code != "":
		return code
	case e.Code == http.StatusTooManyRequests:
		return nstance.Throttled
	case e.Code == http.StatusUnauthorized:
		return nstance.Denied
	case e.Code == http.StatusConflict, e.Code == http.StatusPreconditionFailed:
		return nstance.Conflict
	case e.Code == http.StatusForbidden:
		return nstance.Denied
	case e.Code == http.StatusRequestTimeout:
		return afterSending(change)
	case e.Code >= http.StatusBadRequest: // it refuses for good: nothing was made
		return nstance.Invalid
	}
	return afterSending(change) // it leads elsewhere
}

// afterSending is the code of a call whose effect is not known.
func afterSending(change bool) nstance.Code {
	if change {
		return nstance.Ambiguous
	}
	return nstance.Unavailable
}

// unanswered is the code of a call that the cloud did not answer. What failed
// before it was sent has changed nothing.
func unanswered(err error, change bool) nstance.Code {
	if e, ok := errors.AsType[*auth.Error](err); ok {
		switch code := statusOf(e.Response); {
		case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code < 400, code >= 500:
			return nstance.Unavailable
		}
		return nstance.Denied
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "dial" {
		return nstance.Unavailable
	}
	return afterSending(change)
}

// namesAnother reports whether a message names a resource, and not that one.
func namesAnother(message, path string) bool {
	return strings.Contains(message, "'projects/") && !strings.Contains(message, "'"+path+"'")
}

// machineExists reports whether an insert was refused because there is the machine.
func machineExists(err error, path string) bool {
	answer, ok := errors.AsType[*googleapi.Error](err)
	return ok && !namesAnother(answer.Message, path) && slices.ContainsFunc(statementsOf(err, answer), func(s statement) bool { return s.reason == "alreadyExists" })
}

func statusOf(r *http.Response) int {
	if r == nil {
		return 0
	}
	return r.StatusCode
}

// before refuses to send anything for a caller that has gone.
func before(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return nstance.Errorf(nstance.Unavailable, "nothing was sent: %w", err)
	}
	return nil
}

// failure returns why an operation that is done failed; nil if it did not.
func failure(op *computepb.Operation) error {
	var said []statement
	var words []string
	for _, e := range op.GetError().GetErrors() {
		said = append(said, statement{e.GetCode(), e.GetMessage()})
		words = append(words, e.GetCode()+": "+e.GetMessage())
	}
	if len(said) == 0 && op.GetHttpErrorStatusCode() >= http.StatusBadRequest {
		words = []string{op.GetHttpErrorMessage()}
	}
	if op.GetStatus() != computepb.Operation_DONE || len(words) == 0 {
		return nil
	}
	code := meaning(said...)
	if code == "" { // it is done, and failed for good
		code = nstance.Invalid
	}
	return nstance.Errorf(code, "%s failed: %s", op.GetOperationType(), strings.Join(words, "; "))
}

// causes say what a failed insert or start means for its machine. Everything
// else is a failed create.
var causes = map[nstance.Code]nstance.LossCause{
	nstance.Capacity:    nstance.LossCapacity,
	nstance.Quota:       nstance.LossQuota,
	nstance.Throttled:   nstance.LossThrottled,
	nstance.Unavailable: nstance.LossHost,
}

// deletedMeanwhile is the code of an operation that made a machine which was deleted before
// it was done.
const deletedMeanwhile = "RESOURCE_ALREADY_EXISTS"

// lossOf says what a failed insert or start means for its machine. It may also fail since
// another resource exists that it would make, such as a disk.
func lossOf(op *computepb.Operation, failed error) nstance.LossCause {
	for _, e := range op.GetError().GetErrors() {
		_, target, _ := strings.Cut(op.GetTargetLink(), "/projects/")
		if e.GetCode() == deletedMeanwhile && !namesAnother(e.GetMessage(), "projects/"+target) {
			return nstance.LossRequested
		}
	}
	if cause, known := causes[nstance.CodeOf(failed)]; known {
		return cause
	}
	return nstance.LossInvalid
}
