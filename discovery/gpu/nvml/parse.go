package nvml

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
)

// parseBusID turns NVML's 00000000:18:00.0, with eight digits of domain in
// upper case, into sysfs' 0000:18:00.0.
func parseBusID(s string) (string, error) {
	a, err := machine.ParseAddress(s)
	if err != nil {
		return "", fmt.Errorf("bus ID: %w", err)
	}
	return a.String(), nil
}

// cudaVersion spells nvmlSystemGetCudaDriverVersion: 1000 * major + 10 * minor.
func cudaVersion(v int) string {
	return fmt.Sprintf("%d.%d", v/1000, v%1000/10)
}

// architecture returns the generation of a compute capability, in the words of
// gpu-feature-discovery's nvidia.com/gpu.family, so that it works with libraries
// older than the GPU: CUDA programming guide, compute capabilities. There are
// no 4.x.
func architecture(major, minor int) string {
	switch {
	case major == 7 && minor >= 5:
		return "turing"
	case major == 8 && minor >= 9:
		return "ada-lovelace"
	case major >= 10 && major < 13:
		return "blackwell"
	}
	name := map[int]string{
		1: "tesla", 2: "fermi", 3: "kepler", 5: "maxwell", 6: "pascal", 7: "volta", 8: "ampere", 9: "hopper", 13: "rubin",
	}[major]
	return cmp.Or(name, "undefined")
}

// migProfile returns the field's name for the shape of an instance. NVML appends it
// to the GPU's name ("NVIDIA A100-SXM4-40GB MIG 1g.5gb"); else it is made from
// slices and memory as NVIDIA's go-nvlib does: the instance's share of the GPU
// in eighths, of the GPU's memory in whole GiB.
func migProfile(name string, compute, gpu int, memoryMiB, totalMiB int64) string {
	if _, profile, ok := strings.Cut(name, " MIG "); ok && profile != "" {
		return profile
	}
	if totalMiB <= 0 {
		return ""
	}
	eighths := math.Round(float64(memoryMiB) / float64(totalMiB) * 8)
	gb := int(math.Round(eighths / 8 * float64((totalMiB+1023)/1024)))
	if compute != gpu {
		return fmt.Sprintf("%dc.%dg.%dgb", compute, gpu, gb)
	}
	return fmt.Sprintf("%dg.%dgb", gpu, gb)
}

// sumLinks gives the links to each peer their speed together, sorted by peer;
// mbps is the bandwidth of one in one direction, 0 if unknown.
func sumLinks(count map[string]int, mbps int64) []machine.NVLink {
	list := make([]machine.NVLink, 0, len(count))
	for peer, n := range count {
		link := machine.NVLink{Peer: peer, Links: n}
		if mbps > 0 {
			link.MBps = new(mbps * int64(n))
		}
		list = append(list, link)
	}
	slices.SortFunc(list, func(a, b machine.NVLink) int { return machine.ComparePCI(a.Peer, b.Peer) })
	return list
}

// uuid spells a fabric's cluster UUID as nvidia-smi does.
func uuid(b [16]uint8) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
