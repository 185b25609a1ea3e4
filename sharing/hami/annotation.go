package hami

import (
	"cmp"
	"math"
	"slices"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// GPU is one shared GPU and what is taken of it.
type GPU struct {
	quota.GPU
	// BDF is the PCI address, Model the product's name; "" is unknown.
	BDF, Model string
}

// Annotation is the value of [wellknown.HAMiCards]: the GPUs by Index, because
// HAMi takes the place in the list for the index. If open is false, every GPU is
// unhealthy.
func Annotation(gpus []GPU, open bool) string {
	sorted := slices.SortedStableFunc(slices.Values(gpus), func(a, b GPU) int { return cmp.Compare(a.Index, b.Index) })
	list := make(allocation.HAMiNode, 0, len(sorted))
	for i := range sorted {
		list = append(list, entry(&sorted[i], open))
	}
	return list.String()
}

func entry(c *GPU, open bool) allocation.HAMiGPU {
	one := allocation.HAMiGPU{
		UUID: c.UUID, BDF: c.BDF, Model: c.Model,
		TotalDevCount: limit(c.Slots), TotalCompute: quota.Whole, TotalVRam: limit(c.MemoryMiB),
		AvailableDevCount: limit(c.Slots - c.Consumers), AvailableCompute: limit(quota.Whole - c.VCore),
		AvailableVRam: limit(c.MemoryMiB - c.UsedMiB),
		NUMA:          c.NUMA, Healthy: c.Unhealthy == "" && open, LinkZone: limit(c.Zone),
	}
	// HAMi expects no policy on a GPU that one consumer has exclusively.
	if c.Consumers > 0 && !c.Exclusive {
		one.QoSPolicy = string(c.Policy)
	}
	return one
}

// limit fits a number into HAMi's fields.
func limit[N int | int64](n N) int32 { return int32(min(max(int64(n), 0), math.MaxInt32)) }

// sameButAvailable reports whether two annotations differ at most in the
// available amounts, which HAMi does not read: it counts pods.
func sameButAvailable(a, b string) bool {
	x, errX := allocation.ParseHAMiNode(a)
	y, errY := allocation.ParseHAMiNode(b)
	return errX == nil && errY == nil && slices.EqualFunc(x, y, func(m, n allocation.HAMiGPU) bool {
		m.AvailableDevCount, m.AvailableCompute, m.AvailableVRam = 0, 0, 0
		n.AvailableDevCount, n.AvailableCompute, n.AvailableVRam = 0, 0, 0
		return m == n
	})
}
