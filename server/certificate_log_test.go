package server_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/storage"
)

// TestCertificateLogFields pins the fields that other tools read.
func TestCertificateLogFields(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{webSize: 1})
	w.applyConfig(configWithFiles(1, "", red, `"web": {}`, `"c": {"kind": "certificate", "certificate": "web"}`, ""))
	id := w.awaitMachine(nstance.DefaultTenant)
	w.connectReady(id).newFileAgent().receiveSet()
	var line map[string]string
	require.NoError(t, json.Unmarshal([]byte(w.objectKeys("certlog/s1/")[0]), &line), "every field is text")
	require.Equal(t, []string{"group", "instance", "issuer", "key", "not_after", "not_before", "serial", "subject", "tenant", "time"},
		slices.Sorted(maps.Keys(line)))
	require.Equal(t, string(id), line["instance"])
	require.Equal(t, string(nstance.DefaultTenant), line["tenant"])
	for _, field := range []string{"time", "not_before", "not_after"} {
		_, err := time.Parse(time.RFC3339, line[field])
		require.NoError(t, err)
	}
}

// TestCertificateLogIsPruned deletes objects by the day in their keys.
func TestCertificateLogIsPruned(t *testing.T) {
	t.Parallel()
	store := storage.NewMemory()
	day := func(years int) string { return time.Now().AddDate(years, 0, 0).Format(time.DateOnly) }
	for _, years := range []int{-3, 0} {
		_, err := store.PutIfAbsent(t.Context(), "certlog/s1/"+day(years)+"/A.jsonl", []byte("{}\n"))
		require.NoError(t, err)
	}
	newWorld(t, setup{store: store, webSize: 1, shard: often})
	var left []string
	require.Eventually(t, func() bool {
		left = nil
		for e, err := range store.List(t.Context(), "certlog/s1/", "") {
			require.NoError(t, err)
			left = append(left, e.Key)
		}
		return len(left) == 1
	}, eventually, 5*time.Millisecond)
	require.Equal(t, []string{"certlog/s1/" + day(0) + "/A.jsonl"}, left, "certificates still valid stay in the log")
}
