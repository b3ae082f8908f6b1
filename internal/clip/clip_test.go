package clip_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/clip"
)

func TestText(t *testing.T) {
	require.Equal(t, "ab", clip.Text("ab", 2))
	require.Equal(t, "a", clip.Text("aé", 2), "no half character")
	require.Equal(t, "ab", clip.Text("a\xffb", 3))
	require.Empty(t, clip.Text("ab", 0))
}

func TestQuote(t *testing.T) {
	whole := strings.Repeat("x", 64)
	require.Equal(t, whole, clip.Quote(whole))
	require.Equal(t, whole+"...", clip.Quote(whole+"y"))
	require.True(t, utf8.ValidString(clip.Quote("x"+strings.Repeat("é", 64))))
}

func Example() {
	fmt.Printf("%q is not a group", clip.Quote(strings.Repeat("web", 100)))
	// Output: "webwebwebwebwebwebwebwebwebwebwebwebwebwebwebwebwebwebwebwebwebw..." is not a group
}
