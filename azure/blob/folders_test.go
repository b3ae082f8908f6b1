package blob_test

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance/internal/bucket"
	"github.com/nstance-go/nstance/storage"
)

// lister answers list requests as the service does, in pages and with folders, and
// counts the entries that it has sent.
type lister struct {
	keys  []string // in order
	lines atomic.Int64
}

func (l *lister) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	prefix, delimiter := q.Get("prefix"), q.Get("delimiter")
	size, _ := strconv.Atoi(cmp.Or(q.Get("maxresults"), "5000"))
	var lines []string // in XML
	next, last := "", ""
	for _, key := range l.keys {
		rest, ours := strings.CutPrefix(key, prefix)
		name, line := key, `<Blob><Name>%s</Name><Properties><Etag>1</Etag><Content-Length>1</Content-Length><Last-Modified>Fri, 20 Nov 2026 10:00:00 GMT</Last-Modified></Properties></Blob>`
		if folder, _, below := strings.Cut(rest, "/"); delimiter != "" && below {
			name, line = prefix+folder+"/", `<BlobPrefix><Name>%s</Name></BlobPrefix>`
		}
		if !ours || name == last || name < q.Get("marker") {
			continue
		}
		if len(lines) == size {
			next = name
			break
		}
		last = name
		lines = append(lines, fmt.Sprintf(line, name))
	}
	l.lines.Add(int64(len(lines)))
	w.Header().Set("Content-Type", "application/xml")
	fmt.Fprintf(w, `<EnumerationResults><Blobs>%s</Blobs><NextMarker>%s</NextMarker></EnumerationResults>`, strings.Join(lines, ""), next)
}

// TestListingGoesOnWithItself: empty pages that name themselves as the next one are no listing.
func TestListingGoesOnWithItself(t *testing.T) {
	_, s := open(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/xml")
		fmt.Fprint(w, `<EnumerationResults><Blobs></Blobs><NextMarker>t</NextMarker></EnumerationResults>`)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var err error
	for _, err = range s.List(ctx, "", "") {
	}
	require.ErrorIs(t, err, bucket.ErrNoListing)
	err = nil
	for _, err = range storage.Folders(ctx, s, "") {
	}
	require.ErrorIs(t, err, bucket.ErrNoListing)
}

// TestFoldersAreListedOnce: the service cannot start a listing after a key, so one
// listing per shard would read the same entries repeatedly.
func TestFoldersAreListedOnce(t *testing.T) {
	const shards, groups, records = 40, 30, 5
	l := &lister{}
	var shardNames, groupNames []string
	for s := range shards {
		shardNames = append(shardNames, fmt.Sprintf("z%02d", s))
		for g := range groups {
			if s == 0 {
				groupNames = append(groupNames, fmt.Sprintf("g%02d", g))
			}
			for r := range records {
				l.keys = append(l.keys, fmt.Sprintf("p/instance/z%02d/default/g%02d/%d.json", s, g, r))
			}
		}
	}
	slices.Sort(l.keys)
	_, s := open(t, l.ServeHTTP)
	for name, s := range map[string]storage.Store{"as it is": s, "for reading": storage.ReadOnly(s)} {
		l.lines.Store(0)
		var found []string
		for folder, err := range storage.Folders(t.Context(), s, "instance/") {
			require.NoError(t, err, name)
			found = append(found, folder)
		}
		require.Equal(t, shardNames, found, name)
		require.EqualValues(t, shards, l.lines.Load(), "lines for the shards, %s", name)

		l.lines.Store(0)
		var names []string
		for folder, err := range storage.Folders(t.Context(), s, "instance/z07/default/") {
			require.NoError(t, err)
			names = append(names, folder)
		}
		require.Equal(t, groupNames, names)
		require.EqualValues(t, groups, l.lines.Load(), "lines for the groups, %s", name)
	}
}
