// Package s3 keeps objects in a bucket of Amazon S3, or of another store that
// speaks its protocol and honours If-None-Match and If-Match on writes; most
// do by now, and storage.Probe finds out. docs/storage.md has the details.
//
// What keeps it correct: a version is the ETag in the write's own answer; a
// write is sent once, because the client library's silent repetitions could
// turn one's own write into a refusal; the answer 409, by which S3 says that
// another write is under way, is neither yes nor no and leads to another try.
//
// Its stores are safe for concurrent use.
package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws/internal/awsconf"
	"github.com/nstance-go/nstance/internal/bucket"
	"github.com/nstance-go/nstance/storage"
)

// Scheme is the scheme of the URLs that Open reads.
const Scheme = "s3"

// Options of a store. Nil and zero fields mean the defaults.
type Options struct {
	// Prefix goes before every key, as segments joined by slashes. Open takes
	// it from the URL. Default: none.
	Prefix string

	// Timeout bounds each call, and each page of a listing. Default: 30 s.
	Timeout time.Duration

	// Requests are what calls ask of the bucket beyond the protocol's core. Open takes
	// them from the URL.
	Requests Requests
}

// Open opens s3://bucket. Parameters:
//
//   - prefix: folder within the bucket
//   - region, profile, role, dualstack, fips: those of the AWS SDK
//   - endpoint: URL of another store than Amazon's
//   - use_path_style: true puts the bucket into the path, not the host name
//   - sse, kms_key, bucket_key, checksum, request_payer: see [Requests]
//
// Certificate authorities other than the system's are those in the file AWS_CA_BUNDLE;
// HTTPS_PROXY, HTTP_PROXY and NO_PROXY name proxies. Credentials come from where AWS programs find them: environment, shared
// files, the machine's role. Nothing is asked of the bucket yet.
func Open(ctx context.Context, rawURL string, o *Options) (storage.Store, error) {
	u, err := bucket.ParseURL(rawURL, Scheme, "region", "profile", "role", "dualstack", "fips", "endpoint", "use_path_style",
		"sse", "kms_key", "bucket_key", "checksum", "request_payer")
	if err != nil {
		return nil, err
	}
	requests, err := takeRequests(u)
	if err != nil {
		return nil, err
	}
	endpoint, style := u.Params.Get("endpoint"), u.Params.Get("use_path_style")
	pathStyle, err := strconv.ParseBool(orFalse(style))
	if err != nil {
		return nil, u.Invalid("use_path_style", "use true or false")
	}
	if endpoint != "" && !strings.HasPrefix(endpoint, "https://") && !strings.HasPrefix(endpoint, "http://") {
		return nil, u.Invalid("endpoint", "use https://host")
	}
	u.Params.Del("endpoint")
	u.Params.Del("use_path_style")
	conf, err := awsconf.Load(ctx, u.Params)
	if err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "storage.url: AWS configuration: %w", err)
	}
	if conf.Region == "" && endpoint != "" {
		conf.Region = "us-east-1" // only part of the signature there
	}
	if conf.Region == "" {
		return nil, nstance.FieldError("storage.url", "add region=... or set AWS_REGION", "no region is known")
	}
	conf.Retryer = func() aws.Retryer { return retry.NewStandard(reads) }
	client := s3.NewFromConfig(conf, func(so *s3.Options) {
		so.UsePathStyle = pathStyle
		if endpoint != "" {
			// Others may not know the checksums that Amazon's client adds of
			// late. Content-MD5, which the driver sends instead, is in the first version of
			// the protocol, and buckets with object lock demand one of them.
			so.BaseEndpoint = aws.String(endpoint)
			so.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
			so.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		}
	})
	if o == nil {
		o = &Options{}
	}
	return New(client, u.Bucket, &Options{Prefix: u.Prefix, Timeout: o.Timeout, Requests: requests})
}

// reads is how often, and how fast, the client repeats what changes nothing.
// Callers have longer timeouts of their own.
func reads(o *retry.StandardOptions) {
	o.MaxAttempts, o.MaxBackoff, o.RateLimiter = 3, 200*time.Millisecond, ratelimit.None
}

func orFalse(s string) string {
	if s == "" {
		return "false"
	}
	return s
}

// New returns a store over a bucket, for those who have a client. Unless it
// sends its requests through a type of its own, the store has connections of its
// own and those of the client serve only as their example.
func New(client *s3.Client, name string, o *Options) (storage.Store, error) {
	if o == nil {
		o = &Options{}
	}
	if err := o.Requests.check(); err != nil {
		return nil, err
	}
	dates, like := &bucket.Dates{}, client.Options()
	open := func(pool *bucket.Pool) (*blob.Bucket, bucket.Driver, error) {
		client := s3.New(like, func(so *s3.Options) {
			send := so.HTTPClient.Do
			if pool != nil {
				send = pool.Do
			}
			so.HTTPClient = dates.Watch(send)
			so.APIOptions = append(slices.Clone(so.APIOptions), onlyListings)
		})
		b, err := s3blob.OpenBucket(context.Background(), client, name, nil)
		if err != nil {
			return nil, nil, nstance.Errorf(nstance.Invalid, "open bucket: %w", err)
		}
		requests := o.Requests
		if requests.Checksum == "" && like.RequestChecksumCalculation == aws.RequestChecksumCalculationWhenRequired {
			requests.Checksum = ChecksumMD5 // the client sends none of its own
		}
		return b, &driver{client: client, name: name, requests: requests}, nil
	}
	return bucket.New(open, poolLike(like.HTTPClient), &bucket.Options{Prefix: o.Prefix, Timeout: o.Timeout, Dates: dates})
}

// onlyListings refuses an answer to a listing that is none: the client takes an empty one, and
// every other document, for the list of nothing, and one that names no next page for the end.
func onlyListings(stack *middleware.Stack) error {
	return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("nstance.OnlyListings",
		func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
			out, data, err := next.HandleInitialize(ctx, in)
			asked, listing := in.Parameters.(*s3.ListObjectsV2Input)
			if l, ok := out.Result.(*s3.ListObjectsV2Output); listing && ok && err == nil {
				err = checkListing(asked, l)
			}
			return out, data, err
		}), middleware.After)
}

func checkListing(asked *s3.ListObjectsV2Input, l *s3.ListObjectsV2Output) error {
	next := aws.ToString(l.NextContinuationToken)
	switch {
	case len(l.Contents)+len(l.CommonPrefixes) == 0 && l.Name == nil && l.IsTruncated == nil && l.KeyCount == nil:
		return bucket.ErrNoListing
	case next == "" && aws.ToBool(l.IsTruncated):
		return fmt.Errorf("%w: it is not whole, and does not say how it goes on", bucket.ErrNoListing)
	case next != "" && next == aws.ToString(asked.ContinuationToken):
		return fmt.Errorf("%w: it goes on with itself", bucket.ErrNoListing)
	}
	return nil
}

// poolLike returns a pool that connects as a client does; nil if that has a way
// of its own.
func poolLike(client s3.HTTPClient) *bucket.Pool {
	switch c := client.(type) {
	case *awshttp.BuildableClient:
		return bucket.NewPool(c.GetTransport(), &http.Client{Timeout: c.GetTimeout(), CheckRedirect: sameMethod})
	case *http.Client:
		if t, ok := c.Transport.(*http.Transport); ok {
			return bucket.NewPool(t, c)
		}
	}
	return nil
}

// sameMethod follows the redirects that do not change the method, as Amazon's
// own client does.
func sameMethod(r *http.Request, via []*http.Request) error {
	if status := r.Response.StatusCode; len(via) < 10 && (status == http.StatusTemporaryRedirect || status == http.StatusPermanentRedirect) {
		return nil
	}
	return http.ErrUseLastResponse
}

// Place implements bucket.Driver. The endpoint is no part of it: one bucket has several.
func (d *driver) Place() string { return Scheme + "://" + d.name }

type driver struct {
	client   *s3.Client
	name     string
	requests Requests
}

// once keeps the client from repeating a write by itself. What is below it,
// net/http, repeats only what it knows the server has not seen.
func once(o *s3.Options) { o.Retryer = aws.NopRetryer{} }

func (d *driver) Get(ctx context.Context, key string) (io.ReadCloser, storage.Version, error) {
	out, err := d.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &d.name, Key: &key, RequestPayer: d.requests.payer()})
	if err != nil {
		return nil, "", err
	}
	return out.Body, version(out.ETag), nil
}

// Head asks again with a GET when the answer is bad: that to a HEAD has no body,
// which alone tells a missing key from a missing bucket.
func (d *driver) Head(ctx context.Context, key string) (storage.Version, error) {
	out, err := d.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &d.name, Key: &key, RequestPayer: d.requests.payer()})
	if f, ok := d.Fault(err); ok && f.Status < http.StatusInternalServerError {
		body, v, err := d.Get(ctx, key)
		if err == nil {
			_ = body.Close() // only the version counts
		}
		return v, err
	}
	if err != nil {
		return "", err
	}
	return version(out.ETag), nil
}

func (d *driver) Put(ctx context.Context, key string, data []byte, match storage.Version) (storage.Version, error) {
	in := &s3.PutObjectInput{
		Bucket: &d.name, Key: &key, Body: bytes.NewReader(data), ContentLength: aws.Int64(int64(len(data))),
		IfMatch: etag(match), RequestPayer: d.requests.payer(),
	}
	d.requests.encrypt(in)
	d.requests.sum(in, data)
	if match == "" {
		in.IfNoneMatch = aws.String("*")
	}
	out, err := d.client.PutObject(ctx, in, once)
	if err != nil {
		return "", err
	}
	return version(out.ETag), nil
}

// Delete sends the condition, which Amazon honours and many others ignore.
// https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-deletes.html
func (d *driver) Delete(ctx context.Context, key string, v storage.Version) error {
	_, err := d.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &d.name, Key: &key, IfMatch: etag(v), RequestPayer: d.requests.payer()}, once)
	return err
}

func (d *driver) Looks() bool { return true }

func (d *driver) Query(as func(any) bool, prefix, after string) (token string) {
	var in *s3.ListObjectsV2Input
	if !as(&in) {
		return ""
	}
	in.RequestPayer = d.requests.payer()
	in.Prefix = aws.String(prefix) // blob would escape some keys
	if after != "" {
		in.StartAfter = aws.String(after)
	}
	return aws.ToString(in.ContinuationToken)
}

func (d *driver) Entry(o *blob.ListObject) storage.Entry {
	var line types.Object
	if !o.As(&line) {
		return storage.Entry{Key: o.Key, Size: o.Size}
	}
	return storage.Entry{Key: aws.ToString(line.Key), Version: version(line.ETag), Size: o.Size}
}

func (d *driver) Fault(err error) (bucket.Fault, bool) {
	answer, ok := errors.AsType[*awshttp.ResponseError](err)
	if !ok || answer.HTTPStatusCode() == 0 {
		return bucket.Fault{}, false
	}
	f := bucket.Fault{Status: answer.HTTPStatusCode()}
	if f.Status < 300 {
		return bucket.Fault{}, false // a good answer that could not be read
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		f.Code, f.Text = api.ErrorCode(), api.ErrorMessage()
	}
	return f, true
}

// A version is an ETag without its quotes, which some stores leave out of
// listings.
func version(etag *string) storage.Version {
	return storage.Version(strings.Trim(aws.ToString(etag), `"`))
}

func etag(v storage.Version) *string {
	if v == "" {
		return nil
	}
	return aws.String(`"` + string(v) + `"`)
}
