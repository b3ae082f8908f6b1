package nstance_test

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
)

// The check values of the format.
const (
	knownID   = "acc06bgm7733st2576nx5jht4ecjw"
	knownUUID = "01970a1ce31e74229cd5e9651d11cc97"
)

func unhex(t testing.TB, s string) (u [16]byte) {
	t.Helper()
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	require.Equal(t, len(u), copy(u[:], b))
	return u
}

func TestInstanceIDCheckValues(t *testing.T) {
	require.Equal(t, nstance.InstanceID(knownID), nstance.FormatInstanceID("acc", unhex(t, knownUUID)))

	id, err := nstance.ParseInstanceID("tst06dx9xy919t3v9kzd2xdsyzb3g")
	require.NoError(t, err)
	require.Equal(t, nstance.InstanceKind("tst"), id.Kind())
	require.Equal(t, unhex(t, "019bd4f7c90a743da67f68badcfbeb1c"), id.UUID())
	require.Equal(t, int64(0x019bd4f7c90a), id.Time().UnixMilli())
}

func TestParseInstanceIDIsStrict(t *testing.T) {
	for name, s := range map[string]string{
		"empty":                "",
		"too short":            knownID[:28],
		"too long":             knownID + "0",
		"upper case":           strings.ToUpper(knownID),
		"letter left out (i)":  "acc0ibgm7733st2576nx5jht4ecjw",
		"letter left out (u)":  "acc0ubgm7733st2576nx5jht4ecjw",
		"digit in the kind":    "a1c06bgm7733st2576nx5jht4ecjw",
		"padding not zero":     knownID[:28] + "x",
		"version 4":            string(nstance.FormatInstanceID("acc", unhex(t, "01970a1ce31e44229cd5e9651d11cc97"))),
		"another variant":      string(nstance.FormatInstanceID("acc", unhex(t, "01970a1ce31e7422dcd5e9651d11cc97"))),
		"the UUID's own style": "01970a1c-e31e-7422-9cd5-e9651",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := nstance.ParseInstanceID(s)
			require.ErrorIs(t, err, nstance.Invalid)
			require.ErrorContains(t, err, "instance_id")
		})
	}
}

func TestNewInstanceID(t *testing.T) {
	born := time.Date(2026, 11, 21, 9, 0, 0, 123_456_789, time.UTC)
	var ids []nstance.InstanceID
	for i := range 100 {
		id, err := nstance.NewInstanceID("knc", born.Add(time.Duration(i)*time.Millisecond))
		require.NoError(t, err)
		parsed, err := nstance.ParseInstanceID(string(id))
		require.NoError(t, err)
		require.Equal(t, id, parsed)
		require.Equal(t, born.Add(time.Duration(i)*time.Millisecond).Truncate(time.Millisecond), id.Time())
		ids = append(ids, id)
	}
	require.True(t, slices.IsSorted(ids), "IDs sort by creation time")

	_, err := nstance.NewInstanceID("KNC", born)
	require.ErrorIs(t, err, nstance.Invalid)
	_, err = nstance.NewInstanceID("knc", time.Unix(-1, 0))
	require.ErrorIs(t, err, nstance.Invalid)
}

func FuzzParseInstanceID(f *testing.F) {
	f.Add(knownID)
	f.Add("tst06dx9xy919t3v9kzd2xdsyzb3g")
	f.Add("tst06dx9xy919t3v9kzd2xdsyzb3h")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := nstance.ParseInstanceID(s)
		if err != nil {
			require.ErrorIs(t, err, nstance.Invalid)
			return
		}
		require.Equal(t, id, nstance.FormatInstanceID(id.Kind(), id.UUID()), "one spelling for each ID")
	})
}
