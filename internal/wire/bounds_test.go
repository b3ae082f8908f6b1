package wire_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	apiv1 "github.com/nstance-go/nstance/api/v1"
	"github.com/nstance-go/nstance/internal/filelimit"
	"github.com/nstance-go/nstance/internal/wire"
)

// TestBounds: what a peer makes long, or a clock that was set makes negative, is cut.
func TestBounds(t *testing.T) {
	t.Parallel()
	require.Len(t, wire.FileStatusesOf(make([]*apiv1.FileStatus, filelimit.Files+1)), filelimit.Files)
	now := time.Now()
	ahead := wire.NoticeAt(nstance.Notice{DetectedAt: now.Add(time.Hour)}, now)
	require.Zero(t, ahead.GetSinceDetected().AsDuration())
}

// TestErrorSaysWhereToRegister: an agent that asked a standby is told who leads.
func TestErrorSaysWhereToRegister(t *testing.T) {
	t.Parallel()
	err := wire.ErrorOf(wire.Status(&nstance.Error{Code: nstance.Unavailable, Msg: "not leading", Leader: "a:1", LeaderRegistration: "a:2"}))
	var e *nstance.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "a:1", e.Leader)
	require.Equal(t, "a:2", e.LeaderRegistration)
}
