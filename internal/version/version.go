// Package version says which version of the software this is.
package version

// Software is what the programs print, and servers tell each other.
const Software = "0.3.0"
