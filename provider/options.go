package provider

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/validate"
)

// Options tune a Client. Nil and zero fields mean the defaults named here.
type Options struct {
	// Timeout bounds one Create, one Delete, one Get with its repeats, and
	// within a List the wait for each next machine. 30 seconds.
	Timeout time.Duration

	// Width is how many calls of a kind are in flight at most; others wait. The
	// kinds are deletes, calls under [Urgent], and all others. 100.
	Width int

	// Retries is how often a Get, or a List that has not yielded anything yet,
	// is repeated after Throttled or Unavailable. 3; negative means never.
	Retries int

	// MaxUserData is the largest accepted user data in bytes. 16384, which is
	// what AWS accepts before base64 ("Run commands when you launch an EC2
	// instance with user data input", EC2 User Guide), the least of the clouds.
	MaxUserData int

	// Rate is how many creates a second Reserve grants in the long run. 100.
	Rate float64

	// Burst is how many creates Reserve grants at once after a pause. 1000.
	Burst int

	// Observe is called for each call to the provider when it ends, repeats
	// included: op is create, get, list, delete or the name of an ability's call
	// such as join_balancer, code is "" for success, d is the time the provider
	// took. It may be called concurrently and must not block. Nil means no
	// observer.
	Observe func(op string, code nstance.Code, d time.Duration)

	// Alarm is called, once for each, when the provider answers with a status or a cause that
	// is not in the closed set, which the client turns into unknown. It may be called
	// concurrently and must not block. Nil means that only Log has it.
	Alarm func(text string)

	// Log receives repeats of reads and a lowered create rate, which a caller
	// does not see. Nil discards.
	Log *slog.Logger
}

// The defaults of Options.
const (
	defaultTimeout     = 30 * time.Second
	defaultWidth       = 100
	defaultRetries     = 3
	defaultMaxUserData = 16 << 10
	defaultRate        = 100
	defaultBurst       = 1000
)

// withDefaults returns a checked copy of o.
func (o *Options) withDefaults() (Options, error) {
	var out Options
	if o != nil {
		out = *o
	}
	if err := validate.Setting("timeout", out.Timeout, 7*24*time.Hour); err != nil {
		return out, err
	}
	const remedy = "use a positive value, or 0 for the default"
	switch {
	case out.Width < 0:
		return out, nstance.FieldError("width", remedy, "%d is negative", out.Width)
	case out.MaxUserData < 0:
		return out, nstance.FieldError("max_user_data", remedy, "%d is negative", out.MaxUserData)
	case !(out.Rate >= 0): // NaN too
		return out, nstance.FieldError("create_rate.per_second", remedy, "%v is not a rate", out.Rate)
	case out.Burst < 0:
		return out, nstance.FieldError("create_rate.burst", remedy, "%d is negative", out.Burst)
	}
	out.Timeout = cmp.Or(out.Timeout, defaultTimeout)
	out.Width = cmp.Or(out.Width, defaultWidth)
	out.Retries = max(cmp.Or(out.Retries, defaultRetries), 0)
	out.MaxUserData = cmp.Or(out.MaxUserData, defaultMaxUserData)
	out.Rate = cmp.Or(out.Rate, defaultRate)
	out.Burst = cmp.Or(out.Burst, defaultBurst)
	if out.Observe == nil {
		out.Observe = func(string, nstance.Code, time.Duration) {}
	}
	if out.Alarm == nil {
		out.Alarm = func(string) {}
	}
	if out.Log == nil {
		out.Log = slog.New(slog.DiscardHandler)
	}
	return out, nil
}
