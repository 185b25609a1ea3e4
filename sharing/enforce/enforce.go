// Package enforce makes the limits of a share hold: the memory and the compute
// that a container has of a GPU.
//
// It owns the enforcers (none, preload, mps, dmem, evict), the choice between them,
// what each adds to a container's CDI spec, and what each needs on the node:
// copies of the administrator's library, shared regions, MPS control daemons.
// Limits are CDI edits, which replace what the pod's owner wrote. The
// package chooses no GPUs and keeps no allocations: its callers pass them to
// [Limiter.Keep]. It contains no library. It never falls back to a
// weaker enforcer than the one that was chosen: it rejects the container.
//
// docs/concepts/enforcers.md has what each enforcer withstands, and what it does not.
package enforce

import (
	"context"
	"errors"
	"fmt"
	"strings"

	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// ErrNotReady means that an enforcer is not ready for a container yet. The
// caller may retry a moment later.
var ErrNotReady = errors.New("not ready")

// Enforced names the enforcer of each limit.
type Enforced struct {
	Memory  config.Enforcer `json:"memory,omitempty"`
	Compute config.Enforcer `json:"compute,omitempty"`
}

// GPU is a GPU that a container has a share of.
type GPU struct {
	Share allocation.Share
	// Index is the driver's number, for people.
	Index int
	// PCI is the address, and Maker the maker's domain; empty for NVIDIA's.
	PCI, Maker string
	// TotalMiB is the GPU's whole memory.
	TotalMiB int64
}

// exclusive reports whether the container has the GPU exclusively, with all its memory: then no
// limit is needed, and no other pod needs protection.
func (c *GPU) exclusive() bool {
	return c.Share.VCore >= quota.Whole && (c.TotalMiB > 0 && c.Share.MemoryMiB >= c.TotalMiB || c.unknownMemory())
}

// unknownMemory reports whether the GPU reports no memory. It takes one container, which has all of it.
func (c *GPU) unknownMemory() bool { return c.TotalMiB == 0 && c.Share.MemoryMiB == 0 }

// Limit is the limit of one container.
type Limit struct {
	// Pod is the pod's UID, Container the container's name in it; the names of
	// files are made of both.
	Pod, Container string
	Policy         quota.Policy
	// GPUs are in the order in which the container's CUDA counts them, by PCI
	// address.
	GPUs []GPU
	// UID is runAsUser of the container, else of the pod; nil if the image
	// decides, which is taken for root.
	UID *int64
	// Priority is the pod's; 0 without a PriorityClass.
	Priority int32
	// By is the result of an earlier [Limiter.Edits] of this container: a container
	// keeps its enforcers when the configuration changes. Zero for a new one.
	By Enforced
}

// NotEnforced lists the parts of the shares that are counted and not limited:
// memory, compute. It is empty for exclusive GPUs and for a container that has not
// started; best-effort and a vcore of 0 have no limit of compute.
func (l *Limit) NotEnforced() []string {
	if l.By == (Enforced{}) {
		return nil
	}
	var memory, compute bool
	for i := range l.GPUs {
		c := &l.GPUs[i]
		memory = memory || l.By.Memory == config.EnforceNone && !c.exclusive() && !c.unknownMemory()
		limited := l.Policy != quota.BestEffort && 0 < c.Share.VCore && c.Share.VCore < quota.Whole
		compute = compute || limited && l.By.Compute == config.EnforceNone
	}
	var all []string
	if memory {
		all = append(all, "memory")
	}
	if compute {
		all = append(all, "compute")
	}
	return all
}

// key identifies the container.
func (l *Limit) key() string { return l.Pod + "_" + l.Container }

// percent returns the compute limit of a GPU under the policy: burst-share and best-effort may use
// idle compute.
func (l *Limit) percent(c *GPU) int {
	if l.Policy != quota.FixedShare && l.Policy != "" || c.Share.VCore <= 0 {
		return quota.Whole
	}
	return min(c.Share.VCore, quota.Whole)
}

// enforcer is one kind of enforcement.
type enforcer interface {
	// edits prepares the node for a container that is about to start, and returns
	// what the container needs of the enforcer. It is called again for
	// each start.
	edits(ctx context.Context, l *Limit, s *settings) (*cdi.ContainerEdits, error)
}

// check rejects values that no enforcer can use: these values become names of
// files, and 0 means "no limit" to their readers.
func (l *Limit) check(memory bool) error {
	switch {
	case !fileName(l.Pod) || !fileName(l.Container):
		return fmt.Errorf("limit of container %q of pod %q: no names for files", l.Container, l.Pod)
	case len(l.GPUs) == 0:
		return fmt.Errorf("limit of container %s: no GPUs", l.Container)
	}
	var errs []error
	for i := range l.GPUs {
		c := &l.GPUs[i]
		if !fileName(c.Share.UUID) {
			errs = append(errs, fmt.Errorf("GPU %d: invalid UUID %q", c.Index, c.Share.UUID))
		}
		if memory && c.Share.MemoryMiB <= 0 {
			errs = append(errs, fmt.Errorf("GPU %d: its memory is not known, so no limit can hold", c.Index))
		}
	}
	return errors.Join(errs...)
}

// fileName reports whether a word can be the name of a file: a pod's UID (in a
// static pod's, a hash), a container's name, a GPU's UUID.
func fileName(word string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-."
	return word != "" && len(word) <= 100 && word[0] != '.' && strings.Trim(word, allowed) == ""
}
