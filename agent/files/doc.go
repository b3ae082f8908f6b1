// Package files keeps, on a machine, the files that its server sends. It knows
// nothing of the wire: whoever brings a set calls Begin, Write for each content
// that Begin lacked, and Commit.
//
// # All or nothing
//
// In the receive directory each top-level name of a set is a symbolic link into
// a directory of the agent's own, in which every set has a version:
//
//	recv/app.env            -> .nstance/current/files/app.env
//	recv/tls                -> .nstance/current/files/tls
//	recv/.nstance/current   -> v7
//	recv/.nstance/v7/files/ (app.env, tls/web.crt, ...)
//	recv/.nstance/v7/manifest.json
//	recv/.nstance/incoming/ (contents on their way)
//
// A set is built beside the one in use and written to disk; then one rename of
// current puts all of it to use. Whoever opens a file sees the old set or the
// new one, and a crash leaves one of the two: Open finishes what is left to do
// and forgets what had not come so far.
//
// manifest.json is the Set. Its format is 1, which is not written; a later one
// will say "format": 2. An agent that does not know the format leaves the files
// as they are, says so, and puts in place whatever set comes next.
//
// # Order
//
// The hash of a set is recorded (Options.Applied) when all of it is in place,
// and only if the server could make every file. Then the command runs, if there
// is one and something has changed. Its failure undoes nothing; it runs again
// when the agent starts, and with the next set.
package files
