package gcp

import (
	"encoding/base64"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-go/nstance"
	"github.com/nstance-go/nstance/provider"
)

// What metadata holds, by the API's documentation of Metadata.
const (
	maxUserData = 256 << 10
	maxMetadata = 512 << 10
)

// encodingKey tells cloud-init how user data are encoded that are no text
// (cloud-init, data source GCE).
const encodingKey = "user-data-encoding"

// request returns the machine to ask for. It refuses what the cloud would
// refuse, as far as that shows offline. Without a zone in the spec's subnet the machine is in zone.
func (o *Options) request(zone string, spec nstance.MachineSpec) (*computepb.Instance, error) {
	var a Args
	zone, subnet, err := o.splitSubnet(zone, spec.Subnet)
	if err != nil {
		return nil, err
	}
	if err := provider.ValidateSpec(spec, maxUserData); err != nil {
		return nil, err
	}
	if err := provider.DecodeArgs(spec.Args, &a, managed); err != nil {
		return nil, err
	}
	for _, err := range []error{a.check(), checkShape(spec), a.checkType(spec.InstanceType), a.checkLocalSSDs(spec), a.checkPlacement(spec.Market)} {
		if err != nil {
			return nil, err
		}
	}
	labels, err := marks(spec, a.Labels)
	if err != nil {
		return nil, err
	}
	data, err := a.metadata(spec.UserData)
	if err != nil {
		return nil, err
	}
	out := &computepb.Instance{
		Name: proto.String(string(spec.ID)), MachineType: proto.String("zones/" + zone + "/machineTypes/" + spec.InstanceType),
		Labels: labels, Metadata: data, Disks: a.allDisks(o, zone, spec.Image, labels),
		NetworkInterfaces: a.nics(o, zone, subnet), Scheduling: a.scheduling(spec.Market),
		CanIpForward: proto.Bool(a.CanIPForward),
	}
	a.extras(out)
	a.place(o, zone, out)
	return out, nil
}

func checkShape(spec nstance.MachineSpec) error {
	switch {
	case spec.Image == "":
		return nstance.FieldError("image", "name one, such as projects/debian-cloud/global/images/family/debian-12", "is empty")
	case !namePattern.MatchString(spec.InstanceType):
		return nstance.FieldError("instance_type", "name one, such as e2-standard-2", "%.64q is no machine type", spec.InstanceType)
	case spec.MaxPrice != "":
		return nstance.FieldError("market.max_price", "remove it: Google Cloud has fixed prices", "cannot be honoured")
	}
	return nil
}

// imagePath returns the path of an image, named by itself or by a path.
func (o *Options) imagePath(image string) string { return o.globalPath("images", image) }

// globalPath returns the path of a global resource, named by itself or by a path.
func (o *Options) globalPath(collection, name string) string {
	if strings.Contains(name, "/") {
		return name
	}
	return "projects/" + o.Project + "/global/" + collection + "/" + name
}

// subnetPath returns the path of a subnet, named by itself or by a path.
func (o *Options) subnetPath(zone, subnet string) string {
	if i := strings.Index(subnet, "projects/"); i >= 0 {
		return subnet[i:]
	}
	if strings.Contains(subnet, "/") {
		return "projects/" + o.Project + "/" + subnet
	}
	return o.regionalPath(zone, "subnetworks", subnet)
}

// regionalPath returns the path of a resource of the zone's region, named by itself or by a
// path.
func (o *Options) regionalPath(zone, collection, name string) string {
	if strings.Contains(name, "/") {
		return name
	}
	return "projects/" + o.Project + "/regions/" + zonePattern.FindStringSubmatch(zone)[1] + "/" + collection + "/" + name
}

func (a *Args) metadata(userData []byte) (*computepb.Metadata, error) {
	items := maps.Clone(a.Metadata)
	if items == nil {
		items = map[string]string{}
	}
	if len(userData) > 0 {
		key, text := "user-data", string(userData)
		if a.UserDataKey != "" {
			key = a.UserDataKey
		}
		if !utf8.Valid(userData) {
			if key != "user-data" {
				return nil, nstance.FieldError("userdata", "write text", "a start-up script is text")
			}
			text, items[encodingKey] = base64.StdEncoding.EncodeToString(userData), "base64"
		}
		items[key] = text
	}
	out, total := &computepb.Metadata{}, 0
	for _, k := range slices.Sorted(maps.Keys(items)) {
		if total += len(k) + len(items[k]); len(items[k]) > maxUserData {
			return nil, nstance.FieldError("userdata", "shorten it, or fetch the rest at boot", "metadata %s has %d bytes, more than the permitted %d", k, len(items[k]), maxUserData)
		}
		out.Items = append(out.Items, &computepb.Items{Key: proto.String(k), Value: proto.String(items[k])})
	}
	if total >= maxMetadata {
		return nil, nstance.FieldError("args.metadata", "shorten it", "the metadata have %d bytes, more than the permitted %d", total, maxMetadata)
	}
	return out, nil
}

// scheduling is how capacity is bought, and what ends the machine. A spot
// machine neither migrates nor restarts: the cloud permits nothing else.
func (a *Args) scheduling(market nstance.MarketType) *computepb.Scheduling {
	out := &computepb.Scheduling{}
	switch {
	case market != nstance.Spot:
		out.ProvisioningModel = proto.String("STANDARD")
	case a.SpotModel == modelPreemptible:
		out.Preemptible = proto.Bool(true)
	default:
		out.ProvisioningModel, out.Preemptible = proto.String("SPOT"), proto.Bool(true)
		out.InstanceTerminationAction = proto.String("DELETE")
		if notice := a.notice(); notice > 0 {
			out.PreemptionNoticeDuration = lasting(notice)
		}
	}
	if a.MaxRunDuration > 0 {
		out.MaxRunDuration = lasting(time.Duration(a.MaxRunDuration))
		out.InstanceTerminationAction = proto.String("DELETE")
	}
	if a.TerminationAction != "" && out.InstanceTerminationAction != nil {
		out.InstanceTerminationAction = proto.String(a.TerminationAction)
	}
	a.hostMaintenance(market, out)
	if a.GracefulShutdown > 0 {
		out.GracefulShutdown = &computepb.SchedulingGracefulShutdown{Enabled: proto.Bool(true), MaxDuration: lasting(time.Duration(a.GracefulShutdown))}
	}
	return out
}

// hostMaintenance says what a failure or the maintenance of its host does to a machine. A
// confidential machine ends by default: only some can move.
func (a *Args) hostMaintenance(market nstance.MarketType, out *computepb.Scheduling) {
	switch {
	case market == nstance.Spot:
		out.OnHostMaintenance, out.AutomaticRestart = proto.String(terminateOnMaintenance), proto.Bool(false)
		return
	case a.OnHostMaintenance != "":
		out.OnHostMaintenance = proto.String(a.OnHostMaintenance)
	case len(a.Accelerators) > 0 || a.Confidential != "":
		out.OnHostMaintenance = proto.String(terminateOnMaintenance)
	}
	out.AutomaticRestart = a.AutomaticRestart
}

func lasting(d time.Duration) *computepb.Duration {
	return &computepb.Duration{Seconds: proto.Int64(int64(d / time.Second))}
}

// extras fills in what is absent unless args ask for it.
func (a *Args) extras(out *computepb.Instance) {
	zone := strings.TrimSuffix(out.GetMachineType(), "/machineTypes/"+lastPart(out.GetMachineType()))
	if len(a.NetworkTags) > 0 {
		out.Tags = &computepb.Tags{Items: a.NetworkTags}
	}
	if a.ServiceAccount != "" {
		scopes := a.Scopes
		if len(scopes) == 0 {
			scopes = []string{"https://www.googleapis.com/auth/cloud-platform"}
		}
		out.ServiceAccounts = []*computepb.ServiceAccount{{Email: proto.String(a.ServiceAccount), Scopes: scopes}}
	}
	if a.MinCPUPlatform != "" {
		out.MinCpuPlatform = proto.String(a.MinCPUPlatform)
	}
	for _, c := range a.Accelerators {
		out.GuestAccelerators = append(out.GuestAccelerators, &computepb.AcceleratorConfig{
			AcceleratorType: proto.String(zone + "/acceleratorTypes/" + c.Type), AcceleratorCount: proto.Int32(c.Count),
		})
	}
	if a.SecureBoot {
		out.ShieldedInstanceConfig = &computepb.ShieldedInstanceConfig{EnableSecureBoot: proto.Bool(true)}
	}
	if a.NestedVirtualization || a.ThreadsPerCore != 0 {
		out.AdvancedMachineFeatures = &computepb.AdvancedMachineFeatures{}
	}
	if a.NestedVirtualization {
		out.AdvancedMachineFeatures.EnableNestedVirtualization = proto.Bool(true)
	}
	if a.ThreadsPerCore != 0 {
		out.AdvancedMachineFeatures.ThreadsPerCore = proto.Int32(int32(a.ThreadsPerCore))
	}
}

func lastPart(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }
