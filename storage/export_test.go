package storage

// SetStep installs the seam of the crash tests: it is called before the named
// step of a write, and its error is the step's.
func (d *Dir) SetStep(step func(step string) error) { d.step = step }
