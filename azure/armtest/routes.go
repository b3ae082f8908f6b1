package armtest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7"
	computefake "github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v7/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"
	networkfake "github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7/fake"
)

// A route is one operation of the API.
type route struct {
	method  string
	pattern *regexp.Regexp
	name    string                               // as the SDK names it
	action  string                               // the permission that it needs
	query   []string                             // beside api-version
	server  func(*Cloud, *call) doer             // a fake server of the SDK
	reparse func([]byte) (json.Marshaler, error) // the body as the API describes it; nil: there is none
}

type doer interface {
	Do(*http.Request) (*http.Response, error)
}

const (
	compute = "Microsoft.Compute/"
	network = "Microsoft.Network/"
)

// pattern makes a pattern of a path template, as in {name}; G stands for a resource
// group of a subscription, S for a subscription.
func pattern(template string) *regexp.Regexp {
	template = strings.NewReplacer(
		"G/", "/subscriptions/{subscription}/resourceGroups/{group}/providers/",
		"S/", "/subscriptions/{subscription}/providers/",
		"$compute", "Microsoft.Compute", "$network", "Microsoft.Network",
	).Replace(template)
	return regexp.MustCompile("(?i)^" + regexp.MustCompile(`\{(\w+)\}`).ReplaceAllString(template, `(?P<$1>[^/]+)`) + "$")
}

var (
	vmPath   = "G/$compute/virtualMachines/{name}"
	nicPath  = "G/$network/networkInterfaces/{name}"
	diskPath = "G/$compute/disks/{name}"
	ipPath   = "G/$network/publicIPAddresses/{name}"
)

// routes is the table of all operations.
var routes = []route{
	{http.MethodPut, pattern(vmPath), "VirtualMachinesClient.BeginCreateOrUpdate", compute + "virtualMachines/write", nil, vmServer, parse[armcompute.VirtualMachine]},
	{http.MethodGet, pattern(vmPath), "VirtualMachinesClient.Get", compute + "virtualMachines/read", []string{"$expand"}, vmServer, nil},
	{http.MethodDelete, pattern(vmPath), "VirtualMachinesClient.BeginDelete", compute + "virtualMachines/delete", []string{"forceDeletion"}, vmServer, nil},
	{http.MethodPost, pattern(vmPath + "/deallocate"), "VirtualMachinesClient.BeginDeallocate", compute + "virtualMachines/deallocate/action", []string{"hibernate"}, vmServer, nil},
	{http.MethodPost, pattern(vmPath + "/start"), "VirtualMachinesClient.BeginStart", compute + "virtualMachines/start/action", nil, vmServer, nil},
	{http.MethodPost, pattern(vmPath + "/retrieveBootDiagnosticsData"), "VirtualMachinesClient.RetrieveBootDiagnosticsData", compute + "virtualMachines/retrieveBootDiagnosticsData/action", []string{"sasUriExpirationTimeInMinutes"}, vmServer, nil},
	{http.MethodGet, pattern("G/$compute/virtualMachines"), "VirtualMachinesClient.NewListPager", compute + "virtualMachines/read", []string{"$filter", "$expand", "$skiptoken"}, vmServer, nil},
	{http.MethodGet, pattern("S/$compute/virtualMachines"), "VirtualMachinesClient.NewListAllPager", compute + "virtualMachines/read", []string{"statusOnly", "$filter", "$expand", "$skiptoken"}, vmServer, nil},

	{http.MethodPut, pattern(nicPath), "InterfacesClient.BeginCreateOrUpdate", network + "networkInterfaces/write", nil, nicServer, parse[armnetwork.Interface]},
	{http.MethodGet, pattern(nicPath), "InterfacesClient.Get", network + "networkInterfaces/read", nil, nicServer, nil},
	{http.MethodDelete, pattern(nicPath), "InterfacesClient.BeginDelete", network + "networkInterfaces/delete", nil, nicServer, nil},

	{http.MethodGet, pattern("G/$network/networkInterfaces"), "InterfacesClient.NewListPager", network + "networkInterfaces/read", []string{"$skiptoken"}, nicServer, nil},
	{http.MethodGet, pattern("G/$network/virtualNetworks/{network}/subnets/{name}"), "SubnetsClient.Get", network + "virtualNetworks/subnets/read", nil, subnetServer, nil},

	{http.MethodPut, pattern(ipPath), "PublicIPAddressesClient.BeginCreateOrUpdate", network + "publicIPAddresses/write", nil, publicServer, parse[armnetwork.PublicIPAddress]},
	{http.MethodGet, pattern(ipPath), "PublicIPAddressesClient.Get", network + "publicIPAddresses/read", nil, publicServer, nil},
	{http.MethodDelete, pattern(ipPath), "PublicIPAddressesClient.BeginDelete", network + "publicIPAddresses/delete", nil, publicServer, nil},

	{http.MethodPut, pattern(diskPath), "DisksClient.BeginCreateOrUpdate", compute + "disks/write", nil, diskServer, parse[armcompute.Disk]},
	{http.MethodGet, pattern(diskPath), "DisksClient.Get", compute + "disks/read", nil, diskServer, nil},
	{http.MethodDelete, pattern(diskPath), "DisksClient.BeginDelete", compute + "disks/delete", nil, diskServer, nil},

	{http.MethodGet, pattern("G/$network/virtualNetworks/{network}/usages"), "VirtualNetworksClient.NewListUsagePager", network + "virtualNetworks/usages/read", []string{"$skiptoken"}, vnetServer, nil},
	{http.MethodGet, pattern("G/$network/loadBalancers/{balancer}/backendAddressPools/{pool}"), "LoadBalancerBackendAddressPoolsClient.Get", network + "loadBalancers/backendAddressPools/read", nil, poolServer, nil},

	{http.MethodGet, pattern("S/$compute/skus"), "ResourceSKUsClient.NewListPager", compute + "skus/read", []string{"$filter", "includeExtendedLocations", "$skiptoken"}, sizeServer, nil},
	{http.MethodGet, pattern("G/$compute/galleries/{gallery}/images"), "GalleryImagesClient.NewListByGalleryPager", compute + "galleries/images/read", []string{"$skiptoken"}, imageServer, nil},
	{http.MethodGet, pattern("G/$compute/galleries/{gallery}/images/{image}/versions"), "GalleryImageVersionsClient.NewListByGalleryImagePager", compute + "galleries/images/versions/read", []string{"$skiptoken"}, versionServer, nil},

	{http.MethodGet, pattern("S/$compute/locations/{location}/operations/{operation}"), "operation", "", nil, operationServer, nil},
	{http.MethodGet, pattern("S/$network/locations/{location}/operations/{operation}"), "operation", "", nil, operationServer, nil},
}

func vmServer(c *Cloud, k *call) doer {
	vms := vmCalls{k, c.fleet, vmChecks{k, diskCalls{k, c.disks}, c.nics, catalogCalls{k}}}
	return computefake.NewVirtualMachinesServerTransport(&computefake.VirtualMachinesServer{
		BeginCreateOrUpdate: vms.put, Get: vms.get, BeginDelete: vms.delete, NewListPager: vms.list, NewListAllPager: vms.listStatuses,
		BeginDeallocate: vms.deallocate, BeginStart: vms.start, RetrieveBootDiagnosticsData: vms.console,
	})
}

func nicServer(c *Cloud, k *call) doer {
	nics := nicCalls{k, c.nics, c.publics}
	return networkfake.NewInterfacesServerTransport(&networkfake.InterfacesServer{
		BeginCreateOrUpdate: nics.put, Get: nics.get, BeginDelete: nics.delete, NewListPager: nics.list,
	})
}

func poolServer(c *Cloud, k *call) doer {
	return networkfake.NewLoadBalancerBackendAddressPoolsServerTransport(&networkfake.LoadBalancerBackendAddressPoolsServer{Get: nicCalls{k, c.nics, c.publics}.getPool})
}

func publicServer(c *Cloud, k *call) doer {
	publics := publicCalls{k, c.publics, c.nics}
	return networkfake.NewPublicIPAddressesServerTransport(&networkfake.PublicIPAddressesServer{
		BeginCreateOrUpdate: publics.put, Get: publics.get, BeginDelete: publics.delete,
	})
}

func subnetServer(c *Cloud, k *call) doer {
	return networkfake.NewSubnetsServerTransport(&networkfake.SubnetsServer{Get: subnetCalls{k, c.nics.subnets}.get})
}

func vnetServer(c *Cloud, k *call) doer {
	return networkfake.NewVirtualNetworksServerTransport(&networkfake.VirtualNetworksServer{NewListUsagePager: subnetCalls{k, c.nics.subnets}.listUsage})
}

func diskServer(c *Cloud, k *call) doer {
	disks := diskCalls{k, c.disks}
	return computefake.NewDisksServerTransport(&computefake.DisksServer{BeginCreateOrUpdate: disks.put, Get: disks.get, BeginDelete: disks.delete})
}

func sizeServer(_ *Cloud, k *call) doer {
	return computefake.NewResourceSKUsServerTransport(&computefake.ResourceSKUsServer{NewListPager: catalogCalls{k}.listSizes})
}

func imageServer(_ *Cloud, k *call) doer {
	return computefake.NewGalleryImagesServerTransport(&computefake.GalleryImagesServer{NewListByGalleryPager: catalogCalls{k}.listImages})
}

func versionServer(_ *Cloud, k *call) doer {
	return computefake.NewGalleryImageVersionsServerTransport(&computefake.GalleryImageVersionsServer{NewListByGalleryImagePager: catalogCalls{k}.listVersions})
}

func operationServer(_ *Cloud, k *call) doer { return operationCall{k} }

func parse[T any, P interface {
	*T
	json.Marshaler
}](b []byte) (json.Marshaler, error) {
	p := P(new(T))
	err := json.Unmarshal(b, p)
	return p, err
}

// maxBody is how long a request may be ("Request size limits", ARM: 4 MB).
const maxBody = 4 << 20

// strict refuses members of the body that the API's description does not have:
// the SDK's types drop them.
func (k *call) strict() *Refusal {
	if k.route.reparse == nil {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(k.r.Body, maxBody))
	if err != nil {
		return refuse(http.StatusBadRequest, "InvalidRequestContent", "%v", err)
	}
	k.r.Body = io.NopCloser(bytes.NewReader(body))
	typed, err := k.route.reparse(body)
	if err != nil {
		return refuse(http.StatusBadRequest, "InvalidRequestContent", "%v", err)
	}
	again, err := json.Marshal(typed)
	if err != nil {
		return refuse(http.StatusBadRequest, "InvalidRequestContent", "%v", err)
	}
	var sent, kept any
	if json.Unmarshal(body, &sent) != nil || json.Unmarshal(again, &kept) != nil {
		return refuse(http.StatusBadRequest, "InvalidRequestContent", "The request content is not JSON.")
	}
	if path := missing(sent, kept, ""); path != "" {
		return refuse(http.StatusBadRequest, "InvalidRequestContent", "Could not find member '%s'.", strings.TrimPrefix(path, "."))
	}
	return nil
}

// missing returns the path of a member of sent that kept does not have.
func missing(sent, kept any, path string) string {
	switch sent := sent.(type) {
	case map[string]any:
		other, _ := kept.(map[string]any)
		for name, v := range sent {
			if _, ok := other[name]; !ok && v != nil {
				return path + "." + name
			}
			if p := missing(v, other[name], path+"."+name); p != "" {
				return p
			}
		}
	case []any:
		other, _ := kept.([]any)
		for i, v := range sent {
			if i < len(other) {
				if p := missing(v, other[i], path); p != "" {
					return p
				}
			}
		}
	}
	return ""
}
