package ec2test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"slices"
)

// An apiError is a refusal, by AWS's own code.
type apiError struct {
	code    string
	message string
}

func (e *apiError) Error() string { return e.code + ": " + e.message }

func refuse(code, format string, args ...any) error {
	return &apiError{code, fmt.Sprintf(format, args...)}
}

func missing(parameter string) error {
	return refuse("MissingParameter", "The request must contain the parameter %s", parameter)
}

func invalid(format string, args ...any) error {
	return refuse("InvalidParameterValue", format, args...)
}

func badCombination(format string, args ...any) error {
	return refuse("InvalidParameterCombination", format, args...)
}

// The codes that EC2 answers with a 5xx status ("Error codes for the Amazon EC2
// API", server error codes): 503 means that the request was not processed.
var (
	unavailableCodes = []string{"RequestLimitExceeded", "BandwidthLimitExceeded", "ServiceUnavailable", "Unavailable"}
	serverCodes      = []string{
		"InsufficientAddressCapacity", "InsufficientCapacity", "InsufficientHostCapacity", "InsufficientInstanceCapacity",
		"InsufficientReservedInstanceCapacity", "InsufficientVolumeCapacity", "InternalError", "InternalFailure", "ServerInternal",
	}
	statuses = map[string]int{
		"AuthFailure": http.StatusUnauthorized, "DryRunOperation": http.StatusPreconditionFailed, "UnauthorizedOperation": http.StatusForbidden,
	}
	// Of ELBv2 and STS, beside those of their models ("Common errors").
	queryStatuses = map[string]int{
		"AccessDenied": http.StatusForbidden, "InvalidClientTokenId": http.StatusForbidden, "SignatureDoesNotMatch": http.StatusForbidden,
		"MissingAuthenticationToken": http.StatusForbidden, "RequestExpired": http.StatusBadRequest, "HealthUnavailable": http.StatusInternalServerError,
		"PriorRequestNotComplete": http.StatusTooManyRequests,
	}
)

func statusOf(service, code string) int {
	if slices.Contains(unavailableCodes, code) {
		return http.StatusServiceUnavailable
	}
	if slices.Contains(serverCodes, code) {
		return http.StatusInternalServerError
	}
	table := statuses
	if service != compute {
		table = queryStatuses
	}
	if s, ok := table[code]; ok {
		return s
	}
	return http.StatusBadRequest
}

// Refusal answers a call of EC2 with an error of that code, for
// testcloud.Fault.
func Refusal(code, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { writeError(w, compute, &apiError{code, message}) }
}

// BalancerRefusal is a Refusal in the form of ELBv2.
func BalancerRefusal(code, message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { writeError(w, balancing, &apiError{code, message}) }
}

type xmlError struct {
	Type    string `xml:"Type,omitempty"`
	Code    string `xml:"Code"`
	Message string `xml:"Message"`
}

type computeErrors struct {
	XMLName   xml.Name   `xml:"Response"`
	Errors    []xmlError `xml:"Errors>Error"`
	RequestID string     `xml:"RequestID"`
}

type queryError struct {
	XMLName   xml.Name
	Error     xmlError `xml:"Error"`
	RequestID string   `xml:"RequestId"`
}

// refusalOf returns err, or for one that the cloud does not mean to answer one of that
// code.
func refusalOf(err error, code string) *apiError {
	if refused, ok := errors.AsType[*apiError](err); ok {
		return refused
	}
	return &apiError{code, err.Error()}
}

func writeError(w http.ResponseWriter, service string, err error) {
	refused := refusalOf(err, "InternalError")
	status := statusOf(service, refused.code)
	if service != compute {
		kind := "Sender"
		if status >= http.StatusInternalServerError {
			kind = "Receiver"
		}
		writeXML(w, status, queryError{XMLName: xml.Name{Space: namespaces[service], Local: "ErrorResponse"}, Error: xmlError{kind, refused.code, refused.message}, RequestID: newRequestID()})
		return
	}
	writeXML(w, status, computeErrors{Errors: []xmlError{{"", refused.code, refused.message}}, RequestID: newRequestID()})
}

func writeXML(w http.ResponseWriter, status int, v any) {
	body, err := xml.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(xml.Header))
	_, _ = w.Write(body)
}
