package azure

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

// A rule turns answers of Azure into a code. An answer fits when every field that
// is set does.
type rule struct {
	codes  []string       // of the error itself, or of a cause inside it
	status int            // HTTP
	text   *regexp.Regexp // in the message that belongs to the code
	ours   nstance.Code
	loss   nstance.LossCause // where an accepted create ends so
	busy   bool              // that passes within minutes: a create did nothing, and is repeated
	why    string
}

// rules are looked through from the first to the last; the first that fits
// decides. Sources: "Error codes for Azure Spot Virtual Machines", "Troubleshooting
// API throttling errors", "Throttling Resource Manager requests" (Azure
// documentation), and the lists of codes of Azure/azure-sdk-for-go-extensions and
// of the Azure providers of Karpenter and Gardener.
var rules = []rule{
	{codes: []string{"RetryableError", "RetryableErrorDueToAnotherOperation", "ReferencedResourceNotProvisioned"}, ours: nstance.Conflict, busy: true,
		why: "another operation holds a lock, whatever the status is"},
	{status: http.StatusTooManyRequests, ours: nstance.Throttled, why: "too many calls, even with the code of a quota"},
	{codes: []string{"SubscriptionRequestsThrottled", "TooManyRequests"}, ours: nstance.Throttled, loss: nstance.LossThrottled, why: "too many calls"},

	{codes: []string{"ZonalAllocationFailed", "OverconstrainedZonalAllocationRequest", "AllocationFailed", "OverconstrainedAllocationRequest"}, ours: nstance.Capacity, loss: nstance.LossCapacity,
		why: "no room for this size in the zone or region"},
	{codes: []string{"SkuNotAvailable", "SpotPriceGreaterThanProvidedMaxPrice"}, ours: nstance.Capacity, loss: nstance.LossCapacity,
		why: "the size is sold out, is not offered to this subscription, or costs more than the maximum price"},
	{codes: []string{"SubnetIsFull"}, ours: nstance.Capacity, loss: nstance.LossCapacity, why: "no free address in the subnet"},

	{codes: []string{"OperationNotAllowed"}, text: regexp.MustCompile(`(?i)exceeding.*quota`), ours: nstance.Quota, loss: nstance.LossQuota,
		why: "a quota of cores: of spot (LowPriorityCores), of the family or of the region"},
	{codes: []string{"QuotaExceeded", "ResourceQuotaExceeded"}, ours: nstance.Quota, loss: nstance.LossQuota, why: "another quota"},

	{codes: []string{"AuthorizationFailed", "LinkedAuthorizationFailed", "AuthenticationFailed", "InvalidAuthenticationToken", "ExpiredAuthenticationToken", "InvalidAuthenticationTokenTenant"}, ours: nstance.Denied,
		why: "the credentials or their roles do not permit it"},
	{codes: []string{"ReadOnlyDisabledSubscription", "AzureSpotFeatureNotEnabledForSubscription", "RequestDisallowedByPolicy", "MarketplacePurchaseEligibilityFailed", "ScopeLocked"}, ours: nstance.Denied,
		why: "the subscription does not permit it"},

	{codes: []string{"PropertyChangeNotAllowed", "PreconditionFailed"}, ours: nstance.Conflict, why: "a resource of that name exists"},
	{codes: []string{"OperationNotAllowed"}, text: regexp.MustCompile(`(?i)marked for deletion`), ours: nstance.Conflict, why: "the machine is being deleted"},
	{codes: []string{"Conflict", "OperationPreempted", "AnotherOperationInProgress", "CanceledAndSupersededDueToAnotherOperation", "VMNotRunning"}, ours: nstance.Conflict, busy: true,
		why: "another operation is under way"},
	{codes: []string{"NicReservedForAnotherVm", "NicInUse"}, ours: nstance.Conflict, busy: true, why: "the network interface is held for up to three minutes after a failed create"},
	{codes: []string{"PublicIPAddressCannotBeDeleted"}, ours: nstance.Conflict, why: "the public address is still at an interface"},
	{codes: []string{"PrivateIPAddressIsAllocated", "PrivateIPAddressInUse"}, ours: nstance.Conflict, why: "the address is still at another interface"},
	{codes: []string{"InvalidResourceReference"}, text: regexp.MustCompile(`(?i)/backendAddressPools/`), ours: nstance.Conflict, why: "a backend pool that an interface is in was removed meanwhile"},

	{codes: []string{"AzureSpotIsNotSupportedForThisVMSize", "MaxPriceValueInvalid", "EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines", "MaxPriceCanBeSetOnlyOnAzureSpotVirtualMachines", "VMPriorityCannotBeApplied"}, ours: nstance.Invalid, loss: nstance.LossInvalid,
		why: "the market does not fit the size"},
	{codes: []string{"InvalidParameter", "ImageNotFound", "PlatformImageNotFound", "GalleryImageNotFound", "InvalidResourceReference", "BadRequest", "InvalidRequestContent", "InvalidRequestFormat", "OSProvisioningClientError", "OSProvisioningTimedOut", "VMMarketplaceInvalidInput"}, ours: nstance.Invalid, loss: nstance.LossInvalid,
		why: "the machine cannot be made as specified"},
	{codes: []string{"ResourceGroupNotFound", "SubscriptionNotFound", "ParentResourceNotFound", "NoRegisteredProviderFound", "MissingSubscriptionRegistration", "InvalidResourceType", "InvalidIPConfigCount"}, ours: nstance.Invalid,
		why: "the configuration names something that is not there; says nothing about machines"},
	{codes: []string{"ResourceNotFound", "NotFound"}, status: http.StatusNotFound, ours: nstance.NotFound, why: "the resource itself is not there"},
	{codes: []string{"OperationNotAllowed"}, ours: nstance.Invalid, loss: nstance.LossInvalid, why: "this machine cannot do that"},
	{codes: []string{"InternalExecutionError", "InternalOperationError", "InternalServerError", "VMStartTimedOut", "OSProvisioningInternalError"}, ours: nstance.Unavailable, loss: nstance.LossHost,
		why: "a failure of Azure itself"},

	{status: http.StatusUnauthorized, ours: nstance.Denied, why: "any other refusal of the credentials"},
	{status: http.StatusForbidden, ours: nstance.Denied, why: "any other refusal of the credentials"},
	{status: http.StatusConflict, ours: nstance.Conflict, why: "any other conflict"},
	{status: http.StatusPreconditionFailed, ours: nstance.Conflict, why: "a resource of that name exists"},
	{status: http.StatusBadRequest, ours: nstance.Invalid, loss: nstance.LossInvalid, why: "any other bad request"},
	{status: http.StatusRequestTimeout, ours: nstance.Unavailable, why: "no answer; of a create: ambiguous"},
	{status: http.StatusInternalServerError, ours: nstance.Unavailable, why: "a failure of Azure itself; of a create: ambiguous"},
	{status: http.StatusBadGateway, ours: nstance.Unavailable, why: "the same"},
	{status: http.StatusServiceUnavailable, ours: nstance.Unavailable, why: "the same"},
	{status: http.StatusGatewayTimeout, ours: nstance.Unavailable, why: "the same"},
}

// A cause is an error code of Azure with its message.
type cause struct {
	Code    string  `json:"code"`
	Message string  `json:"message"`
	Details []cause `json:"details"`
}

// maxCauses bounds how many causes inside an error are looked at.
const maxCauses = 32

// causes returns the error and what is inside it. Some codes, such as
// ResourceDeploymentFailure, only wrap others.
func (c cause) causes() []cause {
	out := []cause{c}
	for i := 0; i < len(out) && len(out) < maxCauses; i++ {
		out = append(out, out[i].Details...)
	}
	return out[:min(len(out), maxCauses)]
}

// answerOf returns what a refusal says.
func answerOf(e *azcore.ResponseError) cause {
	out := cause{Code: e.ErrorCode}
	if e.RawResponse == nil {
		return out
	}
	body, err := runtime.Payload(e.RawResponse)
	if err != nil {
		return out
	}
	var said struct {
		cause
		Error *cause `json:"error"`
	}
	switch err := json.Unmarshal(body, &said); {
	case err == nil && said.Error != nil:
		out = *said.Error
	case err == nil:
		out = said.cause
	case !bytes.HasPrefix(bytes.TrimSpace(body), []byte("<")): // a page for people says nothing
		out.Message = clip.Words(string(body))
	}
	out.Code = cmp.Or(out.Code, e.ErrorCode)
	return out
}

// ruleFor returns the first rule that fits.
func ruleFor(status int, c cause) *rule {
	all := c.causes()
	for i := range rules {
		r := &rules[i]
		if r.status != 0 && r.status != status {
			continue
		}
		if r.codes == nil || slices.ContainsFunc(all, r.fits) {
			return r
		}
	}
	return nil
}

func (r *rule) fits(c cause) bool {
	return slices.Contains(r.codes, c.Code) && (r.text == nil || r.text.MatchString(c.Message))
}

// lossOf says why a machine whose create had been accepted has failed.
func lossOf(code string) nstance.LossCause {
	for _, r := range rules {
		// A view says the code alone: OperationNotAllowed after an accepted create is
		// a quota.
		if slices.Contains(r.codes, code) && r.loss != "" {
			return r.loss
		}
	}
	if code != "" { // Azure gave the machine up, and no row says that it took it back
		return nstance.LossInvalid
	}
	return ""
}

// readError classifies the error of a read: without an answer nothing is known.
func readError(err error) error { return classify(err, nstance.Unavailable) }

// deleteError does the same for a delete. Conflict would say that the resource is
// not the machine's; what Azure calls so ends by itself.
func deleteError(err error) error {
	out := classify(err, nstance.Unavailable)
	if nstance.CodeOf(out) == nstance.Conflict {
		return nstance.Errorf(nstance.Unavailable, "not yet: %w", errors.Unwrap(out))
	}
	return out
}

// createError does the same for a create, where a missing answer to the PUT leaves
// open whether there is a machine now.
func createError(err error) error {
	if isBusy(err) {
		return nstance.Errorf(nstance.Unavailable, "%w", classify(err, nstance.Unavailable))
	}
	if isBefore(err) {
		out := classify(err, nstance.Unavailable)
		if nstance.CodeOf(out) == nstance.NotFound {
			return nstance.Errorf(nstance.Unavailable, "no network interface yet: %w", err)
		}
		return out
	}
	out := classify(err, nstance.Ambiguous)
	switch nstance.CodeOf(out) {
	case nstance.Unavailable:
		return nstance.Errorf(nstance.Ambiguous, "a machine may exist: %w", err)
	case nstance.NotFound:
		return nstance.Errorf(nstance.Invalid, "something that the machine needs: %w", err)
	}
	return out
}

// isBusy reports whether Azure refused a call for what passes within minutes.
func isBusy(err error) bool {
	e, ok := errors.AsType[*azcore.ResponseError](err)
	if !ok {
		return false
	}
	r := ruleFor(e.StatusCode, answerOf(e))
	return r != nil && r.busy
}

// partError does the same for the PUT of a part: what is not found is something that the part
// needs.
func partError(err error) error {
	if isGone(err) {
		return nstance.Errorf(nstance.Invalid, "something that the machine needs: %w", err)
	}
	return createError(before(err))
}

// classify gives an error its code. silent is that of one without an answer.
func classify(err error, silent nstance.Code) error {
	if _, ok := errors.AsType[*nstance.Error](err); ok {
		return err
	}
	if e, ok := errors.AsType[*azcore.ResponseError](err); ok {
		c := answerOf(e)
		short := &answer{status: e.StatusCode, cause: c}
		if r := ruleFor(e.StatusCode, c); r != nil && (r.ours != nstance.NotFound || isGone(err)) {
			return nstance.Errorf(r.ours, "azure: %w", short)
		}
		if e.StatusCode < http.StatusBadRequest || e.StatusCode >= http.StatusInternalServerError {
			return nstance.Errorf(silent, "azure: %w", short)
		}
		return nstance.Errorf(nstance.Invalid, "azure: %w", short) // it refuses for good: nothing was made
	}
	if e, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); ok {
		return nstance.Errorf(tokenCode(e.RawResponse), "azure: no token: %w", err)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nstance.Errorf(silent, "azure: no answer: %w", err)
	}
	return nstance.Errorf(silent, "azure: %w", err)
}

// tokenCode is the code of a failure to get a token, by what answered; nil: nothing did.
func tokenCode(r *http.Response) nstance.Code {
	if r == nil || r.StatusCode >= http.StatusInternalServerError || r.StatusCode == http.StatusTooManyRequests || r.StatusCode == http.StatusRequestTimeout {
		return nstance.Unavailable
	}
	return nstance.Denied
}

// An answer is a refusal in one line; the SDK's own error has the whole exchange.
type answer struct {
	status int
	cause  cause
}

func (a *answer) Error() string {
	var out []string
	for _, c := range a.cause.causes() {
		out = append(out, strings.Trim(c.Code+": "+c.Message, ": "))
	}
	return cmp.Or(strings.Join(out, "; "), "status "+strconv.Itoa(a.status))
}

// isGone reports whether Azure says that the resource asked for is not there. That
// its group or subscription is not found says nothing of it.
func isGone(err error) bool {
	e, ok := errors.AsType[*azcore.ResponseError](err)
	if !ok || e.StatusCode != http.StatusNotFound {
		return false
	}
	c := answerOf(e)
	return (c.Code == "ResourceNotFound" || c.Code == "NotFound") && !namesAnother(c.Message, e.RawResponse)
}

var quotedResource = regexp.MustCompile(`(?i)'(microsoft\.[^']+)'`)

// namesAnother reports whether a message is about another resource than was asked for, such as
// the disk of a machine.
func namesAnother(message string, to *http.Response) bool {
	named := quotedResource.FindStringSubmatch(message)
	if named == nil || to == nil || to.Request == nil {
		return false
	}
	return !strings.Contains(strings.ToLower(to.Request.URL.Path), strings.ToLower(named[1]))
}

// isUnmet reports whether a PUT was refused because its condition is not met.
func isUnmet(err error) bool {
	e, ok := errors.AsType[*azcore.ResponseError](err)
	return ok && e.StatusCode == http.StatusPreconditionFailed
}

// exists reports whether a PUT was refused because there is such a resource.
func exists(err error) bool {
	e, ok := errors.AsType[*azcore.ResponseError](err)
	return isUnmet(err) || ok && answerOf(e).Code == "PropertyChangeNotAllowed"
}
