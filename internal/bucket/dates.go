package bucket

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/nstance-go/nstance/storage"
)

// slowest is how long an answer may take whose date is believed. A slower one
// says too little.
const slowest = 10 * time.Second

// Dates notes what time it is at a service, by the Date header of its answers.
// The zero value is ready. It may be used concurrently.
type Dates struct {
	latest atomic.Pointer[storage.Reading]
}

// Date implements storage.Dated.
func (d *Dates) Date() (storage.Reading, bool) {
	r := d.latest.Load()
	if r == nil {
		return storage.Reading{}, false
	}
	return *r, true
}

// Note takes the date of an answer that has just arrived to a request that was
// sent at that time. A cache's answer is as old as it may be, and what has a
// status of 500 and more may be some gateway's: neither is believed.
func (d *Dates) Note(sent time.Time, answer *http.Response) {
	if answer == nil || answer.StatusCode >= http.StatusInternalServerError || answer.Header.Get("Age") != "" {
		return
	}
	date, err := http.ParseTime(answer.Header.Get("Date"))
	now := time.Now()
	if took := now.Sub(sent); err == nil && took <= slowest {
		d.latest.Store(&storage.Reading{Local: now, Remote: date.UTC(), Within: time.Second + took})
	}
}

// A Sender sends requests. It is an http.RoundTripper and what some client
// libraries want in place of an http.Client.
type Sender func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (s Sender) RoundTrip(r *http.Request) (*http.Response, error) { return s(r) }

// Do sends a request.
func (s Sender) Do(r *http.Request) (*http.Response, error) { return s(r) }

// Watch returns next, with the dates of its answers noted.
func (d *Dates) Watch(next Sender) Sender {
	return func(r *http.Request) (*http.Response, error) {
		sent := time.Now()
		answer, err := next(r)
		d.Note(sent, answer)
		return answer, err
	}
}
