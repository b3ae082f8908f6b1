package lease

import (
	"time"

	"github.com/nstance-go/nstance/storage"
)

// object is lease/{shard}.json.
type object struct {
	storage.Header
	Holder  string `json:"holder"` // random, new with every process
	Address string `json:"address,omitempty"`
	Peer    string `json:"peer,omitempty"`

	Registration string `json:"registration,omitempty"`
	TTL          int64  `json:"ttl_ms"`
	Released     bool   `json:"released"` // by its holder; it may be taken at once
}

// standing is the object in storage, as it is known. It is never changed in place.
type standing struct {
	object
	unknown storage.Unknown
	version storage.Version // empty: there is no object
}

// ttl is how long the object must stay unchanged before it may be taken. A
// missing ttl counts as the longest one, a ttl out of range as the nearest limit.
func (s *standing) ttl() time.Duration {
	if s.version == "" || s.TTL <= 0 || s.TTL > MaxTTL.Milliseconds() {
		return MaxTTL
	}
	return max(time.Duration(s.TTL)*time.Millisecond, MinTTL)
}

// next returns the object that replaces s, with a write ID of its own.
func (s *standing) next(epoch uint64) standing {
	out := standing{object: s.object, unknown: s.unknown}
	out.Header = storage.NextHeader(s.Header, epoch)
	return out
}

func (s *standing) encode() ([]byte, error) { return storage.Encode(s.object, s.unknown) }

// decode reads the object. One that is damaged, or of another major format, is
// Invalid: it exists, and no server may take it.
func decode(obj storage.Object) (standing, error) {
	o, unknown, err := storage.Decode[object](obj.Key, obj.Data)
	return standing{o, unknown, obj.Version}, err
}
