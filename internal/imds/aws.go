package imds

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Paths of the aws protocol.
const (
	AWSToken       = "latest/api/token"
	AWSUserData    = "latest/user-data"
	AWSInstanceID  = "latest/meta-data/instance-id"
	AWSLifeCycle   = "latest/meta-data/instance-life-cycle"
	AWSAction      = "latest/meta-data/spot/instance-action"
	AWSRebalance   = "latest/meta-data/events/recommendations/rebalance"
	AWSMaintenance = "latest/meta-data/events/maintenance/scheduled"
	AWSTargetState = "latest/meta-data/autoscaling/target-lifecycle-state"
)

const (
	tokenHeader = "X-Aws-Ec2-Metadata-Token"
	ttlHeader   = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
	maxTokenTTL = 6 * time.Hour // EC2 user guide, "How Instance Metadata Service Version 2 works"
)

func awsDefaults(o Options) map[string]string {
	v := map[string]string{
		AWSInstanceID:                    orElse(o.InstanceID, "i-0123456789abcdef0"),
		AWSLifeCycle:                     lifeCycle(o.Spot),
		AWSMaintenance:                   "[]",
		"latest/meta-data/instance-type": "local",
		"latest/meta-data/local-ipv4":    "127.0.0.1",
		"latest/meta-data/placement/availability-zone": o.Zone,
	}
	if o.UserData != nil {
		v[AWSUserData] = string(o.UserData)
	}
	return v
}

func orElse(s, otherwise string) string {
	if s != "" {
		return s
	}
	return otherwise
}

func lifeCycle(spot bool) string {
	if spot {
		return "spot"
	}
	return "on-demand"
}

func (s *Server) serveAWS(w http.ResponseWriter, r *http.Request, path string) {
	w.Header().Set("Server", "EC2ws")
	w.Header().Set("Content-Type", "text/plain")
	switch {
	case path == AWSToken && !s.opts.NoTokens:
		s.serveToken(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		// A service from before session tokens knows no PUT on any path.
		w.WriteHeader(http.StatusMethodNotAllowed)
	case !s.admit(r):
		w.WriteHeader(http.StatusUnauthorized)
	default:
		s.serveAWSValue(w, path)
	}
}

func (s *Server) serveAWSValue(w http.ResponseWriter, path string) {
	body, found, _ := s.lookup(path)
	if !found {
		body, found = s.list(path)
	}
	if !found {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	io.WriteString(w, body) //nolint:errcheck // the client left
}

// serveToken grants a session token. A PUT that came through a proxy is
// refused, which is what keeps tokens off open reverse proxies.
func (s *Server) serveToken(w http.ResponseWriter, r *http.Request) {
	seconds, err := strconv.Atoi(r.Header.Get(ttlHeader))
	ttl := time.Duration(seconds) * time.Second
	switch {
	case r.Method != http.MethodPut:
		w.WriteHeader(http.StatusMethodNotAllowed)
	case r.Header.Get("X-Forwarded-For") != "":
		w.WriteHeader(http.StatusForbidden)
	case err != nil || seconds < 1 || seconds > int(maxTokenTTL.Seconds()):
		w.WriteHeader(http.StatusBadRequest)
	default:
		ttl = max(min(ttl, s.opts.MaxTokenTTL), time.Second)
		w.Header().Set(ttlHeader, strconv.Itoa(int(ttl.Seconds())))
		io.WriteString(w, s.mint(s.opts.Now().Add(ttl))) //nolint:errcheck // the client left
	}
}

// admit reports whether a read may be answered. A token that is presented must
// be good even where none is required.
func (s *Server) admit(r *http.Request) bool {
	token := r.Header.Get(tokenHeader)
	switch {
	case s.opts.NoTokens:
		return true
	case token == "":
		return !s.opts.RequireToken
	}
	return s.verify(token)
}

// mint makes a token that carries its own expiry, so that the server remembers
// none of them.
func (s *Server) mint(expiry time.Time) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(expiry.UnixNano()))
	return base64.RawURLEncoding.EncodeToString(append(b, s.sign(b)...))
}

func (s *Server) verify(token string) bool {
	b, err := base64.RawURLEncoding.DecodeString(strings.TrimSpace(token))
	if err != nil || len(b) != 8+sha256.Size || !hmac.Equal(b[8:], s.sign(b[:8])) {
		return false
	}
	return s.opts.Now().UnixNano() < int64(binary.BigEndian.Uint64(b))
}

func (s *Server) sign(b []byte) []byte {
	s.mu.Lock()
	mac := hmac.New(sha256.New, s.secret)
	s.mu.Unlock()
	mac.Write(b)
	return mac.Sum(nil)
}
