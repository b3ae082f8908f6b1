package aws_test

import "net/http"

// record is put in front of every test cloud: the judge's recorder, where there
// is a judge (servers_test.go).
var record = func(h http.Handler) http.Handler { return h }
