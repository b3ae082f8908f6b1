package armtest

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// A Refusal is an answer that refuses a request, in Azure's form ("Common API
// details, error response content", Microsoft REST API guidelines).
type Refusal struct {
	Status  int
	Code    string
	Message string
	Details []Detail
	Header  map[string]string
}

// A Detail is a cause inside a refusal.
type Detail struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Error implements error, so that a fake server passes it on.
func (r *Refusal) Error() string { return r.Code + ": " + r.Message }

// ServeHTTP writes the refusal: usable as the answer of a testcloud.Fault.
func (r *Refusal) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	type body struct {
		Code    string   `json:"code"`
		Message string   `json:"message"`
		Details []Detail `json:"details,omitempty"`
	}
	for name, value := range r.Header {
		w.Header().Set(name, value)
	}
	writeJSON(w, r.Status, map[string]body{"error": {r.Code, r.Message, r.Details}})
}

const jsonType = "application/json; charset=utf-8"

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings in structs always encode
	}
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(status)
	w.Write(b) //nolint:errcheck // the client left
}

func refuse(status int, code, format string, args ...any) *Refusal {
	return &Refusal{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}

func badParameter(name, format string, args ...any) *Refusal {
	return refuse(http.StatusBadRequest, "InvalidParameter", "parameter %s: %s", name, fmt.Sprintf(format, args...))
}

func resourceNotFound(id string) *Refusal {
	return refuse(http.StatusNotFound, "ResourceNotFound", "The Resource %q was not found.", id)
}
