// Package dirwatch tells tests how the names in a directory were changed, which
// no look at the directory afterwards can: whether a name was replaced by one
// rename, or was missing for a moment. It works on Linux only.
package dirwatch
