package nstance

// FormatInstanceID returns the ID of a kind and a UUID.
var FormatInstanceID = formatInstanceID
