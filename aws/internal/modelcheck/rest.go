package modelcheck

import (
	_ "embed"
	"net/http"
)

//go:embed rest.py
var restProgram string

// A restExchange is one recorded call of ARC zonal shift, whose protocol is restJson1.
type restExchange struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	Query  string `json:"query"`
	Status int    `json:"status"`
	Error  string `json:"error"`
	Answer string `json:"answer"`
}

// keepREST records a call if it has the protocol.
func (r *Recorder) keepREST(q *http.Request, answer *copied) {
	if q.Method == http.MethodPost {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restCalls = append(r.restCalls, restExchange{q.Method, q.URL.Path, q.URL.RawQuery, answer.status, answer.Header().Get("X-Amzn-Errortype"), answer.body.String()})
}
