package s3

import (
	"crypto/md5" //nolint:gosec // see sum
	"crypto/sha256"
	"encoding/base64"
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/bucket"
)

// Checksums of what is written.
const (
	ChecksumMD5    = "md5" // Content-MD5, which every store knows
	ChecksumCRC32C = "crc32c"
	ChecksumSHA256 = "sha256"
)

// Requests are headers that a bucket's policy, owner or store may want. The zero value
// asks for nothing.
type Requests struct {
	// Encryption at rest of what is written: AES256, aws:kms or aws:kms:dsse.
	// Default: the bucket's.
	Encryption string

	// KMSKey is the ID, ARN or alias of the key, with aws:kms or aws:kms:dsse. Default: the
	// account's key for S3.
	KMSKey string

	// BucketKey, with aws:kms, saves calls of KMS: the lease alone is written every few
	// seconds. Default: as the bucket says.
	BucketKey bool

	// Checksum of what is written. Default: at Amazon what its client sends, CRC-32 of
	// late; md5 at another endpoint.
	Checksum string

	// RequesterPays accepts the costs in a bucket whose owner does not bear them.
	RequesterPays bool
}

// takeRequests takes its parameters out of u.
func takeRequests(u *bucket.URL) (r Requests, err error) {
	get := func(name string) string {
		v := u.Params.Get(name)
		u.Params.Del(name)
		return v
	}
	r.Encryption, r.KMSKey, r.Checksum = get("sse"), get("kms_key"), get("checksum")
	if r.BucketKey, err = strconv.ParseBool(orFalse(get("bucket_key"))); err != nil {
		return r, u.Invalid("bucket_key", "use true or false")
	}
	switch get("request_payer") {
	case "":
	case string(types.RequestPayerRequester):
		r.RequesterPays = true
	default:
		return r, u.Invalid("request_payer", "use requester")
	}
	return r, r.check()
}

// check refuses what S3 refuses ("Specifying server-side encryption with AWS KMS", S3 User
// Guide; a bucket key is of aws:kms alone).
func (r Requests) check() error {
	wrong := func(remedy, msg string, args ...any) error {
		return nstance.FieldError("storage.url", remedy, msg, args...)
	}
	kms := strings.HasPrefix(r.Encryption, string(types.ServerSideEncryptionAwsKms))
	switch {
	case r.Encryption != "" && r.Encryption != string(types.ServerSideEncryptionAes256) && r.Encryption != string(types.ServerSideEncryptionAwsKms) &&
		r.Encryption != string(types.ServerSideEncryptionAwsKmsDsse):
		return wrong("use AES256, aws:kms or aws:kms:dsse", "parameter %q is not valid", "sse")
	case r.KMSKey != "" && !kms:
		return wrong("add sse=aws:kms", "parameter %q needs encryption by KMS", "kms_key")
	case r.BucketKey && r.Encryption != string(types.ServerSideEncryptionAwsKms):
		return wrong("add sse=aws:kms", "parameter %q needs encryption by KMS, of one layer", "bucket_key")
	case r.Checksum != "" && r.Checksum != ChecksumMD5 && r.Checksum != ChecksumCRC32C && r.Checksum != ChecksumSHA256:
		return wrong("use md5, crc32c or sha256", "parameter %q is not valid", "checksum")
	}
	return nil
}

func (r Requests) payer() types.RequestPayer {
	if r.RequesterPays {
		return types.RequestPayerRequester
	}
	return ""
}

func (r Requests) encrypt(in *s3.PutObjectInput) {
	in.ServerSideEncryption = types.ServerSideEncryption(r.Encryption)
	if r.KMSKey != "" {
		in.SSEKMSKeyId = aws.String(r.KMSKey)
	}
	if r.BucketKey {
		in.BucketKeyEnabled = aws.Bool(true)
	}
}

// sum sends the checksum in a header: Amazon's client would send its own behind the body,
// in an encoding that other stores may not know. It is against damage, not forgery.
func (r Requests) sum(in *s3.PutObjectInput, data []byte) {
	text := func(sum []byte) *string { return aws.String(base64.StdEncoding.EncodeToString(sum)) }
	switch r.Checksum {
	case ChecksumMD5:
		sum := md5.Sum(data) //nolint:gosec // see above
		in.ContentMD5 = text(sum[:])
	case ChecksumCRC32C:
		sum := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
		in.ChecksumCRC32C = text([]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
	case ChecksumSHA256:
		sum := sha256.Sum256(data)
		in.ChecksumSHA256 = text(sum[:])
	}
}
