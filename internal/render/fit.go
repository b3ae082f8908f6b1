package render

import (
	"bytes"
	"compress/gzip"
	"strings"
)

// cloudInit are the first words of the forms of user data that only cloud-init reads. It
// unpacks what is compressed with gzip before it looks at them (cloud-init, "User data
// formats", gzip compressed content).
var cloudInit = []string{
	"#cloud-config", "## template: jinja", "MIME-Version:", "Content-Type: multipart", "#include", "#cloud-boothook", "#part-handler",
}

// Fit returns user data as they are sent to a provider that takes up to limit bytes:
// compressed, if they are longer and of a form that only cloud-init reads. Others are
// returned as they are, and so are those that stay too long: the provider's check refuses
// them. Equal data give equal bytes.
func Fit(userData []byte, limit int) []byte {
	if len(userData) <= limit || !forCloudInit(userData) {
		return userData
	}
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return userData
	}
	if _, err := w.Write(userData); err != nil || w.Close() != nil || out.Len() > limit {
		return userData
	}
	return out.Bytes()
}

func forCloudInit(userData []byte) bool {
	text := strings.ToLower(string(userData[:min(len(userData), 64)]))
	for _, word := range cloudInit {
		if strings.HasPrefix(text, strings.ToLower(word)) {
			return true
		}
	}
	return false
}

// Overlong returns what to do about user data that are too long for a provider although
// Fit has compressed them where it could.
func Overlong(userData []byte) string {
	if forCloudInit(userData) {
		return "shorten it, or fetch the rest at boot: compressed it is still too long"
	}
	return "shorten it, fetch the rest at boot, or write it as #cloud-config or as MIME parts, which are compressed for cloud-init"
}
