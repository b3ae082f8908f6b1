package secret_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage/secret"
)

func box(t testing.TB, keys ...secret.Key) *secret.Box {
	b, err := secret.NewBox(keys...)
	require.NoError(t, err)
	return b
}

func TestBox(t *testing.T) {
	old, now := secret.NewKey(), secret.NewKey()
	plain := []byte("the private key of an authority")
	sealed, err := box(t, old).Seal("identity-ca.key", plain)
	require.NoError(t, err)

	t.Run("opens what it sealed", func(t *testing.T) {
		for _, want := range [][]byte{plain, {}, bytes.Repeat([]byte{7}, 1<<16)} {
			data, err := box(t, old).Seal("x", want)
			require.NoError(t, err)
			got, err := box(t, old).Open("x", data)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
		}
	})
	t.Run("hides it", func(t *testing.T) {
		require.NotContains(t, string(sealed), "private")
		require.NotContains(t, string(sealed), "identity")
	})
	t.Run("returns other bytes each time", func(t *testing.T) {
		again, err := box(t, old).Seal("identity-ca.key", plain)
		require.NoError(t, err)
		require.NotEqual(t, sealed, again)
	})
	t.Run("opens with any key and seals with the first", func(t *testing.T) {
		both := box(t, now, old)
		got, err := both.Open("identity-ca.key", sealed)
		require.NoError(t, err)
		require.Equal(t, plain, got)
		data, err := both.Seal("identity-ca.key", plain)
		require.NoError(t, err)
		_, err = box(t, now).Open("identity-ca.key", data)
		require.NoError(t, err)
	})
	t.Run("reports what must be sealed again", func(t *testing.T) {
		require.True(t, box(t, now, old).Stale(sealed))
		require.False(t, box(t, old, now).Stale(sealed))
		require.False(t, box(t, old).Stale([]byte("no secret")))
	})
	t.Run("tells the key without one", func(t *testing.T) {
		id, ok := secret.SealedWith(sealed)
		require.True(t, ok)
		require.Equal(t, old.ID(), id)
		for _, data := range [][]byte{plain, nil, sealed[:10]} {
			_, ok := secret.SealedWith(data)
			require.False(t, ok)
		}
	})
	t.Run("refuses an empty name", func(t *testing.T) {
		_, err := box(t, old).Seal("", plain)
		require.ErrorIs(t, err, nstance.Invalid)
	})
	t.Run("a box without a key seals nothing", func(t *testing.T) {
		_, err := new(secret.Box).Seal("x", plain)
		require.ErrorIs(t, err, nstance.Invalid)
		_, err = new(secret.Box).Open("identity-ca.key", sealed)
		require.ErrorIs(t, err, nstance.Denied)
		require.False(t, new(secret.Box).Stale(sealed))
	})
}

func TestOpenRefuses(t *testing.T) {
	key := secret.NewKey()
	b := box(t, key)
	sealed, err := b.Seal("a", []byte("secret"))
	require.NoError(t, err)
	at := func(i int) []byte {
		data := bytes.Clone(sealed)
		data[(i+len(data))%len(data)] ^= 1
		return data
	}
	for name, tc := range map[string]struct {
		box  *secret.Box
		name string
		data []byte
		code nstance.Code
		says string
	}{
		"another name":      {b, "b", sealed, nstance.Denied, "another name"},
		"an unknown key":    {box(t, secret.NewKey()), "a", sealed, nstance.Denied, key.ID()},
		"an altered tag":    {b, "a", at(-1), nstance.Denied, "altered"},
		"an altered nonce":  {b, "a", at(17), nstance.Denied, "altered"},
		"an altered key ID": {b, "a", at(9), nstance.Denied, "not among those given"},
		"an unknown mode":   {b, "a", func() []byte { d := bytes.Clone(sealed); d[8] = 9; return d }(), nstance.Invalid, "mode 9"},
		"a cut header":      {b, "a", sealed[:10], nstance.Invalid, "not a sealed secret"},
		"a cut body":        {b, "a", sealed[:20], nstance.Denied, "damaged"},
		"nothing":           {b, "a", nil, nstance.Invalid, "not a sealed secret"},
		"a bare secret":     {b, "a", []byte("-----BEGIN PRIVATE KEY-----\n"), nstance.Invalid, "not a sealed secret"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tc.box.Open(tc.name, tc.data)
			require.ErrorIs(t, err, tc.code)
			require.ErrorContains(t, err, tc.says)
			require.ErrorContains(t, err, "secret "+tc.name)
		})
	}
}

func TestNewBoxRefuses(t *testing.T) {
	key := secret.NewKey()
	for name, keys := range map[string][]secret.Key{"no key": nil, "the zero key": {{}}, "a doubled key": {key, key}} {
		t.Run(name, func(t *testing.T) {
			_, err := secret.NewBox(keys...)
			require.ErrorIs(t, err, nstance.Invalid)
		})
	}
}

var badKeys = map[string]string{
	"nothing":       "",
	"white space":   " \n",
	"no base64":     "correct horse battery staple",
	"too short":     base64.StdEncoding.EncodeToString(make([]byte, 16)),
	"too long":      base64.StdEncoding.EncodeToString(make([]byte, 33)),
	"a placeholder": base64.StdEncoding.EncodeToString(make([]byte, 32)),
}

func TestPrintHidesKeys(t *testing.T) {
	key, other := secret.NewKey(), secret.NewKey()
	sealer := box(t, key, other)
	type holder struct {
		Key  secret.Key
		Box  *secret.Box
		key  secret.Key
		box  *secret.Box
		both struct{ Box secret.Box }
	}
	held := holder{Key: key, Box: sealer, key: key, box: sealer}
	held.both.Box = *sealer // as a careless program may copy it
	raw, err := base64.StdEncoding.DecodeString(key.Encode())
	require.NoError(t, err)
	hides := func(text, how string) {
		t.Helper()
		require.NotContains(t, text, key.Encode(), how)
		require.NotContains(t, text, string(raw), how)
		lower := strings.ToLower(text)
		for _, format := range []string{"%d", "%x", "% x", "%#x", "%v", "%#v", "%o", "%b"} {
			part := strings.ToLower(fmt.Sprintf(format, raw[8:16]))
			part = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(part, "[]byte{"), "["), "]")
			require.NotContains(t, lower, strings.TrimSuffix(part, "}"), how)
		}
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%b", "%c", "%U", "%t"} {
		for _, v := range []any{key, sealer, &key, held, &held, []secret.Key{key}, []*secret.Box{sealer}, map[string]any{"a": held}} {
			hides(fmt.Sprintf(format, v), format)
		}
	}
	require.Equal(t, "secret key "+key.ID(), key.String())
	data, err := json.Marshal(held)
	require.NoError(t, err)
	hides(string(data), "json")
	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("m", "key", key, "box", sealer, "held", held)
	}
	hides(log.String(), "slog")
}

func FuzzOpen(f *testing.F) {
	keys, err := secret.ParseKeys(base64.StdEncoding.EncodeToString([]byte(strings.Repeat("0123456789abcdef", 2))))
	require.NoError(f, err)
	b := box(f, keys...)
	sealed, err := b.Seal("a", []byte("secret"))
	require.NoError(f, err)
	f.Add(sealed)
	f.Add(sealed[:17])
	f.Fuzz(func(t *testing.T, data []byte) {
		if plain, err := b.Open("a", data); err == nil {
			require.Equal(t, "secret", string(plain), "forged")
		}
	})
}

func Example() {
	old, fresh := secret.NewKey(), secret.NewKey()
	before, err := secret.NewBox(old)
	if err != nil {
		fmt.Println(err)
		return
	}
	sealed, err := before.Seal("nonce.key", []byte("secret"))
	if err != nil {
		fmt.Println(err)
		return
	}
	// Replacing the key: the new one seals, the old one still opens.
	after, err := secret.NewBox(fresh, old)
	if err != nil {
		fmt.Println(err)
		return
	}
	plain, err := after.Open("nonce.key", sealed)
	fmt.Println(string(plain), err, after.Stale(sealed))
	_, err = after.Open("other.key", sealed)
	fmt.Println(err)
	// Output:
	// secret <nil> true
	// secret other.key: is damaged, altered, or was sealed under another name (restore it from a backup)
}

func TestParseKeys(t *testing.T) {
	a, b := secret.NewKey(), secret.NewKey()
	for name, text := range map[string]string{
		"lines":  a.Encode() + "\n" + b.Encode() + "\n",
		"spaces": " " + a.Encode() + "  " + b.Encode(),
		"commas": a.Encode() + "," + b.Encode(),
	} {
		keys, err := secret.ParseKeys(text)
		require.NoError(t, err, name)
		require.Len(t, keys, 2)
		require.Equal(t, []string{a.Encode(), b.Encode()}, []string{keys[0].Encode(), keys[1].Encode()}, "the first one seals")
	}
	for name, text := range map[string]string{"nothing": " \n", "twice": a.Encode() + "," + a.Encode(), "a word": a.Encode() + " x"} {
		_, err := secret.ParseKeys(text)
		require.ErrorIs(t, err, nstance.Invalid, name)
		require.NotContains(t, err.Error(), a.Encode())
	}
	for name, text := range badKeys {
		_, err := secret.ParseKeys(text)
		require.ErrorIs(t, err, nstance.Invalid, name)
		require.NotContains(t, err.Error(), "correct horse")
	}
}
