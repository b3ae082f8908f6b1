package provider

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/internal/validate"
)

// maxToken is the longest idempotency token that every cloud accepts: 64 ASCII
// characters (AWS, "Ensuring idempotency in Amazon EC2 API requests").
const maxToken = 64

// ValidateSpec returns nil, or an Invalid error that names the field of spec which
// no cloud accepts. maxUserData is in bytes; 0 means no limit. A HostLimit is refused: a
// provider that chooses hosts clears it in the copy that it has validated.
func ValidateSpec(spec nstance.MachineSpec, maxUserData int) error {
	if _, err := nstance.ParseInstanceID(string(spec.ID)); err != nil {
		return err
	}
	if err := validateOwner(spec.Owner); err != nil {
		return err
	}
	if spec.Group != "" {
		if err := validate.Name("group", spec.Group); err != nil {
			return err
		}
	}
	if err := validateToken(spec.Token); err != nil {
		return err
	}
	if err := validateMarket(spec.Market, spec.MaxPrice); err != nil {
		return err
	}
	if p := spec.Park; p != "" && p != nstance.ParkStopped && p != nstance.ParkHibernated {
		return nstance.FieldError("warm_pool.mode", "use stopped or hibernated", "%.64q is neither", p)
	}
	if spec.Park != "" && spec.Market == nstance.Spot {
		return nstance.FieldError("warm_pool", "use on-demand capacity", "spot machines cannot be parked: the cloud may only end them")
	}
	if spec.HostLimit != 0 {
		return nstance.FieldError("spread.by", "use zone or pool", "this provider does not choose hosts")
	}
	if n := len(spec.UserData); maxUserData > 0 && n > maxUserData {
		return nstance.FieldError("userdata", "shorten it, compress it, or fetch the rest at boot", "%d bytes are more than the permitted %d", n, maxUserData)
	}
	return validateArgs(spec.Args)
}

// validateOwner refuses marks that match the machines of several owners.
func validateOwner(o nstance.Owner) error {
	if o.Tenant == "" {
		return nstance.FieldError("owner.tenant", "mark every machine with its tenant", "is empty")
	}
	return validateFilter(o)
}

// validateFilter accepts an owner without a tenant, which means every tenant.
func validateFilter(o nstance.Owner) error {
	if o.Installation == "" {
		return nstance.FieldError("owner.installation", "use the ID made together with the certificate authorities, or a random ID that stays the same", "is empty")
	}
	if err := validate.Name("owner.cluster_id", o.Cluster); err != nil {
		return err
	}
	if err := validate.Shard("owner.shard", o.Shard); err != nil {
		return err
	}
	if o.Tenant == "" {
		return nil
	}
	return validate.Name("owner.tenant", o.Tenant)
}

func validateToken(token string) error {
	const remedy = "use the instance ID and a digest of the shape, at most 64 printable ASCII characters"
	switch {
	case token == "":
		return nstance.FieldError("token", remedy, "is empty")
	case len(token) > maxToken:
		return nstance.FieldError("token", remedy, "has %d characters", len(token))
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return nstance.FieldError("token", remedy, "contains a character outside printable ASCII")
	}
	return nil
}

func validateMarket(m nstance.MarketType, price string) error {
	if m != "" && m != nstance.OnDemand && m != nstance.Spot {
		return nstance.FieldError("market.type", "use spot or on-demand", "market %q is not known", m)
	}
	whole, fraction, dotted := strings.Cut(price, ".")
	if price != "" && (!digits(whole) || dotted && !digits(fraction)) {
		return nstance.FieldError("market.max_price", "write a decimal such as 0.035", "price %q is not a decimal number", price)
	}
	return nil
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

func validateArgs(args json.RawMessage) error {
	if len(args) == 0 {
		return nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(args, &object); err != nil {
		return nstance.FieldError("args", "write one JSON object", "is not a JSON object: %v", err)
	}
	return nil
}

// Fingerprint returns a digest of the whole spec but HostLimit, which may differ when a
// create is repeated. It is the same in every process and version. A provider that stores it with its machine can distinguish a repeated
// create from one with other parameters under the same ID. Key order and white
// space of Args do not matter.
func Fingerprint(spec nstance.MachineSpec) string {
	p := specWithoutZeros(spec)
	p.Args = canonical(spec.Args)
	p.CreatedAt = spec.CreatedAt.UTC()
	b, err := json.Marshal(p)
	if err != nil {
		b = fmt.Appendf(nil, "%+v", p) // a time outside the years 0 to 9999
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// specWithoutZeros is a MachineSpec that omits zero fields in JSON, so that a field
// added later does not change old digests. The conversion does not compile when a
// field is missing here.
type specWithoutZeros struct {
	ID           nstance.InstanceID `json:",omitzero"`
	Owner        nstance.Owner      `json:",omitzero"`
	Group        nstance.GroupID    `json:",omitzero"`
	CreatedAt    time.Time          `json:",omitzero"`
	Epoch        uint64             `json:",omitzero"`
	Arch         nstance.Arch       `json:",omitzero"`
	Image        string             `json:",omitzero"`
	InstanceType string             `json:",omitzero"`
	Subnet       string             `json:",omitzero"`
	Market       nstance.MarketType `json:",omitzero"`
	MaxPrice     string             `json:",omitzero"`
	Park         nstance.ParkMode   `json:",omitzero"`
	HostLimit    int                `json:"-"`
	Args         json.RawMessage    `json:",omitzero"`
	UserData     []byte             `json:",omitzero"`
	Token        string             `json:",omitzero"`
}

// canonical returns args with sorted keys, and anything that is not JSON as one
// JSON string.
func canonical(args json.RawMessage) json.RawMessage {
	if len(args) == 0 {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(args))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		v = string(args)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil // cannot be: v came out of JSON, or is a string
	}
	return b
}
