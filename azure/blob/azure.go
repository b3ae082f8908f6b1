// Package blob keeps objects in a container of Azure Blob Storage.
// docs/storage.md has the details.
//
// A version is the blob's ETag, from the write's own answer, and is never
// used twice. All conditions, those of deletions too, are checked by the
// service.
//
// Its stores are safe for concurrent use.
package blob

import (
	"bytes"
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	azblob "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"gocloud.dev/blob"
	"gocloud.dev/blob/azureblob"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/bucket"
	"github.com/nstance-go/nstance/internal/proxy"
	"github.com/nstance-go/nstance/storage"
)

// Scheme is the scheme of the URLs that Open reads.
const Scheme = "azblob"

// Options of a store. Nil and zero fields mean the defaults.
type Options struct {
	// Prefix goes before every key, as segments joined by slashes. Open takes
	// it from the URL. Default: none.
	Prefix string

	// Timeout bounds each call, and each page of a listing. Default: 30 s.
	Timeout time.Duration

	// EncryptionScope encrypts what is written. Open takes it from the URL. Default: the
	// container's.
	EncryptionScope string

	// EncryptionKey encrypts the objects: 32 bytes that the service does not keep. Whatever
	// was written with one is read with it alone. Open takes it from the file that the URL
	// names. Default: keys of the account.
	EncryptionKey []byte
}

// Open opens azblob://container. Parameters, each with a default from the
// environment as gocloud.dev/blob/azureblob documents it:
//
//   - prefix: folder within the container
//   - storage_account: name of the account
//   - domain, protocol, localemu: where it is, if not at blob.core.windows.net
//   - encryption_scope: name of the scope that encrypts what is written
//   - encryption_key_file: file with a key of 32 bytes in base64, which encrypts the objects
//   - ca_file: file with certificates in PEM that are trusted in addition to the system's
//
// Credentials come from AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN,
// AZURE_STORAGE_CONNECTION_STRING, or else from Azure's default chain, which
// finds the machine's managed identity. Nothing is asked of the container yet.
func Open(_ context.Context, rawURL string, o *Options) (storage.Store, error) {
	u, err := bucket.ParseURL(rawURL, Scheme, "storage_account", "domain", "protocol", "localemu", "encryption_scope", "encryption_key_file", "ca_file")
	if err != nil {
		return nil, err
	}
	service, err := serviceURL(u)
	if err != nil {
		return nil, err
	}
	own, err := transport(u)
	if err != nil {
		return nil, err
	}
	dial, err := dialer(string(service), u)
	if err != nil {
		return nil, nstance.Errorf(nstance.Denied, "storage.url: Azure credentials: %w", err)
	}
	opts := Options{Prefix: u.Prefix}
	if o != nil {
		opts.Timeout = o.Timeout
	}
	if err := opts.encryption(u, string(service)); err != nil {
		return nil, err
	}
	pool := bucket.DefaultPool()
	if own != nil {
		pool = bucket.NewPool(own, nil)
	}
	return newStore(dial, pool, &opts)
}

// A dial makes a client over a pool.
type dial func(*bucket.Pool) (*container.Client, error)

// dialer looks for credentials where azureblob.NewDefaultClient does, which
// takes no transport.
func dialer(service string, u *bucket.URL) (dial, error) {
	at, err := url.JoinPath(service, u.Bucket)
	if err != nil {
		return nil, err
	}
	with := func(p *bucket.Pool) *container.ClientOptions {
		return &container.ClientOptions{ClientOptions: policy.ClientOptions{Transport: p}}
	}
	account, key := sharedKey(u)
	switch {
	case key != "":
		cred, err := container.NewSharedKeyCredential(account, key)
		return func(p *bucket.Pool) (*container.Client, error) {
			return container.NewClientWithSharedKeyCredential(at, cred, with(p))
		}, err
	case os.Getenv("AZURE_STORAGE_SAS_TOKEN") != "": // it is in the service's URL
		return func(p *bucket.Pool) (*container.Client, error) {
			return container.NewClientWithNoCredential(at, with(p))
		}, nil
	case connectionString() != "":
		return func(p *bucket.Pool) (*container.Client, error) {
			return container.NewClientFromConnectionString(connectionString(), u.Bucket, with(p))
		}, nil
	}
	cred, err := azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: policy.ClientOptions{Transport: proxy.Client()}})
	return func(p *bucket.Pool) (*container.Client, error) {
		return container.NewClient(at, cred, with(p))
	}, err
}

// sharedKey returns the account and its key. Without an account the key is none.
func sharedKey(u *bucket.URL) (account, key string) {
	if account = cmp.Or(u.Params.Get("storage_account"), os.Getenv("AZURE_STORAGE_ACCOUNT")); account == "" {
		return "", ""
	}
	return account, os.Getenv("AZURE_STORAGE_KEY")
}

func connectionString() string {
	return cmp.Or(os.Getenv("AZURE_STORAGE_CONNECTION_STRING"), os.Getenv("AZURE_STORAGEBLOB_CONNECTIONSTRING"))
}

func serviceURL(u *bucket.URL) (azureblob.ServiceURL, error) {
	so := azureblob.NewDefaultServiceURLOptions()
	for name, p := range map[string]*string{"storage_account": &so.AccountName, "domain": &so.StorageDomain, "protocol": &so.Protocol} {
		if !u.Params.Has(name) {
			continue
		}
		if so.SASToken != "" || byConnectionString(u) {
			return "", u.Invalid(name, "leave it out: AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING is for one account")
		}
		*p = u.Params.Get(name)
	}
	if u.Params.Has("localemu") {
		emulator, err := strconv.ParseBool(u.Params.Get("localemu"))
		if err != nil {
			return "", u.Invalid("localemu", "use true or false")
		}
		so.IsLocalEmulator = emulator
	}
	service, err := azureblob.NewServiceURL(so)
	if err != nil {
		return "", nstance.FieldError("storage.url", "add storage_account=... or set AZURE_STORAGE_ACCOUNT; protocol is http or https", "does not name an Azure service")
	}
	return service, nil
}

// byConnectionString reports whether the client is made from a connection
// string, which says where the account is.
func byConnectionString(u *bucket.URL) bool {
	_, key := sharedKey(u)
	return key == "" && connectionString() != ""
}

// New returns a store over a container, for those who have a client. All its
// calls share the client's connections.
func New(client *container.Client, o *Options) (storage.Store, error) {
	if o == nil {
		o = &Options{}
	}
	return newStore(func(*bucket.Pool) (*container.Client, error) { return client, nil }, nil, o)
}

func newStore(dial dial, pool *bucket.Pool, o *Options) (storage.Store, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	dates := &bucket.Dates{}
	open := func(p *bucket.Pool) (*blob.Bucket, bucket.Driver, error) {
		client, err := dial(p)
		if err != nil {
			return nil, nil, nstance.Errorf(nstance.Denied, "storage.url: Azure credentials: %w", err)
		}
		b, err := azureblob.OpenBucket(context.Background(), client, nil)
		if err != nil {
			return nil, nil, nstance.Errorf(nstance.Invalid, "open container: %w", err)
		}
		return b, &driver{client: client, dates: dates, key: o.key(), scope: o.scope()}, nil
	}
	return bucket.New(open, pool, &bucket.Options{Prefix: o.Prefix, Timeout: o.Timeout, Dates: dates})
}

// Place implements bucket.Driver. The account is in the host's name, or else in the path.
func (d *driver) Place() string {
	at, err := url.Parse(d.client.URL()) // whose query may hold a secret
	if err != nil {
		return ""
	}
	host := at.Hostname()
	if net.ParseIP(host) != nil || host == "localhost" {
		host = ""
	}
	return Scheme + "://" + host + at.Path
}

type driver struct {
	client *container.Client
	dates  *bucket.Dates
	key    *azblob.CPKInfo
	scope  *azblob.CPKScopeInfo
}

// dated has the date of a call's last answer noted, when note is called.
func (d *driver) dated(ctx context.Context) (_ context.Context, note func()) {
	var answer *http.Response
	sent := time.Now()
	return policy.WithCaptureResponse(ctx, &answer), func() { d.dates.Note(sent, answer) }
}

// once keeps the client from repeating a write by itself.
func once(ctx context.Context) context.Context {
	return policy.WithRetryOptions(ctx, policy.RetryOptions{MaxRetries: -1})
}

// reads is how often, and how fast, the client repeats what changes nothing.
// Callers have longer timeouts of their own.
func reads(ctx context.Context) context.Context {
	return policy.WithRetryOptions(ctx, policy.RetryOptions{MaxRetries: 2, RetryDelay: 50 * time.Millisecond, MaxRetryDelay: 200 * time.Millisecond})
}

func (d *driver) Get(ctx context.Context, key string) (io.ReadCloser, storage.Version, error) {
	ctx, note := d.dated(reads(ctx))
	out, err := d.client.NewBlobClient(key).DownloadStream(ctx, &azblob.DownloadStreamOptions{CPKInfo: d.key})
	note()
	if err != nil {
		return nil, "", err
	}
	return out.Body, version(out.ETag), nil
}

func (d *driver) Head(ctx context.Context, key string) (storage.Version, error) {
	ctx, note := d.dated(reads(ctx))
	defer note()
	out, err := d.client.NewBlobClient(key).GetProperties(ctx, &azblob.GetPropertiesOptions{CPKInfo: d.key})
	if err != nil {
		return "", err // its code is in a header
	}
	return version(out.ETag), nil
}

func (d *driver) Put(ctx context.Context, key string, data []byte, match storage.Version) (storage.Version, error) {
	body := streaming.NopCloser(bytes.NewReader(data))
	ctx, note := d.dated(once(ctx))
	defer note()
	out, err := d.client.NewBlockBlobClient(key).Upload(ctx, body, &blockblob.UploadOptions{AccessConditions: only(match), CPKInfo: d.key, CPKScopeInfo: d.scope})
	if err != nil {
		return "", err
	}
	return version(out.ETag), nil
}

func (d *driver) Delete(ctx context.Context, key string, v storage.Version) error {
	ctx, note := d.dated(once(ctx))
	defer note()
	_, err := d.client.NewBlobClient(key).Delete(ctx, &azblob.DeleteOptions{AccessConditions: only(v)})
	return err
}

// only is the condition that the blob has this version, or none if v is empty.
func only(v storage.Version) *azblob.AccessConditions {
	c := &azblob.ModifiedAccessConditions{}
	if v == "" {
		star := azcore.ETagAny
		c.IfNoneMatch = &star
	} else {
		c.IfMatch = to.Ptr(azcore.ETag(`"` + v + `"`))
	}
	return &azblob.AccessConditions{ModifiedAccessConditions: c}
}

func (d *driver) Looks() bool { return false }

// Query cannot say where to begin: the service has no such parameter in the
// versions that the client speaks, so a listing always starts at the prefix.
func (d *driver) Query(as func(any) bool, prefix, _ string) (token string) {
	var o *container.ListBlobsHierarchyOptions
	if !as(&o) {
		return ""
	}
	o.Prefix = &prefix // blob would escape some keys
	if o.Marker != nil {
		token = *o.Marker
	}
	return token
}

func (d *driver) Entry(o *blob.ListObject) storage.Entry {
	var line container.BlobItem
	if !o.As(&line) || line.Name == nil || line.Properties == nil {
		return storage.Entry{Key: o.Key, Size: o.Size}
	}
	return storage.Entry{Key: *line.Name, Version: version(line.Properties.ETag), Size: o.Size}
}

func (d *driver) Fault(err error) (bucket.Fault, bool) {
	answer, ok := errors.AsType[*azcore.ResponseError](err)
	if !ok {
		return bucket.Fault{}, false
	}
	return bucket.Fault{Status: answer.StatusCode, Code: answer.ErrorCode, Text: explanation(answer)}, true
}

// explanation is the service's own, from the body of its answer.
// https://learn.microsoft.com/en-us/rest/api/storageservices/status-and-error-codes2
func explanation(answer *azcore.ResponseError) string {
	if answer.RawResponse == nil || answer.RawResponse.Body == nil {
		return ""
	}
	body, err := runtime.Payload(answer.RawResponse)
	var said struct{ Message string }
	if err != nil || xml.Unmarshal(body, &said) != nil {
		return ""
	}
	return said.Message
}

// A version is an ETag without its quotes, which listings leave out.
// https://learn.microsoft.com/en-us/rest/api/storageservices/list-blobs
func version(etag *azcore.ETag) storage.Version {
	if etag == nil {
		return ""
	}
	return storage.Version(strings.Trim(string(*etag), `"`))
}
