package armtest

import "strconv"

// cut returns the page of a list that the call's token names, and the link to
// the next one; nil: it was the last. The key orders the list.
func cut[T any](k *call, list []T, key func(T) int) ([]T, *string) {
	query := k.r.URL.Query()
	after, err := strconv.Atoi(query.Get("$skiptoken"))
	if err != nil {
		after = -1
	}
	var page []T
	for _, v := range list {
		if key(v) <= after {
			continue
		}
		if len(page) == k.o.PageSize {
			query.Set("$skiptoken", strconv.Itoa(key(page[len(page)-1])))
			return page, new(k.base() + k.r.URL.Path + "?" + query.Encode())
		}
		page = append(page, v)
	}
	return page, nil
}
