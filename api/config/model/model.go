// Package model gives the facts of a machine that labels and label rules are made
// of: the short model that people call a GPU by, the memory size it is sold with,
// which model a node has most of, what its fabric is.
//
// It only looks at a machine's values, and never at hardware.
package model

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// Group is all GPUs of one product.
type Group struct {
	// Product is NVML's name, which the GPUs share.
	Product string
	// GPUs are in the machine's order; at least one.
	GPUs []machine.GPU
}

// Groups sorts GPUs by product: the most numerous first, ties by name, so that
// equal machines give equal answers whatever their order. A GPU that no longer
// reports its name counts with the others if those are of one product, and is
// left out if they are of several.
func Groups(gpus []machine.GPU) []Group {
	var groups []Group
	var nameless []machine.GPU
	for i := range gpus {
		if wellknown.Value(gpus[i].Product) == "" {
			nameless = append(nameless, gpus[i])
			continue
		}
		at := slices.IndexFunc(groups, func(g Group) bool { return g.Product == gpus[i].Product })
		if at < 0 {
			at = len(groups)
			groups = append(groups, Group{Product: gpus[i].Product})
		}
		groups[at].GPUs = append(groups[at].GPUs, gpus[i])
	}
	if len(groups) == 1 {
		groups[0].GPUs = append(groups[0].GPUs, nameless...)
	}
	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(len(b.GPUs), len(a.GPUs)), strings.Compare(a.Product, b.Product))
	})
	return groups
}

// Name returns the model in a product's name, fit for a label value: H100 of
// "NVIDIA H100 80GB HBM3", A100 of "NVIDIA A100-SXM4-80GB", RTX-4090 of
// "NVIDIA GeForce RTX 4090". A name of another form is kept as it is.
func Name(product string) string {
	words := strings.Fields(product)
	for len(words) > 1 && brand(words[0]) {
		words = words[1:]
	}
	if len(words) == 0 {
		return ""
	}
	if !series(words[0]) {
		head, _, _ := strings.Cut(words[0], "-")
		if strings.ContainsAny(head, "0123456789") {
			return wellknown.Value(head)
		}
	}
	if end := slices.IndexFunc(words[1:], edition); end >= 0 {
		words = words[:end+1]
	}
	return wellknown.Value(strings.Join(words, " "))
}

// brand reports whether a word stands before the model.
func brand(word string) bool {
	switch strings.ToLower(word) {
	case "nvidia", "tesla", "grid", "geforce", "quadro", "amd", "instinct", "metax", "intel":
		return true
	}
	return false
}

// series reports whether a first word is only a part of the model.
func series(word string) bool {
	switch strings.ToUpper(word) {
	case "RTX", "GTX", "TITAN", "PRO":
		return true
	}
	return false
}

// edition reports whether a word follows a workstation model's name and is no
// part of it.
func edition(word string) bool {
	switch strings.ToLower(word) {
	case "generation", "blackwell", "server", "workstation", "edition", "laptop", "gpu", "with":
		return true
	}
	_, size := sizeOf(word)
	return size
}

// NVLink reports whether the GPUs of a group are of the kind that communicates by
// NVLink: one active link or a place in an NVLink fabric is enough, so that a
// fault on some of them does not rename the others. The form factor SXM
// decides too, while no link is up.
func (g Group) NVLink() bool {
	return strings.Contains(strings.ToUpper(g.Product), "SXM") ||
		slices.ContainsFunc(g.GPUs, func(gpu machine.GPU) bool { return len(gpu.NVLinks) > 0 || gpu.Fabric != nil })
}

// linkKind returns the name of the links of the group.
func (g Group) linkKind() string {
	return most(g.GPUs, func(gpu machine.GPU) string { return gpu.LinkKind() })
}

// MemoryMiB returns the memory of one GPU of the group in MiB: the most frequent
// value, ties to the larger, without GPUs that no longer report it. 0 is unknown.
func (g Group) MemoryMiB() int64 {
	return most(g.GPUs, func(gpu machine.GPU) int64 { return gpu.MemoryMiB })
}

// Architecture returns the group's generation in lower case; empty is unknown.
func (g Group) Architecture() string {
	return most(g.GPUs, func(gpu machine.GPU) string { return gpu.Architecture })
}

// ComputeCapability returns the group's, as "9.0"; empty is unknown.
func (g Group) ComputeCapability() string {
	return most(g.GPUs, func(gpu machine.GPU) string { return gpu.ComputeCapability })
}

// most returns the most frequent value that is not zero, ties to the larger.
func most[T cmp.Ordered](gpus []machine.GPU, value func(machine.GPU) T) T {
	counts := map[T]int{}
	for i := range gpus {
		count(counts, value(gpus[i]))
	}
	return Mode(counts)
}

// count counts what is known: the zero value is not.
func count[T comparable](counts map[T]int, v T) {
	var zero T
	if v != zero {
		counts[v]++
	}
}

// Mode returns the most frequent value, ties to the larger.
func Mode[T cmp.Ordered](counts map[T]int) (best T) {
	for v, n := range counts {
		if n > counts[best] || n == counts[best] && v > best {
			best = v
		}
	}
	return best
}

// Memory returns the size that a GPU is sold with, such as 80GB, from its product
// name and the MiB that NVML reports. Empty means unknown.
//
// A size in the name wins, if it is the GPU's: a GH200 names the memory of its
// CPU ("NVIDIA GH200 480GB" has 97871 MiB). Otherwise it is the smallest size on
// the market that is not less: a board with ECC reports less than it is sold with.
func Memory(product string, mib int64) string {
	gib := float64(mib) / 1024
	for _, word := range strings.FieldsFunc(product, func(r rune) bool { return r == ' ' || r == '-' }) {
		size, ok := sizeOf(word)
		if ok && (mib == 0 || float64(size) >= gib*0.97 && float64(size) <= gib*1.15) {
			return strconv.Itoa(size) + "GB"
		}
	}
	if mib <= 0 {
		return ""
	}
	for _, size := range sold() {
		// One percent of slack: a few boards report a little more.
		if float64(size)*1.01 >= gib {
			return strconv.Itoa(size) + "GB"
		}
	}
	return strconv.FormatFloat(math.Ceil(gib), 'f', 0, 64) + "GB"
}

// sizeOf reads "80GB".
func sizeOf(word string) (size int, ok bool) {
	digits, unit := strings.CutSuffix(strings.ToUpper(word), "GB")
	size, err := strconv.Atoi(digits)
	return size, unit && err == nil && size > 0
}

// sold returns the sizes of memory, in GB, that accelerators come with.
func sold() []int {
	return []int{
		1, 2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 72, 80, 94, 96, 128, 141, 144, 180, 186, 192, 256,
		288,
	}
}
