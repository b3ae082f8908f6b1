package pvetest

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/nstance-go/nstance/provider/testcloud"
)

// A task is work that a call has started. Its fields are guarded by the cloud's lock.
type task struct {
	upid    string
	node    string
	kind    string
	id      string
	user    string
	start   time.Time
	serial  int
	undo    func() // is called when a step fails; nil: nothing
	failure string // in place of the last step's effect; empty: none
	exit    string // empty: it runs
	log     []string
}

// A step is a part of a task. An error ends it, as its exit status. It runs under the
// cloud's lock.
type step struct {
	delay time.Duration
	do    func() error
}

// A taskList is the tasks of the cluster.
type taskList struct {
	timers  *testcloud.Timers
	all     map[string]*task
	failing map[string][]string // exit statuses of the next tasks, by type
	serial  int
}

// vmTask is a task of a call for a machine.
func (r *call) vmTask(v *vm, kind string) *task {
	return &task{node: v.node, kind: kind, id: itoa(v.id), user: r.user}
}

// begin starts a task and returns its UPID (pve-common, UPID.pm).
func (l *taskList) begin(t *task, steps ...step) string {
	l.serial++
	t.start, t.serial = time.Now(), l.serial
	t.upid = fmt.Sprintf("UPID:%s:%08X:%08X:%08X:%s:%s:%s:", t.node, t.serial, t.serial, t.start.Unix(), t.kind, t.id, t.user)
	l.all[t.upid] = t
	if exits := l.failing[t.kind]; len(exits) > 0 {
		t.failure, l.failing[t.kind] = exits[0], exits[1:]
	}
	l.next(t, steps)
	return t.upid
}

// next does the rest of a task's steps.
func (l *taskList) next(t *task, steps []step) {
	if len(steps) == 0 {
		t.end("OK")
		return
	}
	l.timers.After(steps[0].delay, func() {
		var err error
		if t.failure != "" && len(steps) == 1 {
			err = errors.New(t.failure)
		} else {
			err = steps[0].do()
		}
		if err != nil {
			if t.undo != nil {
				t.undo()
			}
			t.end(err.Error())
			return
		}
		l.next(t, steps[1:])
	})
}

func (t *task) end(exit string) {
	t.exit = exit
	if exit == "OK" {
		t.log = append(t.log, "TASK OK")
	} else {
		t.log = append(t.log, "TASK ERROR: "+exit)
	}
}

// PruneTasks forgets all tasks that have ended, as log rotation does.
func (c *Cloud) PruneTasks() {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.tasks.all, func(_ string, t *task) bool { return t.exit != "" })
}

func (l *taskList) find(r *call) (*task, error) {
	t := l.all[r.PathValue("upid")]
	if t == nil {
		return nil, invalid("upid", "no such task")
	}
	if t.user != r.user && !r.may("/nodes/"+t.node, "Sys.Audit") {
		return nil, denied("/nodes/"+t.node, "Sys.Audit")
	}
	return t, nil
}

func (l *taskList) status(r *call) (any, error) {
	t, err := l.find(r)
	if err != nil {
		return nil, err
	}
	out := map[string]any{
		"upid": t.upid, "node": t.node, "type": t.kind, "id": t.id, "user": t.user, "starttime": t.start.Unix(),
		"pid": t.serial, "pstart": t.serial, "status": "running",
	}
	if t.exit != "" {
		out["status"], out["exitstatus"] = "stopped", t.exit
	}
	return out, nil
}

func (l *taskList) lines(r *call) (any, error) {
	t, err := l.find(r)
	if err != nil {
		return nil, err
	}
	out := []map[string]any{}
	for i, line := range t.log {
		out = append(out, map[string]any{"n": i + 1, "t": line})
	}
	return out, nil
}
