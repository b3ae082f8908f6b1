package config

import "time"

// A Status says which configuration is in force, held and refused. Zero times mean:
// none.
type Status struct {
	Digest     string
	AcceptedAt time.Time

	HeldDigest, HeldReason string
	HeldAt                 time.Time

	RefusedAt time.Time
	Refusal   error
}
