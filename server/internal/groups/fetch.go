package groups

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/config"
	"github.com/nstance-go/nstance/storage"
)

const (
	// fetchTimeout bounds one attempt to fetch user data, with its redirects.
	fetchTimeout = 10 * time.Second
	// maxFetched bounds fetched user data, in bytes: 256 KiB.
	maxFetched = 256 << 10
	// maxRedirects is how many redirects are followed.
	maxRedirects = 3
)

// A fetcher fetches user data, within limits.
type fetcher struct {
	store storage.Store
	http  *http.Client
}

// newFetcher returns a fetcher that may connect to allowed networks even where they
// are forbidden otherwise.
func newFetcher(store storage.Store, allowed func() []netip.Prefix) *fetcher {
	return &fetcher{store: store, http: &http.Client{
		Transport: newGuarded(allowed), Timeout: fetchTimeout,
		CheckRedirect: func(next *http.Request, before []*http.Request) error {
			switch {
			case len(before) > maxRedirects:
				return errors.New("too many redirects")
			case next.URL.Scheme != "https" && next.URL.Scheme != before[0].URL.Scheme:
				return errors.New("a redirect away from https")
			}
			return nil
		},
	}}
}

func (f *fetcher) close() { f.http.CloseIdleConnections() }

// fetch returns the user data at the address in u. Fails with Invalid when it has
// another digest, is too long, or no template; Unavailable when it could not be
// read.
func (f *fetcher) fetch(ctx context.Context, u nstance.UserData) ([]byte, error) {
	at, err := config.UserDataURL(u.Content)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	var data []byte
	if at.Scheme == "storage" {
		data, err = f.object(ctx, at.Opaque)
	} else {
		data, err = f.download(ctx, at)
	}
	if err != nil {
		return nil, err
	}
	u.Fetched = data
	return data, f.check(u)
}

// check refuses user data that no machine can be made with.
func (f *fetcher) check(u nstance.UserData) error {
	const field = "userdata.content"
	switch n := len(u.Fetched); {
	case n == 0:
		return nstance.FieldError(field, "put the template there", "nothing is there")
	case n > maxFetched:
		return nstance.FieldError(field, "fetch the rest at boot", "more than %d bytes are there", maxFetched)
	}
	if got := digestOf(u.Fetched); u.SHA256 != "" && got != u.SHA256 {
		return nstance.FieldError("userdata.sha256", "if what is there is right, write "+got, "what is there has another digest, %s", got)
	}
	text, err := u.Template()
	if err != nil {
		return err
	}
	return config.CheckUserData(field, text)
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func (f *fetcher) object(ctx context.Context, key string) ([]byte, error) {
	obj, err := f.store.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	return obj.Data, nil
}

// download reads at most one byte more than is permitted. Its errors leave out the
// query of the address, which may hold a signature.
func (f *fetcher) download(ctx context.Context, at *url.URL) ([]byte, error) {
	shown := config.ShownURL(at.String())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "%s cannot be fetched", shown)
	}
	resp, err := f.http.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err
		}
		return nil, nstance.Errorf(nstance.Unavailable, "%s cannot be fetched: %w", shown, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, nstance.Errorf(nstance.Unavailable, "%s cannot be fetched: the answer is %s", shown, resp.Status)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxFetched+1))
	if err != nil {
		return nil, nstance.Errorf(nstance.Unavailable, "%s cannot be fetched: %w", shown, err)
	}
	return data, nil
}
