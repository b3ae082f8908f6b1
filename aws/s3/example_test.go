package s3_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/nstance-go/nstance/aws/s3"
	"github.com/nstance-go/nstance/storage"
)

// A program with a client of its own passes it to New; Open reads a URL.
func ExampleNew() {
	ctx := context.Background()
	fake := s3mem.New()
	_ = fake.CreateBucket("prod")
	srv := httptest.NewServer(gofakes3.New(fake).Server())
	defer srv.Close()
	client := awss3.New(awss3.Options{
		BaseEndpoint: aws.String(srv.URL), UsePathStyle: true, Region: "eu-west-1",
		Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""),
	})

	store, err := s3.New(client, "prod", &s3.Options{Prefix: "nstance"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("probe:", storage.Probe(ctx, store))
	v, _ := store.PutIfAbsent(ctx, "lease/eu1a.json", []byte("{}"))
	_, err = store.PutIfMatch(ctx, "lease/eu1a.json", []byte(`{"epoch":1}`), v)
	fmt.Println("holder:", err)
	_, err = store.PutIfMatch(ctx, "lease/eu1a.json", []byte(`{"epoch":2}`), v)
	fmt.Println("who comes late:", err)
	// Output:
	// probe: <nil>
	// holder: <nil>
	// who comes late: put lease/eu1a.json: the store answers 412 PreconditionFailed
}
