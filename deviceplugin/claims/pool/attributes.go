package pool

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// This file has what the API shows of a device: its name, attributes and capacity.

func (b *builder) gpuAttributes(at int) attributes {
	g := &b.m.GPUs[at]
	all := attributes{
		claims.AttributeUUID: text(g.UUID), claims.AttributeProduct: text(g.Product),
	}
	if g.Architecture != "" {
		all[claims.AttributeArchitecture] = text(g.Architecture)
	}
	if version := b.m.DriverOf(g.Vendor).Version; version != "" {
		all[claims.AttributeDriver] = text(version)
	}
	if g.Fabric != nil && g.Fabric.State == machine.FabricCompleted {
		all[claims.AttributeClique] = text(fmt.Sprintf("%s.%d", g.Fabric.ClusterUUID, g.Fabric.CliqueID))
	}
	if b.zones[at] > 0 {
		all[claims.AttributeNVLink] = number(b.zones[at])
	}
	b.place(all, g.PCI)
	return all
}

// place adds the attributes of a PCI function that all drivers spell alike. The kernel's -1 for an unknown
// NUMA node is left out.
func (b *builder) place(all attributes, pci string) {
	f := b.m.Function(pci)
	if f == nil {
		return
	}
	all[deviceattribute.StandardDeviceAttributePCIBusID] = text(pci)
	if f.Root != "" {
		all[deviceattribute.StandardDeviceAttributePCIeRoot] = text(f.Root)
	}
	if f.NUMA != nil {
		all[deviceattribute.StandardDeviceAttributeNUMANode] = number(*f.NUMA)
	}
}

// capacity returns what claims may take of a GPU. A claim that names no amount takes all.
func capacity(g *machine.GPU) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	part := func(all, least resource.Quantity) resourceapi.DeviceCapacity {
		return resourceapi.DeviceCapacity{Value: all, RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default: &all, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &least, Max: &all, Step: &least},
		}}
	}
	all := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		claims.CapacityVCore: part(
			*resource.NewQuantity(quota.Whole, resource.DecimalSI), *resource.NewQuantity(1, resource.DecimalSI)),
	}
	if g.MemoryMiB > 0 {
		all[claims.CapacityVMemory] = part(*mebibytes(g.MemoryMiB), *mebibytes(1))
	}
	return all
}

func mebibytes(n int64) *resource.Quantity { return resource.NewQuantity(n<<20, resource.BinarySI) }

// attributes are those that selectors see of a device.
type attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

// maxValue is the longest value of an attribute.
const maxValue = resourceapi.DeviceAttributeMaxValueLength

func text(s string) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{StringValue: new(s[:min(len(s), maxValue)])}
}

func number(n int) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{IntValue: new(int64(n))}
}

// of returns a copy of attributes for a device of a type.
func (a attributes) of(t claims.Type) attributes {
	own := maps.Clone(a)
	own[claims.AttributeType] = text(string(t))
	return own
}

// maxName is the longest name of a device, a DNS label.
const maxName = 63

// name returns the name of a device, by a UUID or the identity of an HCA: never by an index, which another GPU
// has after a reboot.
func name(t claims.Type, id string) string {
	for _, prefix := range []string{"GPU-", "MIG-"} {
		id = strings.TrimPrefix(id, prefix)
	}
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, strings.ToLower(id))
	whole := string(t) + "-" + strings.Trim(clean, "-")
	if len(whole) <= maxName {
		return whole
	}
	const digits = 8
	sum := sha256.Sum256([]byte(id))
	return whole[:maxName-digits-1] + "-" + hex.EncodeToString(sum[:])[:digits]
}
