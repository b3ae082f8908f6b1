// Package filelimit bounds the files of one machine. Server and agent both keep the limits.
package filelimit

// The limits of a set of files.
const (
	Files        = 256     // in a set
	Size         = 1 << 20 // bytes of one file
	SetSize      = 8 << 20 // bytes of all files of a set
	Certificates = 16      // in a set
)
