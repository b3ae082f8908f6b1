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

// A backgroundCommand is a running command of nstance-admin.
type backgroundCommand struct {
	*testing.T
	lines chan string // of standard output
	code  chan int
	stop  context.CancelFunc
}

func (o *adminCLI) start(args ...string) *backgroundCommand {
	ctx, cancel := context.WithCancel(o.Context())
	b := &backgroundCommand{T: o.T, lines: make(chan string, 100), code: make(chan int, 1), stop: cancel}
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

// nextChange decodes the next line.
func (b *backgroundCommand) nextChange() drainChange {
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

// TestScriptAcknowledgesDrains runs a drain executor that uses only commands of
// nstance-admin.
func TestScriptAcknowledgesDrains(t *testing.T) {
	t.Parallel()
	o := newAdminCLI(t, 3)
	o.poll(func() bool { return o.countEvents(nstance.EventCreated) == 4 })
	var web []nstance.InstanceID
	for _, i := range listMessages[apiv1.Instance](o, "instance", "list", "--group", "web") {
		web = append(web, nstance.InstanceID(i.GetId()))
	}
	talks := map[nstance.InstanceID]*agentSession{}
	for _, id := range web {
		talks[id] = o.connectReady(id)
	}
	executors := func(present bool) {
		t.Helper()
		o.poll(func() bool { return server.HasExecutor(o.server, "default") == present })
	}
	drain := func(id nstance.InstanceID) nstance.Drain {
		t.Helper()
		var r apiv1.DrainInstanceResponse
		o.mustRun(&r, "instance", "drain", string(id), "-y")
		require.NotNil(t, r.GetDrain())
		return *wire.DrainOf(r.GetDrain())
	}

	follow := o.start("events", "--follow")
	o.poll(func() bool { return server.AdminWatches(o.server) == 1 })
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
	c := watch.nextChange()
	require.Equal(t, "requested", c.Change, "that of the agent is none of its business")
	require.Equal(t, second.Instance, c.Instance)
	require.Equal(t, second.Generation, c.Generation)
	require.Equal(t, nstance.ExecutorOperator, c.Executor)

	talks[second.Instance].sendNotice(reclaimNotice("e1", time.Minute))
	c = watch.nextChange()
	require.Equal(t, "tightened", c.Change)
	require.True(t, c.Deadline.Before(second.Deadline))

	var ack apiv1.AcknowledgeDrainedResponse
	o.mustRun(&ack, "drain", "ack", string(c.Instance), "--generation", strconv.FormatUint(c.Generation, 10), "--failed", "--reason", "busy")
	e := o.awaitEvent(nstance.EventDrainAcknowledged, c.Instance)
	require.Equal(t, "busy", e.Error)
	_, deleted, _ := o.findEvent(nstance.EventDeleteRequested, c.Instance)
	require.False(t, deleted, "the deadline decides")

	again := o.start("drain", "watch", "-o", "json")
	found := again.nextChange()
	require.Equal(t, []any{"requested", c.Instance, c.Generation}, []any{found.Change, found.Instance, found.Generation}, "it is in progress")
	o.mustRun(&ack, "drain", "ack", string(c.Instance), "--generation", strconv.FormatUint(c.Generation, 10))
	require.Equal(t, "ended", watch.nextChange().Change)
	require.Equal(t, "ended", again.nextChange().Change)
	o.awaitEvent(nstance.EventDeleted, c.Instance)

	for _, b := range []*backgroundCommand{watch, again} {
		b.stop()
		require.Zero(t, receive(t, b.code))
	}
	executors(false)
	require.Equal(t, nstance.ExecutorAgent, drain(web[2]).Executor)
}
