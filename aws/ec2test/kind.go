package ec2test

import (
	"strconv"
	"strings"
)

// The parameters of DescribeInstanceTypes (its model).
const (
	maxTypeNames = 100
	maxTypePage  = 100
)

type typesInput struct {
	listInput
	InstanceTypes []string `q:"InstanceType"`
}

type typesOutput struct {
	Types     []typeItem `xml:"instanceTypeSet>item"`
	NextToken string     `xml:"nextToken,omitempty"`
}

type typeItem struct {
	Name       string   `xml:"instanceType"`
	Current    bool     `xml:"currentGeneration"`
	FreeTier   bool     `xml:"freeTierEligible"`
	Usages     []string `xml:"supportedUsageClasses>item"`
	BareMetal  bool     `xml:"bareMetal"`
	Hypervisor string   `xml:"hypervisor"`
	Processor  struct {
		Archs []string `xml:"supportedArchitectures>item"`
	} `xml:"processorInfo"`
	VCPU struct {
		Count int `xml:"defaultVCpus"`
	} `xml:"vCpuInfo"`
	Memory struct {
		MiB int `xml:"sizeInMiB"`
	} `xml:"memoryInfo"`
	Network struct {
		Interfaces int `xml:"maximumNetworkInterfaces"`
		Addresses  int `xml:"ipv4AddressesPerInterface"`
	} `xml:"networkInfo"`
	Hibernation bool `xml:"hibernationSupported"`
	Burstable   bool `xml:"burstablePerformanceSupported"`
}

func (t InstanceType) usages() []string {
	if t.NoSpot {
		return []string{"on-demand"}
	}
	return []string{"on-demand", "spot"}
}

func (t InstanceType) hypervisor() string {
	if t.Xen {
		return "xen"
	}
	return "nitro"
}

func (t InstanceType) item() typeItem {
	out := typeItem{
		Name: t.Name, Current: true, Usages: t.usages(), Hypervisor: t.hypervisor(), Hibernation: t.Hibernation, Burstable: strings.HasPrefix(t.Name, "t"),
	}
	out.Processor.Archs, out.VCPU.Count, out.Memory.MiB = t.Archs, t.VCPUs, t.MemoryMiB
	out.Network.Interfaces, out.Network.Addresses = t.Interfaces, t.AddressesPerInterface
	return out
}

func (v *inventory) describeInstanceTypes(_ call, in *typesInput) (*typesOutput, error) {
	if len(in.InstanceTypes) > maxTypeNames {
		return nil, invalid("At most %d instance types can be named", maxTypeNames)
	}
	var all []entry[typeItem]
	for _, t := range v.o.Catalog.Types {
		all = append(all, entry[typeItem]{t.Name, filterable{
			"instance-type": {t.Name}, "processor-info.supported-architecture": t.Archs, "supported-usage-class": t.usages(),
			"hypervisor": {t.hypervisor()}, "hibernation-supported": {strconv.FormatBool(t.Hibernation)},
		}, nil, t.item()})
	}
	items, next, err := list(v.o, in.listInput, listing{
		filters: []string{"instance-type", "processor-info.supported-architecture", "supported-usage-class", "hypervisor", "hibernation-supported"},
		asked:   in.InstanceTypes, notFound: func(name string) error {
			return refuse("InvalidInstanceType", "The following supplied instance types do not exist: [%s]", name)
		},
		least: minPage, most: maxTypePage,
	}, all)
	return &typesOutput{items, next}, err
}
