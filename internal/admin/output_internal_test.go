package admin

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOutputControlsNoTerminal: JSON shows every text as it is, and a terminal obeys none
// of it.
func TestOutputControlsNoTerminal(t *testing.T) {
	t.Parallel()
	text := "\x1b[31m \u009b31m \x7f \u202e ü €"
	for _, form := range []string{formJSON, formYAML} {
		data, err := encode(map[string]string{"text": text}, form)
		require.NoError(t, err)
		for _, r := range string(data) {
			require.True(t, r == '\n' || printable(string(r)) == string(r), "%s: %q", form, data)
		}
	}
	data, err := encode(map[string]string{"text": text}, formJSON)
	require.NoError(t, err)
	var back map[string]string
	require.NoError(t, json.Unmarshal(data, &back))
	require.Equal(t, text, back["text"])
}
