package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/admin"
	"github.com/nstance-go/nstance/internal/wire"
	"github.com/nstance-go/nstance/server"
)

// A background is a command of nstance-admin under way.
type background struct {
	*testing.T
	lines chan string // of standard output
	code  chan int
	stop  context.CancelFunc
}

func (o *office) start(args ...string) *background {
	ctx, cancel := context.WithCancel(o.Context())
	b := &background{T: o.T, lines: make(chan string, 100), code: make(chan int, 1), stop: cancel}
	out, in := io.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		env := map[string]string{"NSTANCE_ADMIN_DIR": o.dir}
		var errs bytes.Buffer
		b.code <- admin.Main(ctx, nil, args, strings.NewReader(""), in, &errs, func(k string) string { return env[k] })
		_ = in.Close()
	})
	wg.Go(func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			b.lines <- s.Text()
		}
	})
	o.Cleanup(func() { cancel(); wg.Wait() })
	return b
}

// change returns what the next line says.
func (b *background) change() drainChange {
	b.Helper()
	var printed struct {
		Change string
		Drain  json.RawMessage
	}
	require.NoError(b, json.Unmarshal([]byte(receive(b.T, b.lines)), &printed))
	var d apiv1.Drain
	require.NoError(b, protojson.Unmarshal(printed.Drain, &d))
	return drainChange{printed.Change, *wire.DrainOf(&d)}
}

// A drainChange is a line of drain watch.
type drainChange struct {
	Change string
	nstance.Drain
}

// TestDrainByHand has a script be the executor of drains, with nothing but the
// commands of nstance-admin.
func TestDrainByHand(t *testing.T) {
	o := newOffice(t, 3)
	o.until(func() bool { return o.count(nstance.EventCreated) == 4 })
	var web []nstance.InstanceID
	for _, i := range list[apiv1.Instance](o, "instance", "list", "--group", "web") {
		web = append(web, nstance.InstanceID(i.GetId()))
	}
	talks := map[nstance.InstanceID]*talk{}
	for _, id := range web {
		talks[id] = o.ready(id)
	}
	executors := func(present bool) {
		t.Helper()
		o.until(func() bool { return server.HasExecutor(o.server, "default") == present })
	}
	drain := func(id nstance.InstanceID) nstance.Drain {
		t.Helper()
		var r apiv1.DrainInstanceResponse
		o.must(&r, "instance", "drain", string(id), "-y")
		require.NotNil(t, r.GetDrain())
		return *wire.DrainOf(r.GetDrain())
	}

	follow := o.start("events", "--follow")
	o.until(func() bool { return server.AdminWatches(o.server) == 1 })
	first := drain(web[0])
	require.Equal(t, nstance.ExecutorAgent, first.Executor, "a watch of events drains nothing")
	receive(t, follow.lines)
	follow.stop()
	code, _, errs := o.run("drain", "ack", string(web[0]), "--generation", strconv.FormatUint(first.Generation, 10))
	require.Equal(t, 4, code, errs)

	watch := o.start("drain", "watch", "-o", "json")
	executors(true)
	second := drain(web[1])
	require.Equal(t, nstance.ExecutorOperator, second.Executor)
	c := watch.change()
	require.Equal(t, "requested", c.Change, "that of the agent is none of its business")
	require.Equal(t, second.Instance, c.Instance)
	require.Equal(t, second.Generation, c.Generation)
	require.Equal(t, nstance.ExecutorOperator, c.Executor)

	talks[second.Instance].notice(reclaim("e1", time.Minute))
	c = watch.change()
	require.Equal(t, "tightened", c.Change)
	require.True(t, c.Deadline.Before(second.Deadline))

	var ack apiv1.AcknowledgeDrainedResponse
	o.must(&ack, "drain", "ack", string(c.Instance), "--generation", strconv.FormatUint(c.Generation, 10), "--failed", "--reason", "busy")
	e := o.await(nstance.EventDrainAcknowledged, c.Instance)
	require.Equal(t, "busy", e.Error)
	_, deleted, _ := o.find(nstance.EventDeleteRequested, c.Instance)
	require.False(t, deleted, "the deadline decides")

	again := o.start("drain", "watch", "-o", "json")
	found := again.change()
	require.Equal(t, []any{"requested", c.Instance, c.Generation}, []any{found.Change, found.Instance, found.Generation}, "it is under way")
	o.must(&ack, "drain", "ack", string(c.Instance), "--generation", strconv.FormatUint(c.Generation, 10))
	require.Equal(t, "ended", watch.change().Change)
	require.Equal(t, "ended", again.change().Change)
	o.await(nstance.EventDeleted, c.Instance)

	for _, b := range []*background{watch, again} {
		b.stop()
		require.Zero(t, receive(t, b.code))
	}
	executors(false)
	require.Equal(t, nstance.ExecutorAgent, drain(web[2]).Executor)
}
