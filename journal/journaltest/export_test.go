package journaltest

// RunWithin is Run with another limit for each call.
var RunWithin = runWithin
