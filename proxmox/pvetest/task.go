package pvetest

import (
	"fmt"
	"time"
)

// A task is work that a call has started. Its fields are guarded by Cloud.mu.
type task struct {
	upid   string
	node   string
	kind   string
	id     string
	user   string
	start  time.Time
	serial int
	exit   string // empty: it runs
	log    []string
}

// A step is a part of a task. An error ends it, as its exit status.
type step struct {
	delay time.Duration
	do    func() error
}

// work starts a task and returns its UPID (pve-common, UPID.pm). The caller does
// not hold c.mu.
func (c *Cloud) work(user, node, kind, id string, first string, undo func(), steps ...step) string {
	c.mu.Lock()
	c.serial++
	t := &task{node: node, kind: kind, id: id, user: user, start: time.Now(), serial: c.serial}
	t.upid = fmt.Sprintf("UPID:%s:%08X:%08X:%08X:%s:%s:%s:", node, t.serial, t.serial, t.start.Unix(), kind, id, user)
	if first != "" {
		t.log = append(t.log, first)
	}
	c.tasks[t.upid] = t
	var failure string
	if exits := c.failing[kind]; len(exits) > 0 {
		failure, c.failing[kind] = exits[0], exits[1:]
	}
	c.mu.Unlock()
	c.next(t, failure, undo, steps)
	return t.upid
}

// next does the rest of a task's steps. An armed failure comes in place of the
// last one's effect.
func (c *Cloud) next(t *task, failure string, undo func(), steps []step) {
	if len(steps) == 0 {
		c.end(t, "OK")
		return
	}
	c.after(steps[0].delay, func() {
		var err error
		if failure != "" && len(steps) == 1 {
			err = fmt.Errorf("%s", failure)
		} else {
			err = steps[0].do()
		}
		if err != nil {
			if undo != nil {
				undo()
			}
			c.end(t, err.Error())
			return
		}
		c.next(t, failure, undo, steps[1:])
	})
}

func (c *Cloud) end(t *task, exit string) {
	c.mu.Lock()
	defer c.mu.Unlock()
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
	for upid, t := range c.tasks {
		if t.exit != "" {
			delete(c.tasks, upid)
		}
	}
}

func (c *Cloud) findTask(r *call) (*task, error) {
	t := c.tasks[r.PathValue("upid")]
	if t == nil {
		return nil, invalid("upid", "no such task")
	}
	if t.user != r.user && !r.may("/nodes/"+t.node, "Sys.Audit") {
		return nil, denied("/nodes/"+t.node, "Sys.Audit")
	}
	return t, nil
}

func (c *Cloud) taskStatus(r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, err := c.findTask(r)
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

func (c *Cloud) taskLog(r *call) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, err := c.findTask(r)
	if err != nil {
		return nil, err
	}
	out := []map[string]any{}
	for i, line := range t.log {
		out = append(out, map[string]any{"n": i + 1, "t": line})
	}
	return out, nil
}
