package bucket

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/clip"
)

// Words of the services that say more than their status does. The services
// use different words, so one table serves all.
//
// https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
// https://cloud.google.com/storage/docs/json_api/v1/status-codes
// https://learn.microsoft.com/en-us/rest/api/storageservices/blob-service-error-codes
var words = map[string]nstance.Code{
	NoKey:                       nstance.NotFound,
	"BlobNotFound":              nstance.NotFound,
	"BlobAlreadyExists":         nstance.Conflict, // 409 where others say 412
	"SlowDown":                  nstance.Throttled,
	"ServerBusy":                nstance.Throttled,
	"rateLimitExceeded":         nstance.Throttled,
	"userRateLimitExceeded":     nstance.Throttled,
	"ExpiredToken":              nstance.Denied, // 400
	"InvalidToken":              nstance.Denied,
	"TokenRefreshRequired":      nstance.Denied, // 400
	"AccountIsDisabled":         nstance.Denied, // 403, and 409 in older versions
	"RequestTimeout":            unknown,        // 400: the request did not arrive in time
	"IncompleteBody":            unknown,        // 400, as are the next three: it did not arrive whole
	"BadDigest":                 unknown,
	"Md5Mismatch":               unknown,
	"XAmzContentSHA256Mismatch": unknown,
}

// kmsWords begin what S3 says with status 400 of a key that may not be used now, such as
// KMS.DisabledException.
const kmsWords = "KMS."

// Words that drivers use themselves.
const (
	NoKey    = "NoSuchKey"    // the bucket is there, the key is not
	NoBucket = "NoSuchBucket" // says nothing about the key
)

// maxText is how many bytes of a service's explanation are kept.
const maxText = 256

// unknown stands for Unavailable of a read and Ambiguous of a write.
const unknown nstance.Code = ""

// busy reports that another write to the same key was under way, and nothing
// was written.
func (f Fault) busy() bool {
	return f.Status == http.StatusConflict && (f.Code == "ConditionalRequestConflict" || f.Code == "OperationAborted")
}

// meaning classifies an answer.
func (f Fault) meaning(write bool) nstance.Code {
	code, ok := words[f.Code]
	switch {
	case ok:
	case strings.HasPrefix(f.Code, kmsWords):
		code = nstance.Denied
	default:
		code = byStatus(f.Status)
	}
	switch {
	case code == nstance.Invalid && f.Status != http.StatusNotImplemented && !f.named():
		return nstance.Unavailable
	case code != unknown:
		return code
	case write:
		return nstance.Ambiguous
	}
	return nstance.Unavailable
}

// named reports whether the service gave a reason. An answer without one comes from a proxy
// or a captive portal on the way, or a load balancer, and says nothing about the request.
func (f Fault) named() bool {
	return f.Code != "" && f.Code != strings.ReplaceAll(http.StatusText(f.Status), " ", "") // which clients make up
}

func byStatus(status int) nstance.Code {
	switch status {
	case http.StatusPreconditionFailed, http.StatusNotModified:
		return nstance.Conflict
	case http.StatusUnauthorized, http.StatusForbidden:
		return nstance.Denied
	case http.StatusTooManyRequests:
		return nstance.Throttled
	case http.StatusNotFound, http.StatusGone: // of something else than the key
		return nstance.Unavailable
	case http.StatusConflict, http.StatusRequestTimeout:
		return unknown
	case http.StatusNotImplemented:
		return nstance.Invalid
	}
	if status >= 300 && status < 500 {
		return nstance.Invalid
	}
	return unknown
}

func (f Fault) String() string {
	text := fmt.Sprintf("%d %s", f.Status, f.Code)
	if f.Code == "" {
		text = fmt.Sprintf("%d %s", f.Status, http.StatusText(f.Status))
	}
	if said := strings.Join(strings.Fields(f.Text), " "); said != "" && f.Status != http.StatusPreconditionFailed { // which its status explains
		text += ": " + clip.Text(said, maxText)
	}
	switch {
	case f.Status == http.StatusNotFound && words[f.Code] == "":
		text += "; is the name of the bucket right?"
	case f.Status == http.StatusMovedPermanently, f.Status == http.StatusTemporaryRedirect, f.Status == http.StatusPermanentRedirect:
		text += "; is the region right?"
	}
	return text
}
