package proxmox_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider/testcloud"
)

const callReadConfig = "GET /nodes/{node}/qemu/{vmid}/config"

// TestConfigThatIsNone: an answer without a configuration does not say that the machine is gone.
func TestConfigThatIsNone(t *testing.T) {
	for name, body := range map[string]string{"null": `{"data": null}`, "nothing": `{}`, "empty": `{"data": {}}`} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil)
			m := b.create(b.spec())
			b.running(b.p, m.ID)
			b.eventually(b.finished, "half made")
			b.cloud.Faults().All(callReadConfig, testcloud.Fault{Answer: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }})
			_, err := b.p.Get(t.Context(), m.ID)
			b.refused(nstance.Unavailable, err)
			b.refused(nstance.Unavailable, b.p.Delete(t.Context(), m))
			b.cloud.Faults().Clear()
			require.Len(t, b.cloud.Machines(), 1)
			b.gone(b.p, m)
		})
	}
}

// TestOddStatuses: below 500 a refusal is definite, with words or without, unless it is about
// the time or the place of the call.
func TestOddStatuses(t *testing.T) {
	for status, want := range map[int]nstance.Code{
		301: nstance.Ambiguous, 402: nstance.Invalid, 405: nstance.Invalid, 408: nstance.Ambiguous, 409: nstance.Invalid, 413: nstance.Invalid, 451: nstance.Invalid, 500: nstance.Ambiguous,
	} {
		for _, fault := range []testcloud.Fault{testcloud.Page(status), answer(status, "")} {
			b := newBench(t, nil)
			b.cloud.Faults().Next(callClone, fault)
			_, err := b.p.Create(t.Context(), b.spec())
			b.refused(want, err)
			require.Empty(t, b.cloud.Machines())
		}
	}
	b := newBench(t, nil)
	for status, want := range map[int]nstance.Code{301: nstance.Unavailable, 408: nstance.Unavailable, 405: nstance.Invalid} {
		b.cloud.Faults().Next(callList, testcloud.Page(status))
		_, err := b.p.Get(t.Context(), b.spec().ID)
		b.refused(want, err)
	}
}

// TestStorageMissing: that a storage is not there is a refusal, and no machine has moved.
func TestStorageMissing(t *testing.T) {
	for _, words := range []string{"storage 'fast' does not exist", "storage 'fast' is not available on node 'pve1'"} {
		b := newBench(t, nil)
		b.cloud.Faults().Next(callClone, answer(500, words))
		_, err := b.p.Create(t.Context(), b.spec())
		b.refused(nstance.Invalid, err)
		require.ErrorContains(t, err, words)
	}
}
