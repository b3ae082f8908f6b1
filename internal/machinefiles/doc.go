// Package machinefiles keeps, on a machine, the files that its server sends. It is
// independent of the wire: the caller calls Begin with a set, Write for each
// content that Begin requested, and Commit.
//
// # All or nothing
//
// In the receive directory each top-level name of a set is a symbolic link into a
// directory of the agent, in which every set has a version:
//
//	recv/app.env            -> .nstance/current/files/app.env
//	recv/tls                -> .nstance/current/files/tls
//	recv/.nstance/current   -> v7
//	recv/.nstance/v7/files/ (app.env, tls/web.crt, ...)
//	recv/.nstance/v7/manifest.json
//	recv/.nstance/incoming/ (contents on their way)
//
// A set is built beside the one in use and written to disk; then one rename of
// current puts all of it into use. Every reader sees the old set or the new one.
// A crash leaves one of the two: Open finishes a change that had passed the rename
// and removes one that had not.
//
// manifest.json is the Set. Its format is 1, which is not written; a later format
// will have "format": 2. An agent that does not know the format leaves the files
// as they are, reports that, and puts the next set in place.
//
// # Order
//
// The hash of a set is recorded (Options.Applied) when all of it is in place,
// and only if the server could make every file. Then the command runs, if there
// is one and something has changed. Its failure undoes nothing; it runs again
// when the agent starts, and with the next set.
package machinefiles
