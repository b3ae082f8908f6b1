package clip_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode"
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

func TestEnds(t *testing.T) {
	require.Equal(t, "abcdefghi", clip.Ends("abcdefghi", 9))
	require.Equal(t, "abcd...ij", clip.Ends("abcdefghij", 9))
	require.Equal(t, "abc", clip.Ends("abcdefghij", 3))
	require.True(t, utf8.ValidString(clip.Ends(strings.Repeat("é", 100), 40)))
	require.Equal(t, "EOF", clip.Words("Put " + strings.Repeat("a/b ", 500) + "EOF")[509:], "the cause stays")
}

func TestWords(t *testing.T) {
	require.Equal(t, "a b", clip.Words("a\x1b\n\tb\xff"))
	require.Equal(t, "GET https://store/x[removed] failed", clip.Words("GET https://store/x?X-Amz-Signature=abc&y=1 failed"))
	require.Equal(t, "value [removed] is invalid", clip.Words("value "+strings.Repeat("aGVsbG8", 40)+" is invalid"))
	require.Equal(t, "is it so? yes", clip.Words("is it so? yes"))
	require.Len(t, clip.Words(strings.Repeat("ab ", 4000)), 512)
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

// TestNothingControlsATerminal: whatever a text was written by, what is kept, quoted or
// shown of it holds no control characters.
func TestNothingControlsATerminal(t *testing.T) {
	for _, s := range []string{"\x1b[31mred", "a\x9b31mb", "\u009b31m", "a\rb", "\x07bell", "\x7f", "\u202etxt.exe", "\u2066x", "\x1b]0;title\x07", "\x00"} {
		for name, got := range map[string]string{
			"Text": clip.Text(s, 100), "Line": clip.Line(s), "Words": clip.Words(s), "Quote": clip.Quote(s), "Quote of a long text": clip.Quote(s + strings.Repeat("x", 100)),
		} {
			require.True(t, utf8.ValidString(got))
			for _, r := range got {
				require.False(t, unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r), "%s of %q is %q", name, s, got)
			}
		}
	}
	require.Equal(t, "a\n\tb", clip.Text("a\n\tb", 10), "lines stay")
	require.Equal(t, "a  b", clip.Line("a\n\tb"))
}
