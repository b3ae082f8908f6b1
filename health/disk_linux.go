package health

import (
	"errors"
	"math"
	"syscall"
)

// diskUsage returns the used part of the file system at path in percent, as an
// unprivileged user sees it: blocks reserved for root are neither used nor free.
func diskUsage(path string) (float64, error) {
	var fs syscall.Statfs_t
	err := syscall.Statfs(path, &fs)
	for errors.Is(err, syscall.EINTR) {
		err = syscall.Statfs(path, &fs)
	}
	if err != nil {
		return math.NaN(), err
	}
	used := float64(fs.Blocks) - float64(fs.Bfree)
	return percent(used, used+float64(fs.Bavail)), nil
}
