package storage

import "os"

// SetStep installs the seam of the crash tests: it is called before the named step of a
// write, and its error becomes the step's.
func (d *Dir) SetStep(step func(step string) error) { d.step = step }

// OpenDirSynced opens a store that calls sync for each file and folder that must be
// durable.
func OpenDirSynced(path string, sync func(*os.File) error) (*Dir, error) {
	d, err := newDir(path)
	if err == nil {
		d.sync = sync
		err = d.open(false)
	}
	return d, err
}
