// Package modelcheck checks the requests and answers of a test cloud for EC2 against
// AWS's own model of its APIs, which is part of the Python library botocore. It is
// for tests that need more than Go: `make test-clouds`.
package modelcheck

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

//go:embed check.py
var program string

// services are the services other than EC2, by the version of their API.
var services = map[string]string{"2015-12-01": "elasticloadbalancing", "2011-06-15": "sts"}

// jsonServices are the services that are called in JSON, by what begins their target.
var jsonServices = map[string]string{"AmazonSQS": "sqs", "AmazonSSM": "ssm"}

// An exchange is one recorded call.
type exchange struct {
	Service string `json:"service"`
	Action  string `json:"action,omitempty"` // of a service whose requests do not name it
	Request string `json:"request"`
	Status  int    `json:"status"`
	Answer  string `json:"answer"`
}

// A Recorder records the calls of test clouds. Its zero value is ready to use, and
// safe for concurrent use.
type Recorder struct {
	mu        sync.Mutex
	calls     []exchange
	restCalls []restExchange
}

// Record returns a handler that records the requests and answers of h. An answer of something
// between, which says so in its header Via, is none of the cloud.
func (r *Recorder) Record(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		q.Body = io.NopCloser(bytes.NewReader(body))
		answer := &copied{ResponseWriter: w, status: http.StatusOK}
		h.ServeHTTP(answer, q) // panics for a lost answer: then there is none to record
		if answer.Header().Get("Via") != "" {
			return
		}
		target, action, _ := strings.Cut(q.Header.Get("X-Amz-Target"), ".")
		if service, ok := jsonServices[target]; ok {
			r.add(exchange{service, action, string(body), answer.status, answer.body.String()})
			return
		}
		r.keep(string(body), answer)
		r.keepREST(q, answer)
	})
}

func (r *Recorder) add(e exchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, e)
}

func (r *Recorder) keep(body string, answer *copied) {
	form, err := url.ParseQuery(body)
	if err != nil || form.Get("Version") == "" {
		return
	}
	service, known := services[form.Get("Version")]
	if !known {
		service = "ec2"
	}
	r.add(exchange{service, "", body, answer.status, answer.body.String()})
}

// copied is a response writer that also keeps the answer.
type copied struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (c *copied) WriteHeader(status int) {
	c.status = status
	c.ResponseWriter.WriteHeader(status)
}

func (c *copied) Write(b []byte) (int, error) {
	c.body.Write(b)
	return c.ResponseWriter.Write(b)
}

// Check returns what the model does not know or permit in the calls so far, and the
// number of calls. It fails without botocore.
func (r *Recorder) Check() (complaints []string, calls int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	complaints, calls, err = check(program, r.calls)
	if err != nil {
		return nil, 0, err
	}
	more, restCalls, err := check(restProgram, r.restCalls)
	return append(complaints, more...), calls + restCalls, err
}

// check has a program in Python look at calls.
func check[E any](program string, all []E) (complaints []string, calls int, err error) {
	var in bytes.Buffer
	for _, e := range all {
		if err := json.NewEncoder(&in).Encode(e); err != nil {
			return nil, 0, err
		}
	}
	python, err := interpreter()
	if err != nil {
		return nil, 0, err
	}
	var out, errs bytes.Buffer
	cmd := exec.Command(python, "-c", program)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, 0, fmt.Errorf("%w: %s", err, errs.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	last, ok := strings.CutPrefix(lines[len(lines)-1], "calls: ")
	if calls, err = strconv.Atoi(last); !ok || err != nil || calls != len(all) {
		return nil, 0, fmt.Errorf("the model check has read %q of %d calls", last, len(all))
	}
	return lines[:len(lines)-1], calls, nil
}

// Main is a TestMain: it passes a recorder to put, runs the tests, and fails if the
// model does not know or permit a recorded call, or if there is none.
func Main(m *testing.M, put func(*Recorder)) {
	recorder := &Recorder{}
	put(recorder)
	code := m.Run()
	complaints, calls, err := recorder.Check()
	if err != nil || len(complaints) > 0 || calls == 0 && code == 0 {
		code = max(code, 1)
		fmt.Println("AWS's model:", err)
	}
	for _, c := range slices.Compact(slices.Sorted(slices.Values(complaints))) {
		fmt.Println("   ", c)
	}
	fmt.Printf("%d calls checked against AWS's model\n", calls)
	os.Exit(code)
}

// interpreter finds a Python that has botocore: by itself, or within the aws
// command that Debian packages.
func interpreter() (string, error) {
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		for _, library := range []string{"botocore.session", "awscli.botocore.session"} {
			if exec.Command(python, "-c", "import "+library).Run() == nil {
				return python, nil
			}
		}
	}
	return "", fmt.Errorf("no Python with botocore: install awscli")
}
