package local

import "golang.org/x/sys/unix"

// awaitExit waits until the child pid has ended, without reaping it: its number
// and its group's stay taken.
func awaitExit(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return err == nil
		}
	}
}
