package aws_test

import "net/http"

// record wraps every test cloud with the recorder of modelcheck, if the build has it
// (servers_test.go).
var record = func(h http.Handler) http.Handler { return h }
