package ec2test

import (
	"encoding/base64"
	"slices"
	"strings"
)

// pageInput has the parameters of listings in pages.
type pageInput struct {
	MaxResults *int
	NextToken  string
}

// How many results a page can be asked to have, unless the operation says
// otherwise.
const (
	minPage = 5
	maxPage = 1000
)

// page cuts one page out of all results, which it sorts by ID. A token holds the
// last ID of the page before, so it survives changes in between.
func (o *Options) page(in pageInput, ids []string, least, most int) (page []string, next string, err error) {
	size := len(ids)
	if in.MaxResults != nil {
		if *in.MaxResults < least || *in.MaxResults > most {
			return nil, "", invalid("Value ( %d ) for parameter maxResults is invalid. Expecting a value between %d and %d.", *in.MaxResults, least, most)
		}
		size = min(*in.MaxResults, o.PageSize)
	}
	slices.Sort(ids)
	if in.NextToken != "" {
		raw, err := base64.StdEncoding.DecodeString(in.NextToken)
		last, ok := strings.CutPrefix(string(raw), "after:")
		if err != nil || !ok {
			return nil, "", invalid("Value ( %s ) for parameter nextToken is invalid.", in.NextToken)
		}
		from, found := slices.BinarySearch(ids, last)
		if found {
			from++
		}
		ids = ids[from:]
	} else if o.EmptyFirstPage && in.MaxResults != nil {
		return nil, pageToken(""), nil
	}
	if len(ids) <= size {
		return ids, "", nil
	}
	return ids[:size], pageToken(ids[size-1]), nil
}

func pageToken(last string) string { return base64.StdEncoding.EncodeToString([]byte("after:" + last)) }
