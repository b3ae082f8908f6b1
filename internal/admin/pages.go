package admin

import (
	"math"

	"github.com/nstance-go/nstance"
)

// paged is an answer that may go on.
type paged interface{ GetNextPage() string }

// allPages returns what is on all pages, of which it asks for one after the other.
func allPages[P paged, T any](ask func(page string) (P, error), itemsOf func(P) []T) ([]T, error) {
	return firstPages(math.MaxInt, ask, itemsOf)
}

// firstPages is allPages of the pages that have the first limit items.
func firstPages[P paged, T any](limit int, ask func(page string) (P, error), itemsOf func(P) []T) (items []T, err error) {
	for page := ""; ; {
		resp, err := ask(page)
		if err != nil {
			return items, err
		}
		items = append(items, itemsOf(resp)...)
		next := resp.GetNextPage()
		if next == "" || len(items) >= limit {
			return items[:min(limit, len(items))], nil
		}
		if next == page {
			return items, nstance.Errorf(nstance.Internal, "the server answers with the same page again")
		}
		page = next
	}
}
