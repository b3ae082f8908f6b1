package local

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/imds"
)

// The environment variables of a machine.
const (
	EnvDir         = "NSTANCE_LOCAL_DIR"    // its folder
	EnvProvider    = "NSTANCE_PROVIDER"     // the protocol of its metadata service: aws, gcp or azure
	EnvMetadataURL = "NSTANCE_METADATA_URL" // base URL of its metadata service
)

// tetherFD is the descriptor of a pipe that reaches its end when the cloud ends.
const tetherFD = 3

// exitGrace is how long a machine has to exit after its cloud has ended.
const exitGrace = 2 * time.Second

// BootData is the content of a machine's user data, in JSON:
//
//	{"env": {"NAME": "value"}, "files": {"identity/nonce.jwt": "content"}}
type BootData struct {
	Env   map[string]string
	Files map[string][]byte // by path below the machine's folder, with slashes
}

// Getenv returns a variable of the user data, or else of the environment.
func (b BootData) Getenv(name string) string {
	if v, ok := b.Env[name]; ok {
		return v
	}
	return os.Getenv(name)
}

// Boot is called first by a program that runs as a machine. It ties the program's
// life to the cloud's, as [Tether] does, reads the user data and writes its files,
// readable for the owner only, below the machine's folder. User data is optional.
// Fails with Invalid when the user data does not have the form of BootData or this
// process is not a machine, Unavailable when the metadata service does not answer.
func Boot(ctx context.Context) (context.Context, BootData, error) {
	tied, err := Tether(ctx)
	if err != nil {
		return nil, BootData{}, err
	}
	raw, err := UserData(tied)
	if errors.Is(err, nstance.NotFound) {
		return tied, BootData{}, nil
	}
	if err != nil {
		return nil, BootData{}, err
	}
	data, err := parse(raw)
	if err != nil {
		return nil, BootData{}, err
	}
	if err := data.write(os.Getenv(EnvDir)); err != nil {
		return nil, BootData{}, err
	}
	return tied, data, nil
}

// Tether returns a context that ends when ctx does, or when the cloud that started
// this process is closed or its process has ended in any way. After the end of the
// cloud the program has two seconds to exit; then it kills itself and its process
// group, because no parent is left to do it. Call it once. Fails with Invalid when
// this process is not a machine.
func Tether(ctx context.Context) (context.Context, error) {
	if os.Getenv(EnvDir) == "" {
		return nil, nstance.Errorf(nstance.Invalid, "not started by provider/local: %s is not set", EnvDir)
	}
	tether, err := openTether()
	if err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "not started by provider/local: %w", err)
	}
	tied, cut := context.WithCancelCause(ctx)
	context.AfterFunc(ctx, func() { _ = tether.Close() }) // ends the read below
	go func() {
		_, err := io.Copy(io.Discard, tether)
		if err != nil && ctx.Err() != nil {
			return
		}
		cut(nstance.Errorf(nstance.Unavailable, "the local cloud has ended"))
		time.AfterFunc(exitGrace, killSelf)
	}()
	return tied, nil
}

// UserData returns this machine's raw user data. Fails with NotFound when there is
// none, Invalid when this process is not a machine, Unavailable when the metadata
// service does not answer.
func UserData(ctx context.Context) ([]byte, error) {
	base := os.Getenv(EnvMetadataURL)
	if base == "" {
		return nil, nstance.Errorf(nstance.Invalid, "not started by provider/local: %s is not set", EnvMetadataURL)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	switch os.Getenv(EnvProvider) {
	case imds.GCP:
		return ask(ctx, http.MethodGet, base+"/"+imds.GCPUserData, "Metadata-Flavor", "Google")
	case imds.Azure:
		encoded, err := ask(ctx, http.MethodGet, base+"/"+imds.AzureUserData+"?api-version=2021-01-01&format=text", "Metadata", "true")
		if err != nil {
			return nil, err
		}
		return base64.StdEncoding.DecodeString(string(encoded))
	}
	token, err := ask(ctx, http.MethodPut, base+"/"+imds.AWSToken, "X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "60")
	if err != nil {
		return nil, fmt.Errorf("metadata token: %w", err)
	}
	return ask(ctx, http.MethodGet, base+"/"+imds.AWSUserData, "X-Aws-Ec2-Metadata-Token", string(token))
}

// ask sends one request with one header and returns the body of a 200.
func ask(ctx context.Context, method, url, header, value string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, nstance.Errorf(nstance.Invalid, "%w", err)
	}
	req.Header.Set(header, value)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // and no proxy
	resp, err := client.Do(req)
	if err != nil {
		return nil, nstance.Errorf(nstance.Unavailable, "%w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxUserData+1))
	switch {
	case err != nil:
		return nil, nstance.Errorf(nstance.Unavailable, "%w", err)
	case resp.StatusCode == http.StatusNotFound:
		return nil, nstance.Errorf(nstance.NotFound, "nothing at %s", url)
	case resp.StatusCode != http.StatusOK:
		return nil, nstance.Errorf(nstance.Unavailable, "%s answers %s", url, resp.Status)
	case len(body) > maxUserData:
		return nil, nstance.Errorf(nstance.Invalid, "%s has more than %d bytes", url, maxUserData)
	}
	return body, nil
}

// parse decodes user data strictly.
func parse(raw []byte) (BootData, error) {
	var form struct {
		Env   map[string]string `json:"env"`
		Files map[string]string `json:"files"`
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&form); err != nil {
		return BootData{}, nstance.FieldError("userdata", `write {"env": {}, "files": {}}`, "%v", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return BootData{}, nstance.FieldError("userdata", "write one JSON object", "there is more after its end")
	}
	data := BootData{Env: form.Env, Files: make(map[string][]byte, len(form.Files))}
	for name := range form.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return BootData{}, nstance.FieldError("userdata.env", "", "%.64q is no name of a variable", name)
		}
	}
	for name, content := range form.Files {
		if path.Clean(name) != name || name == "." || !filepath.IsLocal(filepath.FromSlash(name)) {
			return BootData{}, nstance.FieldError("userdata.files", "name it relative to the machine's folder", "%.64q is not a path inside it", name)
		}
		data.Files[name] = []byte(content)
	}
	return data, nil
}

// write writes the files below dir. No path and no link leads out of it.
func (b BootData) write(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nstance.Errorf(nstance.Invalid, "the machine's folder: %w", err)
	}
	defer root.Close()
	for _, name := range slices.Sorted(maps.Keys(b.Files)) {
		local := filepath.FromSlash(name)
		if err := root.MkdirAll(filepath.Dir(local), 0o700); err != nil {
			return nstance.Errorf(nstance.Internal, "file of the user data: %w", err)
		}
		if err := root.WriteFile(local, b.Files[name], 0o600); err != nil {
			return nstance.Errorf(nstance.Internal, "file of the user data: %w", err)
		}
	}
	return nil
}
