package storagetest

// RunWithin is Run with another limit of each call.
var RunWithin = runWithin
