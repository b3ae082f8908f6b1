package secrets_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/aws/secrets"
	"github.com/nstance-go/nstance/storage/secret"
)

// A service speaks AWS's JSON protocol 1.1 as both services do: the operation is
// in X-Amz-Target, every error of the caller has status 400 and says what it is
// in __type.
type service struct {
	mu      sync.Mutex
	answers map[string][]answer // by name; the last one stays
	asked   []string
}

type answer struct {
	status int
	body   string
}

func fault(status int, kind string) answer {
	return answer{status, fmt.Sprintf(`{"__type":%q,"message":"ARN of hunter2"}`, kind)}
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	var in struct {
		SecretId, Name string
		WithDecryption bool
	}
	_ = json.Unmarshal(body, &in)
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	say := func(a answer) { w.WriteHeader(a.status); _, _ = io.WriteString(w, a.body) }
	op := r.Header.Get("X-Amz-Target")
	s.asked = append(s.asked, op+" "+in.SecretId+in.Name)
	if !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential=AKID/") {
		say(fault(400, "MissingAuthenticationToken"))
		return
	}
	if op == "AmazonSSM.GetParameter" && !in.WithDecryption {
		say(answer{200, `{"Parameter":{"Value":"AQICAHg..."}}`}) // still encrypted
		return
	}
	left := s.answers[in.SecretId+in.Name]
	switch {
	case len(left) == 0 && op == "AmazonSSM.GetParameter":
		say(fault(400, "ParameterNotFound"))
	case len(left) == 0:
		say(fault(400, "ResourceNotFoundException"))
	default:
		if len(left) > 1 {
			s.answers[in.SecretId+in.Name] = left[1:]
		}
		say(left[0])
	}
}

var kinds = map[string]func(value string) answer{
	secrets.SecretsManager: func(v string) answer {
		return answer{200, fmt.Sprintf(`{"Name":"db","VersionId":"v1","VersionStages":["AWSCURRENT"],"SecretString":%q}`, v)}
	},
	secrets.ParameterStore: func(v string) answer {
		return answer{200, fmt.Sprintf(`{"Parameter":{"Name":"db","Type":"SecureString","Value":%q,"Version":3}}`, v)}
	},
}

func open(t *testing.T, scheme, params string, s *service) secret.Source {
	t.Helper()
	front := httptest.NewServer(s)
	t.Cleanup(front.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "AKID")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "key")
	t.Setenv("AWS_CONFIG_FILE", "/nowhere")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
	src, err := secrets.Open(t.Context(), scheme+"://?region=eu-west-1&endpoint="+front.URL+params)
	require.NoError(t, err)
	return src
}

func TestGet(t *testing.T) {
	for scheme, value := range kinds {
		t.Run(scheme, func(t *testing.T) {
			s := &service{answers: map[string][]answer{
				"db":        {value("hunter2")},
				"recovers":  {fault(500, "InternalServerError"), fault(400, "ThrottlingException"), value("hunter2")},
				"denied":    {fault(400, "AccessDeniedException")},
				"kms":       {fault(400, "DecryptionFailure")},
				"deleted":   {fault(400, "InvalidRequestException")},
				"throttled": {fault(400, "ThrottlingException")},
				"broken":    {fault(500, "InternalServerError")},
				"gateway":   {{404, "<html>no such host</html>"}},
				"garbled":   {{200, "<html>sign in to this network</html>"}},
				"empty":     {value("")},
				"nothing":   {{200, "{}"}},
				"long":      {value(strings.Repeat("x", secret.MaxSize+1))},
			}}
			src := open(t, scheme, "", s)
			for _, name := range []string{"db", "recovers"} {
				data, err := src.Get(t.Context(), name)
				require.NoError(t, err)
				require.Equal(t, "hunter2", string(data))
			}
			for name, code := range map[string]nstance.Code{
				"absent": nstance.NotFound, "denied": nstance.Denied, "kms": nstance.Denied, "deleted": nstance.Invalid,
				"throttled": nstance.Throttled, "broken": nstance.Unavailable, "gateway": nstance.Unavailable, "garbled": nstance.Unavailable,
				"empty": nstance.Invalid, "nothing": nstance.Unavailable, "long": nstance.Invalid, "nonce.key": nstance.Invalid,
			} {
				_, err := src.Get(t.Context(), name)
				require.ErrorIs(t, err, code, name)
				require.NotContains(t, err.Error(), "hunter2", name)
				require.Equal(t, name == "garbled", strings.Contains(err.Error(), "does not answer"), "%v", err)
			}
			require.LessOrEqual(t, len(s.asked), 1+3+11*3, "the client asks three times at most")
		})
	}
}

// TestMeanings: most refusals have status 400, and only their words tell them apart.
func TestMeanings(t *testing.T) {
	words := map[nstance.Code]string{
		nstance.NotFound: "ResourceNotFoundException ParameterNotFound",
		nstance.Denied: "AccessDeniedException DecryptionFailure ExpiredTokenException IncompleteSignature InvalidClientTokenId InvalidSignatureException " +
			"MissingAuthenticationToken NotAuthorized OptInRequired RequestExpired UnrecognizedClientException",
		nstance.Throttled: "RequestLimitExceeded ThrottlingException TooManyRequestsException",
		nstance.Unavailable: "InternalServerError InternalServiceError InternalServiceErrorException ServiceUnavailable KMSInternalException " +
			"DependencyTimeoutException RequestTimeoutException IDPCommunicationErrorException",
		nstance.Invalid: "InvalidRequestException ParameterVersionNotFound NewWordOfTheService",
	}
	s := &service{answers: map[string][]answer{}}
	want := map[string]nstance.Code{}
	for code, list := range words {
		for word := range strings.FieldsSeq(list) {
			s.answers[word], want[word] = []answer{fault(400, word)}, code
		}
	}
	src := open(t, secrets.ParameterStore, "", s)
	got := getAll(t, src, slices.Sorted(maps.Keys(want)))
	for word, code := range want {
		require.ErrorIs(t, got[word], code, word)
	}
}

// getAll gets secrets at once, and returns why each could not be read.
func getAll(t *testing.T, src secret.Source, names []string) map[string]error {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	out := map[string]error{}
	for _, name := range names {
		wg.Go(func() {
			_, err := src.Get(t.Context(), name)
			mu.Lock()
			defer mu.Unlock()
			out[name] = err
		})
	}
	wg.Wait()
	return out
}

func TestBinary(t *testing.T) {
	s := &service{answers: map[string][]answer{"key": {{200, `{"Name":"key","SecretBinary":"AAEC"}`}}}}
	data, err := open(t, secrets.SecretsManager, "", s).Get(t.Context(), "key")
	require.NoError(t, err)
	require.Equal(t, []byte{0, 1, 2}, data)
}

func TestPrefix(t *testing.T) {
	s := &service{answers: map[string][]answer{"/prod/db": {kinds[secrets.ParameterStore]("hunter2")}}}
	data, err := open(t, secrets.ParameterStore, "&prefix=/prod/", s).Get(t.Context(), "db")
	require.NoError(t, err)
	require.Equal(t, "hunter2", string(data))
}

func TestNoAnswer(t *testing.T) {
	s := &service{}
	front := httptest.NewServer(s)
	src := open(t, secrets.SecretsManager, "", s)
	front.Close()
	gone, err := secrets.Open(t.Context(), "awssecretsmanager://?region=eu-west-1&endpoint="+front.URL)
	require.NoError(t, err)
	_, err = gone.Get(t.Context(), "db")
	require.ErrorIs(t, err, nstance.Unavailable)
	_, err = src.Get(t.Context(), "db")
	require.ErrorIs(t, err, nstance.NotFound)
}

func TestOpen(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	t.Setenv("AWS_CONFIG_FILE", "/nowhere")
	for _, bad := range []string{
		"awssecretsmanager://", "awssecretsmanager://?endpoint=https://host", "awssecretsmanager://name?region=r", "awssecretsmanager://name?region=r&prefix=prod/", "awsparamstore://?region=r&endpoint=ftp://x",
		"awsparamstore://?region=r&other=1", "awsparamstore://?region=r&role=none", "other://",
	} {
		_, err := secrets.Open(t.Context(), bad)
		require.ErrorIs(t, err, nstance.Invalid, bad)
	}
}
