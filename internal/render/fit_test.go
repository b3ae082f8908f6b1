package render_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/render"
)

func TestFit(t *testing.T) {
	const limit = 16 << 10
	long := strings.Repeat("- echo of a line\n", 2000)
	for _, begin := range []string{
		"#cloud-config\n", "## template: jinja\n#cloud-config\n", "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=x\n", "Content-Type: multipart/mixed; boundary=x\n",
		"#include\n", "#cloud-boothook\n", "#part-handler\n", "mime-version: 1.0\ncontent-type: multipart/mixed; boundary=x\n",
	} {
		data := []byte(begin + long)
		out := render.Fit(data, limit)
		require.LessOrEqual(t, len(out), limit, begin)
		r, err := gzip.NewReader(bytes.NewReader(out))
		require.NoError(t, err)
		back, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Equal(t, data, back)
		require.Equal(t, out, render.Fit(data, limit), "the same bytes again")
		short := []byte(begin + "x")
		require.Equal(t, short, render.Fit(short, limit), "what fits stays readable")
		exact := []byte(begin + strings.Repeat("x", limit-len(begin)))
		require.Equal(t, exact, render.Fit(exact, limit))
	}
	for _, other := range []string{"#!/bin/sh\n", `{"ignition": {}}`, "#ignition", "[settings]\n", ""} {
		data := []byte(other + long)
		require.Equal(t, data, render.Fit(data, limit), "what reads it may not unpack it")
		require.Contains(t, render.Overlong(data), "#cloud-config")
	}
	random := make([]byte, 3*limit)
	for i, x := 0, uint32(1); i < len(random); i++ {
		x = x*1664525 + 1013904223
		random[i] = byte(x >> 24)
	}
	data := append([]byte("#cloud-config\n"), random...)
	require.Equal(t, data, render.Fit(data, limit), "what stays too long is refused as it is")
	require.Contains(t, render.Overlong(data), "fetch the rest")
}
