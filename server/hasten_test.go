package server_test

import "github.com/nstance-go/nstance/server"

// What world_test.go asks of the inside of a server. The integration module compiles that
// file too, where this one has another form.
var (
	hasten      = server.Hasten
	hastenRates = server.HastenRates
	groupsKnown = server.GroupsKnown
)
