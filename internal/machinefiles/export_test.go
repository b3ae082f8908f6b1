package machinefiles

// Directory is what a Store uses of an os.Root.
type Directory = directory

// WithDirectory opens the directory of a store in another way than with os.OpenRoot.
func WithDirectory(o Options, open func(path string) (Directory, error)) Options {
	o.openDir = open
	return o
}
