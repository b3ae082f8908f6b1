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
		calls    int
	}{
		"is written":                              {want: "new", calls: 1},
		"stands already":                          {standing: "old", want: "old", calls: 2},
		"is written, and the answer is lost":      {faults: []storagetest.Fault{fault(storagetest.PutIfAbsent, storagetest.LoseAnswer, nstance.Ambiguous)}, want: "new", calls: 2},
		"is written by a repeated request":        {faults: []storagetest.Fault{fault(storagetest.PutIfAbsent, storagetest.LoseAnswer, nstance.Conflict)}, want: "new", calls: 2},
		"is not written":                          {faults: []storagetest.Fault{fault(storagetest.PutIfAbsent, storagetest.Refuse, nstance.Unavailable)}, err: nstance.Unavailable, calls: 2},
		"is refused, and not read back":           {standing: "old", faults: []storagetest.Fault{fault(storagetest.PutIfAbsent, storagetest.Refuse, nstance.Denied)}, err: nstance.Denied, calls: 1},
		"may be written, and cannot be read back": {faults: []storagetest.Fault{fault(storagetest.PutIfAbsent, storagetest.LoseAnswer, nstance.Ambiguous), fault(storagetest.Get, storagetest.Refuse, nstance.Unavailable)}, err: nstance.Ambiguous, calls: 2},
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
			require.Equal(t, tt.calls, s.Count(""))
			if tt.err != "" {
				require.ErrorIs(t, err, tt.err)
				require.NotErrorIs(t, err, nstance.NotFound, "that it is missing is no error of a write")
				require.Empty(t, got)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, string(got))
		})
	}
	t.Run("an error names both the write and the read back", func(t *testing.T) {
		s := storagetest.NewFaulty(storage.NewMemory())
		s.Inject(fault(storagetest.PutIfAbsent, storagetest.LoseAnswer, nstance.Ambiguous), fault(storagetest.Get, storagetest.Refuse, nstance.Throttled))
		_, err := records.PutOnce(t.Context(), s, "a", []byte("new"))
		require.ErrorIs(t, err, nstance.Ambiguous)
		require.ErrorIs(t, err, nstance.Throttled)
	})
}
