// Package model parses NVML's product names: the short model people
// call a GPU by, the memory size it is sold with, and which model a node has
// most of.
//
// It only looks at text and numbers, and never at hardware.
package model

import (
	"cmp"
	"slices"
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

// Name is the model in a product's name, fit for a label value: H100 of
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

// MemoryMiB is the memory of one GPU of the group in MiB: the most frequent
// value, ties to the larger, without GPUs that no longer report it. 0 is unknown.
func (g Group) MemoryMiB() int64 {
	return most(g.GPUs, func(gpu machine.GPU) int64 { return gpu.MemoryMiB })
}

// Architecture is the group's generation in lower case; empty is unknown.
func (g Group) Architecture() string {
	return most(g.GPUs, func(gpu machine.GPU) string { return gpu.Architecture })
}

// ComputeCapability is the group's, as "9.0"; empty is unknown.
func (g Group) ComputeCapability() string {
	return most(g.GPUs, func(gpu machine.GPU) string { return gpu.ComputeCapability })
}

// most is the most frequent value that is not zero, ties to the larger.
func most[T cmp.Ordered](gpus []machine.GPU, value func(machine.GPU) T) T {
	counts := map[T]int{}
	for i := range gpus {
		count(counts, value(gpus[i]))
	}
	return mode(counts)
}
