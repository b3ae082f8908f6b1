package duration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/duration"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "90s": 90 * time.Second, "7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour, "1.5h": 90 * time.Minute, "3650d": duration.Max,
	} {
		got, err := duration.Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for text, wrong := range map[string]string{
		"": "is not a duration", "d": "is not a duration", "-1s": "is negative", "1d-1h": "is not a duration", "1.5d": "is not a duration",
		"5": "is not a duration", "1h1d": "is not a duration", "3651d": "is longer than 3650d", "99999d": "is not a duration", "90000h": "is longer than 3650d",
	} {
		_, err := duration.Parse(text)
		require.ErrorIs(t, err, nstance.Invalid, text)
		require.ErrorContains(t, err, wrong, text)
	}
}

func TestFlag(t *testing.T) {
	var d time.Duration
	f := duration.NewFlag(&d, 48*time.Hour)
	require.Equal(t, "2d", f.String())
	require.Equal(t, "0", new(duration.Flag).String())
	require.NoError(t, f.Set("1d1h"))
	require.Equal(t, 25*time.Hour, d)
	require.Equal(t, "25h0m0s", f.String())
	require.ErrorContains(t, f.Set("soon"), `"soon" is not a duration, such as 90s, 12h or 7d`)
	require.Equal(t, 25*time.Hour, d, "what is refused changes nothing")
}
