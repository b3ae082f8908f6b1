package aws

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

// An errorRow says what one error code of AWS means for the caller.
type errorRow struct {
	code    string // of EC2 or Elastic Load Balancing; a * at the end stands for the rest
	message string // only if the message contains this; empty: always
	means   nstance.Code
	field   string // the input that is wrong, if it is always the same one
	why     string // for docs/errors.md
}

// errorRows are what AWS answers, the first row that fits counts ("Error codes
// for the Amazon EC2 API", EC2 API Reference; "Common errors", Elastic Load
// Balancing API Reference). A row that means Ambiguous is Unavailable for a read.
var errorRows = []errorRow{
	{code: "InsufficientInstanceCapacity", message: "spread placement group", means: nstance.Quota, why: "a spread placement group takes seven machines a zone"},
	{code: "InsufficientInstanceCapacity", means: nstance.Capacity, why: "also when a parked machine is woken"},
	{code: "InsufficientCapacity", means: nstance.Capacity},
	{code: "InsufficientHostCapacity", means: nstance.Capacity},
	{code: "InsufficientReservedInstanceCapacity", means: nstance.Capacity},
	{code: "ReservationCapacityExceeded", means: nstance.Capacity},
	{code: "UnfulfillableCapacity", means: nstance.Capacity},
	{code: "SpotMaxPriceTooLow", means: nstance.Capacity, field: "market.max_price", why: "EC2 keeps the request open: it is cancelled first, and `ambiguous` while it may be open"},
	{code: "Unsupported", means: nstance.Capacity, why: "the zone does not have this type"},
	{code: "InsufficientVolumeCapacity", means: nstance.Capacity},
	{code: "VolumeTypeNotAvailableInZone", means: nstance.Capacity},
	{code: "InsufficientFreeAddressesInSubnet", means: nstance.Capacity, field: "subnet", why: "says nothing about the type"},
	{code: "InsufficientCidrBlocks", means: nstance.Capacity, field: "subnet", why: "the subnet has no free prefix of 16 addresses: says nothing about the type"},
	{code: "InsufficientAddressCapacity", means: nstance.Capacity, field: "subnet", why: "says nothing about the type"},

	{code: "VcpuLimitExceeded", means: nstance.Quota},
	{code: "InstanceLimitExceeded", means: nstance.Quota},
	{code: "MaxSpotInstanceCountExceeded", means: nstance.Quota, why: "spot has quotas of its own"},
	{code: "MaxConfigLimitExceeded", means: nstance.Quota, why: "placement scores: ten different questions in a day"},
	{code: "VolumeLimitExceeded", means: nstance.Quota},
	{code: "MaxIOPSLimitExceeded", means: nstance.Quota},
	{code: "NetworkInterfaceLimitExceeded", means: nstance.Quota},
	{code: "PrivateIpAddressLimitExceeded", means: nstance.Quota, why: "of addresses on one network interface, by its machine's type"},
	{code: "ResourceLimitExceeded", means: nstance.Quota},
	{code: "AttachmentLimitExceeded", means: nstance.Quota},
	{code: "PendingVerification", means: nstance.Quota, why: "a new account"},
	{code: "TooManyTargets", means: nstance.Quota},
	{code: "TooManyRegistrationsForTargetId", means: nstance.Quota},

	{code: "RequestLimitExceeded", means: nstance.Throttled, why: "status 503"},
	{code: "Throttling", means: nstance.Throttled},
	{code: "ThrottlingException", means: nstance.Throttled},
	{code: "ThrottledException", means: nstance.Throttled},
	{code: "RequestThrottled", means: nstance.Throttled},
	{code: "RequestThrottledException", means: nstance.Throttled},
	{code: "TooManyRequestsException", means: nstance.Throttled},
	{code: "BandwidthLimitExceeded", means: nstance.Throttled},
	{code: "LimitExceededException", means: nstance.Throttled},
	{code: "SlowDown", means: nstance.Throttled},
	{code: "PriorRequestNotComplete", means: nstance.Throttled},
	{code: "EC2ThrottledException", means: nstance.Throttled},

	{code: "UnauthorizedOperation", means: nstance.Denied, why: "a permission is missing"},
	{code: "AuthFailure*", means: nstance.Denied, why: "`AuthFailure.ServiceLinkedRoleCreationNotPermitted`: the account has never used spot"},
	{code: "AccessDenied*", means: nstance.Denied},
	{code: "InvalidClientTokenId", means: nstance.Denied, why: "the access key, not the idempotency token"},
	{code: "UnrecognizedClientException", means: nstance.Denied},
	{code: "SignatureDoesNotMatch", means: nstance.Denied},
	{code: "IncompleteSignature", means: nstance.Denied},
	{code: "InvalidSignatureException", means: nstance.Denied},
	{code: "MissingAuthenticationToken*", means: nstance.Denied},
	{code: "ExpiredToken*", means: nstance.Denied},
	{code: "RequestExpired", means: nstance.Denied, why: "the server's clock is more than 15 minutes off, or the session ended"},
	{code: "OptInRequired", means: nstance.Denied},
	{code: "Blocked", means: nstance.Denied},
	{code: "TagPolicyViolation", means: nstance.Denied},
	{code: "OperationNotPermitted", means: nstance.Denied, why: "termination protection"},

	{code: "IncorrectInstanceState", means: nstance.Conflict},
	{code: "IncorrectState", means: nstance.Conflict},
	{code: "ConcurrentTagAccess", means: nstance.Conflict},
	{code: "Resource.AlreadyAssigned", means: nstance.Conflict},
	{code: "RetryableError", means: nstance.Conflict},
	{code: "IdempotentParameterMismatch", means: nstance.Conflict, why: "a create with this token had other parameters: Get tells whether a machine came of it"},
	{code: "IdempotentInstanceTerminated", means: nstance.Conflict, why: "the machine was made and is gone: Get tells why"},

	{code: "QueueDoesNotExist", means: nstance.Invalid, field: "options.interruption_queue", why: "also a queue of another account or region, or without a permission"},
	{code: "AWS.SimpleQueueService.NonExistentQueue", means: nstance.Invalid, field: "options.interruption_queue", why: "the same in the older protocol"},
	{code: "InvalidAddress", means: nstance.Invalid, field: "options.interruption_queue"},
	{code: "OverLimit", means: nstance.Quota, why: "of messages of a queue that were received and not deleted"},
	{code: "KmsThrottled", means: nstance.Throttled, why: "the key that encrypts a queue"},
	{code: "KMS.ThrottlingException", means: nstance.Throttled, why: "the same in the older protocol"},
	{code: "Kms*", means: nstance.Denied, why: "the key that encrypts a queue cannot be used"},
	{code: "KMS.*", means: nstance.Denied, why: "the same in the older protocol"},

	{code: "TargetGroupNotFound", means: nstance.NotFound, why: "there is no such load balancer"},
	{code: "ParameterNotFound", means: nstance.NotFound, why: "the parameter that names an image"},
	{code: "ParameterVersionNotFound", means: nstance.NotFound, why: "the same, with a version or label"},
	{code: "InvalidInstanceID.NotFound", means: nstance.Unavailable, why: "may be an instance that EC2 does not show yet: only an empty answer to a filter proves absence"},
	{code: "InvalidParameterValue", message: "Invalid IAM Instance Profile", means: nstance.Unavailable, field: "args.iam_instance_profile", why: "a profile is known some seconds after it was made"},

	{code: "InternalError", means: nstance.Ambiguous},
	{code: "InternalFailure", means: nstance.Ambiguous},
	{code: "ServerInternal", means: nstance.Ambiguous},
	{code: "ServiceUnavailable", means: nstance.Ambiguous},
	{code: "Unavailable", means: nstance.Ambiguous},
	{code: "RequestTimeout*", means: nstance.Ambiguous},

	{code: "InvalidAMIID*", means: nstance.Invalid, field: "image"},
	{code: "InvalidSubnetID*", means: nstance.Invalid, field: "subnet"},
	{code: "InvalidSubnet", means: nstance.Invalid, field: "subnet"},
	{code: "InvalidGroup*", means: nstance.Invalid, field: "args.security_group_ids"},
	{code: "InvalidSecurityGroupID*", means: nstance.Invalid, field: "args.security_group_ids"},
	{code: "InvalidCapacityReservationId*", means: nstance.Invalid, field: "args.capacity_reservation"},
	{code: "InvalidKeyPair*", means: nstance.Invalid, field: "args.key_name"},
	{code: "InvalidUserData*", means: nstance.Invalid, field: "userdata"},
	{code: "Invalid*", means: nstance.Invalid},
	{code: "MissingParameter", means: nstance.Invalid},
	{code: "UnknownParameter", means: nstance.Invalid},
	{code: "ValidationError", means: nstance.Invalid},
	{code: "UnsupportedOperation", means: nstance.Invalid},
	{code: "UnsupportedHibernationConfiguration", means: nstance.Invalid, field: "warm_pool.mode"},
	{code: "TagLimitExceeded", means: nstance.Invalid, field: "args.tags"},
}

func (r *errorRow) fits(e smithy.APIError) bool {
	prefix, open := strings.CutSuffix(r.code, "*")
	named := e.ErrorCode() == prefix || open && strings.HasPrefix(e.ErrorCode(), prefix)
	return named && strings.Contains(e.ErrorMessage(), r.message)
}

// reading and changing are what a call does when it is carried out.
const (
	reading  = false
	changing = true
)

// call makes one call to AWS and classifies its error.
func call[In, Out, Opt any](ctx context.Context, changes bool, do func(context.Context, *In, ...func(*Opt)) (*Out, error), in *In) (*Out, error) {
	ctx, sent := withSent(ctx)
	out, err := do(ctx, in)
	if err == nil {
		return out, nil
	}
	return nil, classify(err, changes && sent.Load(), sent)
}

// classify gives an error of the SDK its code. mayHaveHappened says that the call
// would have changed something and reached AWS.
func classify(err error, mayHaveHappened bool, sent *atomic.Bool) error {
	noAnswer := nstance.Unavailable
	if mayHaveHappened {
		noAnswer = nstance.Ambiguous
	}
	switch answer, ok := errors.AsType[smithy.APIError](err); {
	case !sent.Load():
		return classifyUnsent(err)
	case ok && answer.ErrorCode() != "":
		return classifyAnswer(err, answer, noAnswer)
	case status(err) >= http.StatusMultipleChoices: // in another form than AWS's own
		return nstance.Errorf(unlisted(status(err), noAnswer), "not an answer of AWS: %w", err)
	}
	return nstance.Errorf(noAnswer, "no answer from AWS: %w", err)
}

// classifyUnsent gives an error its code that came before the call was sent: there is no
// connection, or there are no credentials. Where they come from may not answer for a while,
// which says nothing about the call.
func classifyUnsent(err error) error {
	code := nstance.Denied
	if answer, ok := errors.AsType[smithy.APIError](err); ok {
		code = nstance.CodeOf(classifyAnswer(err, answer, nstance.Unavailable))
	}
	if source, ok := errors.AsType[*smithyhttp.ResponseError](err); ok && source.Response != nil && code == nstance.Denied {
		code = unlisted(source.HTTPStatusCode(), nstance.Unavailable)
	}
	if networked(err) || code == nstance.Throttled || code == nstance.Unavailable {
		return nstance.Errorf(nstance.Unavailable, "nothing was sent to AWS: %w", err)
	}
	return nstance.Errorf(nstance.Denied, "nothing was sent to AWS: %w", err)
}

func classifyAnswer(err error, answer smithy.APIError, noAnswer nstance.Code) error {
	out := &nstance.Error{Code: unlisted(status(err), noAnswer), Err: err, Msg: message(err, answer)}
	for _, row := range errorRows {
		if row.fits(answer) {
			out.Code, out.Field = row.means, row.field
			break
		}
	}
	if out.Code == nstance.Ambiguous {
		out.Code = noAnswer
	}
	return out
}

// unlisted is the code of an answer that no row fits. Below 500 AWS refuses the call for good
// ("Client errors", EC2 API Reference): nothing was made.
func unlisted(status int, noAnswer nstance.Code) nstance.Code {
	switch {
	case status >= http.StatusInternalServerError || status == http.StatusRequestTimeout,
		status != 0 && status < http.StatusBadRequest: // sent elsewhere
		return noAnswer
	case status == http.StatusTooManyRequests:
		return nstance.Throttled
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return nstance.Denied
	case status >= http.StatusBadRequest:
		return nstance.Invalid
	}
	return nstance.Internal
}

// maxMessage keeps out the encoded part of a missing permission, which is for
// sts:DecodeAuthorizationMessage.
const maxMessage = 300

func message(err error, answer smithy.APIError) string {
	op, id := "AWS", ""
	if e, ok := errors.AsType[*smithy.OperationError](err); ok {
		op = e.OperationName
	}
	if e, ok := errors.AsType[*awshttp.ResponseError](err); ok && e.RequestID != "" {
		id = ", request " + e.RequestID
	}
	text, _, _ := strings.Cut(answer.ErrorMessage(), "Encoded authorization failure message")
	text = strings.TrimSpace(clip.Text(text, maxMessage))
	return fmt.Sprintf("%s: %s: %s%s", op, answer.ErrorCode(), cmp.Or(text, "no message"), id)
}

// status returns the HTTP status of an answer, or 0 if there was none.
func status(err error) int {
	if e, ok := errors.AsType[*awshttp.ResponseError](err); ok && e.Response != nil {
		return e.HTTPStatusCode()
	}
	return 0
}

// networked reports whether err came from the network, or from ctx.
func networked(err error) bool {
	var timeout interface{ Timeout() bool } // every net.Error, and an ended context
	_, unsent := errors.AsType[*smithyhttp.RequestSendError](err)
	return unsent || errors.As(err, &timeout) || errors.Is(err, context.Canceled)
}
