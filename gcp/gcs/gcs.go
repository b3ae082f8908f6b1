// Package gcs keeps objects in a bucket of Google Cloud Storage.
// docs/storage.md has the details.
//
// A version is the object's generation, from the write's own answer. All
// conditions, those of deletions too, are checked by the service.
//
// Its stores are safe for concurrent use.
package gcs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	gcstorage "cloud.google.com/go/storage"
	"github.com/googleapis/gax-go/v2"
	"gocloud.dev/blob"
	"gocloud.dev/blob/gcsblob"
	"gocloud.dev/gcp"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/gcp/internal/adc"
	"github.com/nstance-go/nstance/internal/bucket"
	"github.com/nstance-go/nstance/storage"
)

// Scheme is the scheme of the URLs that Open reads.
const Scheme = "gs"

// Options of a store. Nil and zero fields mean the defaults.
type Options struct {
	// Prefix goes before every key, as segments joined by slashes. Open takes
	// it from the URL. Default: none.
	Prefix string

	// Timeout bounds each call, and each page of a listing. Default: 30 s.
	Timeout time.Duration

	// KMSKey is the path of the Cloud KMS key that encrypts what is written:
	// projects/P/locations/L/keyRings/R/cryptoKeys/K. Open takes it from the URL.
	// Default: the bucket's.
	KMSKey string

	// Emulator is for services that ignore the conditions of deletions, as
	// emulators do: the version is then looked at before. Open sets it when
	// STORAGE_EMULATOR_HOST is set.
	Emulator bool
}

// Open opens gs://bucket. The parameters are prefix, a folder within the bucket;
// kms_key, the path of a Cloud KMS key that encrypts what is written; user_project, the
// project that pays for the calls, where the requester pays; endpoint, the URL of the
// service, for private endpoints. Credentials are Google's application default credentials; with
// STORAGE_EMULATOR_HOST set, none are used. Nothing is asked of the bucket yet.
func Open(ctx context.Context, rawURL string, o *Options) (storage.Store, error) {
	u, err := bucket.ParseURL(rawURL, Scheme, "kms_key", "user_project", "endpoint")
	if err != nil {
		return nil, err
	}
	if err := checkParams(u); err != nil {
		return nil, err
	}
	if o == nil {
		o = &Options{}
	}
	dates := &bucket.Dates{}
	dial, err := dialer(ctx, u.Params, dates)
	if err != nil {
		return nil, err
	}
	emulator := o.Emulator || os.Getenv("STORAGE_EMULATOR_HOST") != ""
	open := func(pool *bucket.Pool) (*blob.Bucket, bucket.Driver, error) {
		client, err := dial(pool)
		if err != nil {
			return nil, nil, err
		}
		return over(client, u.Bucket, cmp.Or(u.Params.Get("kms_key"), o.KMSKey), emulator)
	}
	return bucket.New(open, bucket.DefaultPool(), &bucket.Options{Prefix: u.Prefix, Timeout: o.Timeout, Dates: dates})
}

var (
	keyPattern     = regexp.MustCompile(`^projects/[^/\s]+/locations/[^/\s]+/keyRings/[^/\s]+/cryptoKeys/[^/\s]+$`)
	projectPattern = regexp.MustCompile(`^(([a-z0-9-]+\.)+[a-z]+:)?[a-z][-a-z0-9]{4,28}[a-z0-9]$`)
)

func checkParams(u *bucket.URL) error {
	key, project, endpoint := u.Params.Get("kms_key"), u.Params.Get("user_project"), u.Params.Get("endpoint")
	if key != "" && !keyPattern.MatchString(key) {
		return u.Invalid("kms_key", "write projects/P/locations/L/keyRings/R/cryptoKeys/K")
	}
	if project != "" && !projectPattern.MatchString(project) {
		return u.Invalid("user_project", "write the ID of a project, such as my-project")
	}
	if e, err := url.Parse(endpoint); endpoint != "" && (err != nil || e.Scheme != "https" && e.Scheme != "http" || e.Host == "" || e.User != nil || strings.Trim(e.Path, "/") != "" || e.RawQuery != "") {
		return u.Invalid("endpoint", "write a URL without path, such as https://storage-nstance.p.googleapis.com")
	}
	return nil
}

// dialer returns what makes a client over a pool. The credentials are looked for
// once.
func dialer(ctx context.Context, params url.Values, dates *bucket.Dates) (func(*bucket.Pool) (*gcstorage.Client, error), error) {
	ctx = context.WithoutCancel(ctx) // which outlives Open in the clients
	watched := func(p *bucket.Pool) http.RoundTripper {
		return payer{params.Get("user_project"), onlyAnswers(dates.Watch(p.RoundTrip))}
	}
	var opts []option.ClientOption
	if endpoint := params.Get("endpoint"); endpoint != "" {
		opts = append(opts, option.WithEndpoint(strings.TrimSuffix(endpoint, "/")+"/storage/v1/"))
	}
	if os.Getenv("STORAGE_EMULATOR_HOST") != "" {
		return func(p *bucket.Pool) (*gcstorage.Client, error) {
			return newClient(ctx, append(opts, option.WithHTTPClient(&http.Client{Transport: watched(p)})))
		}, nil
	}
	if err := adc.Available(ctx); err != nil {
		return nil, err
	}
	creds, err := gcp.DefaultCredentials(adc.Context(ctx))
	if err != nil {
		return nil, nstance.Errorf(nstance.Denied, "storage.url: Google credentials: %w", err)
	}
	tokens := adc.NewTokens(creds.TokenSource)
	return func(p *bucket.Pool) (*gcstorage.Client, error) {
		transport, err := gcp.NewHTTPClient(watched(p), gcp.CredentialsTokenSource(creds))
		if err != nil {
			return nil, unusable(err)
		}
		return newClient(ctx, append(opts, option.WithHTTPClient(tokens.Client(adc.Stay(&transport.Client)))))
	}, nil
}

// A payer names the project that pays for each request, where that is not the bucket's: in
// the header that the XML API reads, and in the parameter of the JSON API
// (https://cloud.google.com/storage/docs/using-requester-pays). The SDK can do so for most
// calls only: listings are made by gocloud.dev/blob, which cannot.
type payer struct {
	project string // empty: the bucket's pays
	base    http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (p payer) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.project == "" {
		return p.base.RoundTrip(r)
	}
	r = r.Clone(r.Context())
	r.Header.Set("X-Goog-User-Project", p.project)
	if strings.HasPrefix(r.URL.Path, "/storage/v1/") || strings.HasPrefix(r.URL.Path, "/upload/storage/v1/") {
		q := r.URL.Query()
		q.Set("userProject", p.project)
		r.URL.RawQuery = q.Encode()
	}
	return p.base.RoundTrip(r)
}

// onlyAnswers refuses what the JSON API cannot have answered. The client takes any JSON object
// for the list of nothing, requests a page that goes on with itself without end, and a null
// ends the process.
func onlyAnswers(next bucket.Sender) bucket.Sender {
	return func(r *http.Request) (*http.Response, error) {
		answer, err := next(r)
		if err != nil || r.URL.Query().Get("alt") != "json" || answer.StatusCode != http.StatusOK {
			return answer, err
		}
		body, err := io.ReadAll(answer.Body)
		if err = cmp.Or(err, answer.Body.Close()); err != nil {
			return nil, err
		}
		if err := checkAnswer(r, body); err != nil {
			return nil, err
		}
		answer.Body = io.NopCloser(bytes.NewReader(body))
		return answer, nil
	}
}

func checkAnswer(r *http.Request, body []byte) error {
	var is *struct{ Kind, NextPageToken string }
	err := json.Unmarshal(body, &is)
	listing, _ := path.Match("/storage/v1/b/*/o", r.URL.Path)
	listing = listing && r.Method == http.MethodGet
	switch {
	case err == nil && is == nil && r.Method == http.MethodDelete:
		return nil // of an emulator: Google answers with status 204
	case err == nil && is == nil:
		return errors.New("the answer is null")
	case listing && (err != nil || is.Kind != "storage#objects"):
		return bucket.ErrNoListing
	case listing && is.NextPageToken != "" && is.NextPageToken == r.URL.Query().Get("pageToken"):
		return fmt.Errorf("%w: it goes on with itself", bucket.ErrNoListing)
	}
	return err
}

func newClient(ctx context.Context, opts []option.ClientOption) (*gcstorage.Client, error) {
	client, err := gcstorage.NewClient(ctx, opts...)
	if err != nil {
		return nil, unusable(err)
	}
	client.SetRetry(reads()...)
	return client, nil
}

// reads is how often, and how fast, the client repeats reads;
// by itself it would until the context ends. Callers have longer timeouts of
// their own.
func reads() []gcstorage.RetryOption {
	return []gcstorage.RetryOption{
		gcstorage.WithMaxAttempts(3),
		gcstorage.WithBackoff(gax.Backoff{Initial: 50 * time.Millisecond, Max: 200 * time.Millisecond}),
	}
}

func unusable(err error) error {
	return nstance.Errorf(nstance.Invalid, "storage.url: Google client: %w", err)
}

// New returns a store over a bucket, for those who have a client. Unlike one
// that Open made, it does not know what time it is at the service, and all its
// calls share the client's connections. It takes for a listing what the client takes for one.
func New(client *gcstorage.Client, name string, o *Options) (storage.Store, error) {
	if o == nil {
		o = &Options{}
	}
	open := func(*bucket.Pool) (*blob.Bucket, bucket.Driver, error) {
		return over(client, name, o.KMSKey, o.Emulator)
	}
	return bucket.New(open, nil, &bucket.Options{Prefix: o.Prefix, Timeout: o.Timeout})
}

func over(client *gcstorage.Client, name, key string, emulator bool) (*blob.Bucket, bucket.Driver, error) {
	b, err := gcsblob.OpenBucket(context.Background(), nil, name, &gcsblob.Options{Client: client})
	if err != nil {
		return nil, nil, nstance.Errorf(nstance.Invalid, "open bucket: %w", err)
	}
	return b, &driver{bucket: client.Bucket(name).Retryer(reads()...), key: key, looks: emulator}, nil
}

// Place implements bucket.Driver.
func (d *driver) Place() string { return Scheme + "://" + d.bucket.BucketName() }

type driver struct {
	bucket *gcstorage.BucketHandle
	key    string // of Cloud KMS; empty: the bucket's
	looks  bool
}

// once keeps the client from repeating a write by itself.
func (d *driver) once(key string, c gcstorage.Conditions) *gcstorage.ObjectHandle {
	return d.bucket.Object(key).If(c).Retryer(gcstorage.WithPolicy(gcstorage.RetryNever))
}

func (d *driver) Get(ctx context.Context, key string) (io.ReadCloser, storage.Version, error) {
	r, err := d.bucket.Object(key).NewReader(ctx)
	if err != nil {
		return nil, "", d.absent(ctx, err)
	}
	return r, version(r.Attrs.Generation), nil
}

func (d *driver) Head(ctx context.Context, key string) (storage.Version, error) {
	attrs, err := d.bucket.Object(key).Attrs(ctx)
	if err != nil {
		return "", d.absent(ctx, err)
	}
	return version(attrs.Generation), nil
}

// absent makes sure that 404 is about the key: the service says the same of a
// bucket that does not exist, and only a listing tells them apart.
func (d *driver) absent(ctx context.Context, err error) error {
	if f, ok := d.Fault(err); !ok || f.Status != http.StatusNotFound {
		return err
	}
	q := &gcstorage.Query{Prefix: "nstance-does-it-exist/"}
	_, lerr := d.bucket.Objects(ctx, q).Next()
	if lerr == nil || errors.Is(lerr, iterator.Done) {
		return gcstorage.ErrObjectNotExist
	}
	return lerr // ErrBucketNotExist, if it is that
}

func (d *driver) Put(ctx context.Context, key string, data []byte, match storage.Version) (storage.Version, error) {
	c := gcstorage.Conditions{DoesNotExist: match == ""}
	if match != "" {
		g, err := generation(match)
		if err != nil {
			return "", err
		}
		c.GenerationMatch = g
	}
	w := d.once(key, c).NewWriter(ctx)
	w.ChunkSize = 0 // one request
	w.ContentType = "application/octet-stream"
	w.KMSKeyName = d.key
	_, err := w.Write(data) // which fails only when the request has
	if err = cmp.Or(w.Close(), err); err != nil {
		return "", err
	}
	return version(w.Attrs().Generation), nil
}

func (d *driver) Delete(ctx context.Context, key string, v storage.Version) error {
	g, err := generation(v)
	if err != nil {
		return err
	}
	err = d.once(key, gcstorage.Conditions{GenerationMatch: g}).Delete(ctx)
	return d.absent(ctx, err)
}

func (d *driver) Looks() bool { return d.looks }

// Query cannot see the token, which onlyAnswers compares.
func (d *driver) Query(as func(any) bool, prefix, after string) (token string) {
	var q *gcstorage.Query
	if as(&q) {
		q.Prefix = prefix     // blob would escape some keys
		q.StartOffset = after // this key too, which the caller passes over
	}
	return ""
}

func (d *driver) Entry(o *blob.ListObject) storage.Entry {
	var line gcstorage.ObjectAttrs
	if !o.As(&line) {
		return storage.Entry{Key: o.Key, Size: o.Size}
	}
	return storage.Entry{Key: line.Name, Version: version(line.Generation), Size: o.Size}
}

func (d *driver) Fault(err error) (bucket.Fault, bool) {
	switch {
	case errors.Is(err, errNotGeneration):
		return bucket.Fault{Status: http.StatusPreconditionFailed}, true
	case errors.Is(err, gcstorage.ErrObjectNotExist):
		return bucket.Fault{Status: http.StatusNotFound, Code: bucket.NoKey}, true
	case errors.Is(err, gcstorage.ErrBucketNotExist):
		return bucket.Fault{Status: http.StatusNotFound, Code: bucket.NoBucket}, true
	}
	answer, ok := errors.AsType[*googleapi.Error](err)
	if !ok {
		return bucket.Fault{}, false
	}
	f := bucket.Fault{Status: answer.Code, Text: answer.Message}
	if len(answer.Errors) > 0 {
		f.Code = answer.Errors[0].Reason
	}
	return f, true
}

func version(generation int64) storage.Version {
	if generation <= 0 {
		return ""
	}
	return storage.Version(strconv.FormatInt(generation, 10))
}

// errNotGeneration is a version that this store cannot have given.
var errNotGeneration = errors.New("not a generation")

func generation(v storage.Version) (int64, error) {
	g, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || g <= 0 || version(g) != v {
		return 0, errNotGeneration
	}
	return g, nil
}
