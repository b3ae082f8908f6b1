package testcloud

import (
	"sync"
	"time"
)

// Timers call functions later, with the lock of the cloud that owns them held. They may be
// used concurrently by callers that hold it.
type Timers struct {
	lock    sync.Locker
	pending map[*time.Timer]struct{} // guarded by lock, as stopped is
	stopped bool
	running sync.WaitGroup // of those that fire
}

// NewTimers returns timers of a cloud with this lock.
func NewTimers(lock sync.Locker) *Timers {
	return &Timers{lock: lock, pending: map[*time.Timer]struct{}{}}
}

// After calls do when d is over: at once for zero, never for a negative d or
// after Stop. It needs the lock.
func (s *Timers) After(d time.Duration, do func()) {
	switch {
	case d < 0 || s.stopped:
		return
	case d == 0:
		do()
		return
	}
	s.running.Add(1)
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		defer s.running.Done()
		s.lock.Lock()
		defer s.lock.Unlock()
		delete(s.pending, t)
		if !s.stopped {
			do()
		}
	})
	s.pending[t] = struct{}{}
}

// Stop has no function called any more. It needs the lock.
func (s *Timers) Stop() {
	s.stopped = true
	for t := range s.pending {
		if t.Stop() {
			s.running.Done()
		}
	}
	clear(s.pending)
}

// Wait waits until none is running after Stop. It must not hold the lock.
func (s *Timers) Wait() { s.running.Wait() }
