package admin

import "github.com/nstance-go/nstance"

// paged is an answer that may go on.
type paged interface{ GetNextPage() string }

// eachPage asks for one page after the other, until nothing follows.
func eachPage(ask func(page string) (paged, error)) error {
	for page := ""; ; {
		resp, err := ask(page)
		if err != nil {
			return err
		}
		next := resp.GetNextPage()
		if next == "" {
			return nil
		}
		if next == page {
			return nstance.Errorf(nstance.Internal, "the server answers with the same page again")
		}
		page = next
	}
}
