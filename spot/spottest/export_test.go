package spottest

// RunWithin is Run with another limit of each wait.
var RunWithin = runWithin
