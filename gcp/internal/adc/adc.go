// Package adc bounds what Google's libraries do for credentials: a request for a token, and the
// question whether they would find application default credentials.
// They ask only once in a process whether it runs at Google, and keep the answer: a server
// that starts before its network does would be without credentials for good. So they are to
// be asked only once Available says so.
package adc

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/nstance-go/nstance"
)

// metadataURL is the metadata service, by an address: the libraries use it, too.
const metadataURL = "http://169.254.169.254"

// timeout bounds the question: the service answers from the host.
const timeout = 2 * time.Second

// Available returns nil if there is a file of credentials, or the metadata service answers.
// Else it fails with Denied: ask again, the network may not be up yet.
func Available(ctx context.Context) error { return available(ctx, metadataURL, os.Getenv) }

func available(ctx context.Context, url string, getenv func(string) string) error {
	// With GCE_METADATA_HOST the libraries do not ask whether they run at Google.
	if getenv("GOOGLE_APPLICATION_CREDENTIALS") != "" || getenv("GCE_METADATA_HOST") != "" {
		return nil
	}
	if _, err := os.Stat(filepath.Join(getenv("HOME"), ".config", "gcloud", "application_default_credentials.json")); err == nil {
		return nil
	}
	if err := ask(ctx, url); err != nil {
		return &nstance.Error{
			Code: nstance.Denied, Msg: "no Google credentials: no file of them, and no metadata service of Google: " + err.Error(), Err: err,
			Remedy: "set GOOGLE_APPLICATION_CREDENTIALS to a file, or run on a machine of Google with a service account",
		}
	}
	return nil
}

// Stay makes a client follow no redirection, which would send its credentials to another host.
// Google's services do not redirect.
func Stay(client *http.Client) *http.Client {
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client
}

// ask fails unless Google's metadata service answers.
func ask(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Metadata-Flavor", "Google")
	direct := Stay(&http.Client{
		Transport: &http.Transport{DialContext: (&net.Dialer{}).DialContext, DisableKeepAlives: true}, // no proxy
	})
	resp, err := direct.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() // only its header counts
	if resp.Header.Get("Metadata-Flavor") != "Google" {
		return errors.New("the service there is not Google's")
	}
	return nil
}
