// Package duration reads durations as everything of Nstance does: settings,
// flags, environment variables and arguments.
package duration

import (
	"strconv"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
)

// Max is far beyond any sensible setting and far from overflowing when durations
// are added.
const Max = 3650 * day

const day = 24 * time.Hour

// Parse accepts Go syntax, with whole days in front: 90s, 1h30m, 7d, 1d12h. It
// fails with Invalid; the message says what is wrong with s without repeating it.
func Parse(s string) (time.Duration, error) {
	days, rest, ok := strings.Cut(s, "d")
	if !ok {
		days, rest = "0", s
	}
	n, err := strconv.ParseUint(days, 10, 16)
	var d time.Duration
	if err == nil && (rest != "" || !ok) {
		d, err = time.ParseDuration(rest)
	}
	switch {
	case strings.HasPrefix(s, "-"):
		return 0, nstance.Errorf(nstance.Invalid, "is negative")
	case err != nil || strings.ContainsAny(rest, "+-"):
		return 0, nstance.Errorf(nstance.Invalid, "is not a duration")
	case d > Max || n > uint64(Max/day):
		return 0, nstance.Errorf(nstance.Invalid, "is longer than 3650d")
	}
	return min(time.Duration(n)*day+d, Max), nil
}

// A Flag is a flag's value: it implements the interfaces Value of packages flag
// and pflag.
type Flag struct{ at *time.Duration }

// NewFlag returns a flag that sets at, which gets the default.
func NewFlag(at *time.Duration, def time.Duration) *Flag {
	*at = def
	return &Flag{at}
}

// String returns the value, in days where it is a whole number of those.
func (f *Flag) String() string {
	switch {
	case f.at == nil || *f.at == 0:
		return "0"
	case *f.at > 0 && *f.at%day == 0:
		return strconv.FormatInt(int64(*f.at/day), 10) + "d"
	}
	return f.at.String()
}

// Type is what help calls the value.
func (*Flag) Type() string { return "duration" }

// Set reads the value.
func (f *Flag) Set(s string) error {
	d, err := Parse(s)
	if err != nil {
		return nstance.Errorf(nstance.Invalid, "%.64q %w, such as 90s, 12h or 7d", s, err)
	}
	*f.at = d
	return nil
}
