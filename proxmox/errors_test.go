package proxmox_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/test/doctest"
	"github.com/nstance-go/nstance/proxmox"
	"github.com/nstance-go/nstance/proxmox/pvetest"
)

// TestErrors checks every row of the table through the real client: as the answer to a
// read, in the body or in the status line alone.
func TestErrors(t *testing.T) {
	b := newBench(t, nil)
	id := b.spec().ID
	for _, row := range proxmox.ErrorRows() {
		status, text := row.Status, row.Text
		if status == 0 {
			status = 500
		}
		if text == "" {
			text = "no text that another row knows"
		}
		b.cloud.Faults().Next(callList, answer(status, "before "+text+" after"))
		_, err := b.p.Get(t.Context(), id)
		b.refused(row.Code, err)
		require.ErrorContains(t, err, text)
		if row.Status == 0 { // the exit status of a task
			fresh := newBench(t, nil)
			for range 8 { // a used VMID is followed by the next
				fresh.cloud.FailTasks("qmclone", "clone failed: "+text)
			}
			_, err := fresh.p.Create(t.Context(), fresh.spec())
			fresh.refused(row.Code, err)
		}
	}
	b.cloud.Faults().Next(callList, answer(500, "no text that a row knows"))
	_, err := b.p.Get(t.Context(), id)
	b.refused(nstance.Unavailable, err)
	b.cloud.Faults().Next(callClone, answer(500, "Linked clone feature is not supported for drive 'scsi0'"))
	_, err = b.p.Create(t.Context(), b.spec())
	b.refused(nstance.Invalid, err)
	require.ErrorContains(t, err, "Linked clone feature is not supported")
	fresh := newBench(t, nil)
	fresh.cloud.FailTasks("qmclone", "no text that a row knows")
	_, err = fresh.p.Create(t.Context(), fresh.spec())
	fresh.refused(nstance.Invalid, err)
	for _, status := range []int{502, 503, 504, 595, 596, 599} {
		b.cloud.Faults().Next(callList, answer(status, ""))
		_, err := b.p.Get(t.Context(), id)
		b.refused(nstance.Unavailable, err)
		b.cloud.Faults().Next(callClone, answer(status, ""))
		_, err = b.p.Create(t.Context(), b.spec())
		b.refused(nstance.Ambiguous, err)
	}
}

// TestReason: before version 8 the message is in the status line alone; behind
// a proxy that speaks HTTP/2 it is in the body alone.
func TestReason(t *testing.T) {
	for _, o := range []pvetest.Options{{}, {NoReason: true}, {NoMessage: true}} {
		b := newBench(t, &o)
		b.cloud.SetQuorum(false)
		_, err := b.p.Create(t.Context(), b.spec())
		b.refused(nstance.Unavailable, err)
		require.ErrorContains(t, err, "cluster not ready - no quorum?")
		b.cloud.SetQuorum(true)
		require.Empty(t, b.cloud.Volumes())
	}
}

func TestWrongToken(t *testing.T) {
	b := newBench(t, &pvetest.Options{Tokens: map[string]pvetest.Token{"root@pam!test": {Secret: "changed"}}})
	_, err := b.p.Get(t.Context(), b.spec().ID)
	b.refused(nstance.Denied, err)
}

func TestErrorsAreDocumented(t *testing.T) {
	var s strings.Builder
	fmt.Fprintln(&s, "| status | the message contains | code | meaning |\n|---|---|---|---|")
	for _, r := range proxmox.ErrorRows() {
		status, text := "500, task", "—"
		if r.Status != 0 {
			status = fmt.Sprint(r.Status)
		}
		if r.Text != "" {
			text = "`" + r.Text + "`"
		}
		fmt.Fprintf(&s, "| %s | %s | `%s` | %s |\n", status, text, r.Code, r.Meaning)
	}
	doctest.Section(t, "../docs/errors.md", "proxmox", s.String())
}

func FuzzMarks(f *testing.F) {
	f.Add("x\n```nstance\n{\"id\": \"web06h095944ss1h2crzd2k9gjxkr\", \"vmid\": 1}\n```")
	f.Add("nstance;nstance-id-web06h095944ss1h2crzd2k9gjxkr;nstance-vmid-1")
	f.Fuzz(func(_ *testing.T, s string) {
		proxmox.Notes(s)
		proxmox.Tags(s)
	})
}
