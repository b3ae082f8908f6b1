package reconcile

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/nstance-go/nstance/internal/records"
)

// token is the provider's idempotency token: the ID and a digest of the shape.
func token(rec records.Instance) string {
	s := rec.Shape
	sum := sha256.Sum256([]byte(s.InstanceType + "\x00" + s.Subnet + "\x00" + string(s.Market) + "\x00" + s.MaxPrice))
	return string(rec.ID) + "-" + hex.EncodeToString(sum[:4])
}

// nextToken is the token of a create after the machine of a former one was lost:
// a provider may answer the former token with that machine.
func nextToken(former, rec records.Instance) string {
	sum := sha256.Sum256([]byte(former.Token + "\x00" + token(rec)))
	return string(rec.ID) + "-" + hex.EncodeToString(sum[:4])
}

// relaunched reports whether a machine was lost before rec's. The provider may
// answer with the loss of the former until it shows the present one.
func relaunched(rec records.Instance) bool { return rec.Token != "" && rec.Token != token(rec) }
