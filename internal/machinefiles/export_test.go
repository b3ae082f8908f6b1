package machinefiles

// ErrCrash is what a step returns to end everything as a crash would.
var ErrCrash = errCrash

// WithSteps calls step after each step of a commit.
func WithSteps(o Options, step func(label string) error) Options {
	o.step = step
	return o
}
