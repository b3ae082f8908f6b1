package records

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMarksOf(t *testing.T) {
	for name, c := range map[string]struct{ records, marks, apart int }{
		"none for what one answer has":                     {998, 0, 0},
		"the last key is one, for what has come since":     {999, 1, 999},
		"no further apart than one answer reaches":         {2500, 2, 999},
		"evenly apart, and few, where there are very many": {100_000, 15, 6251},
	} {
		t.Run(name, func(t *testing.T) {
			all := make([]keyedRecord, c.records)
			for i := range all {
				all[i].key = fmt.Sprintf("%06d", i+1)
			}
			marks := marksOf(all)
			require.Len(t, marks, c.marks)
			for i, mark := range marks {
				require.Equal(t, fmt.Sprintf("%06d", (i+1)*c.apart), mark)
			}
		})
	}
}
