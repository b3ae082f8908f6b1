package records_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/records"
	"github.com/nstance-go/nstance/storage"
	"github.com/nstance-go/nstance/storage/storagetest"
)

func TestPutOnce(t *testing.T) {
	fault := func(op storagetest.Op, mode storagetest.Mode, code nstance.Code) storagetest.Fault {
		return storagetest.Fault{Op: op, Mode: mode, Err: code}
	}
	for name, tt := range map[string]struct {
		standing string
		faults   []storagetest.Fault
		want     string
		err      nstance.Code
	}{
		"is written":                              {want: "new"},
		"stands already":                          {standing: "old", want: "old"},
		"is written, and the answer is lost":      {faults: []storagetest.Fault{fault(storagetest.PutIfAbsent, storagetest.LoseAnswer, nstance.Ambiguous)}, want: "new"},
		"is written by a repeated request":        {faults: []storagetest.Fault{fault(storagetest.PutIfAbsent, storagetest.LoseAnswer, nstance.Conflict)}, want: "new"},
		"is not written":                          {faults: []storagetest.Fault{fault(storagetest.PutIfAbsent, storagetest.Refuse, nstance.Unavailable)}, err: nstance.Unavailable},
		"is refused, and not read back":           {standing: "old", faults: []storagetest.Fault{fault(storagetest.PutIfAbsent, storagetest.Refuse, nstance.Denied)}, err: nstance.Denied},
		"may be written, and cannot be read back": {faults: []storagetest.Fault{fault(storagetest.PutIfAbsent, storagetest.LoseAnswer, nstance.Ambiguous), fault(storagetest.Get, storagetest.Refuse, nstance.Unavailable)}, err: nstance.Ambiguous},
	} {
		t.Run("an object that "+name, func(t *testing.T) {
			mem := storage.NewMemory()
			s := storagetest.NewFaulty(mem)
			if tt.standing != "" {
				_, err := mem.PutIfAbsent(t.Context(), "a", []byte(tt.standing))
				require.NoError(t, err)
			}
			s.Inject(tt.faults...)
			got, err := records.PutOnce(t.Context(), s, "a", []byte("new"))
			if tt.err != "" {
				require.ErrorIs(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, string(got))
		})
	}
}
