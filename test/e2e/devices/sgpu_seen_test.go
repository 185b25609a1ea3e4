//go:build e2e && linux

package devices

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	apinames "github.com/heddle-dev/heddle/api/wellknown"
)

// slice is what a container should have of a card, whichever it is.
func slice(vcore, gib int) allocation.Share {
	return allocation.Share{VCore: vcore, MemoryMiB: int64(gib) * 1024}
}

// boundTo is what a pod's annotation contains.
func boundTo(p *corev1.Pod) (*allocation.Bound, error) {
	text, ok := p.Annotations[apinames.SGPUBound]
	if !ok {
		return nil, errors.New("it has no annotation " + apinames.SGPUBound)
	}
	return allocation.ParseBound(text)
}

// waitBound waits until a pod's annotation names a container.
func (r *rig) waitBound(t *testing.T, pod, container string) allocation.Sharing {
	t.Helper()
	var got allocation.Sharing
	r.waitPod(t, pod, func(p *corev1.Pod) string {
		b, err := boundTo(p)
		if err != nil {
			return err.Error()
		}
		var ok bool
		if got, ok = b.Containers[container]; !ok {
			return apinames.SGPUBound + " does not name container " + container
		}
		return ""
	})
	return got
}

// hasShares fails the test unless a container sees exactly the cards that all
// others report for it: it can open them and no other, its environment and its
// file name them with the shares, and so does its pod's annotation. The shares
// are as wanted, by amount.
func (r *rig) hasShares(t *testing.T, pod, container string, want ...allocation.Share) []allocation.Share {
	t.Helper()
	s := r.has(t, pod, container, len(want), 0)
	given, err := s.shares()
	if err != nil {
		t.Errorf("%s/%s: %v", pod, container, err)
	}
	if err := sameAmounts(given, want); err != nil {
		t.Errorf("%s/%s: %v", pod, container, err)
	}
	if len(want) == 0 {
		return nil
	}
	bound := r.waitBound(t, pod, container)
	if diff := cmp.Diff(given, byGPU(bound.Shares)); diff != "" {
		t.Errorf("%s/%s: shares (-in the container +annotation):\n%s", pod, container, diff)
	}
	return given
}

func byGPU(all []allocation.Share) []allocation.Share {
	return slices.SortedFunc(slices.Values(all), func(a, b allocation.Share) int { return strings.Compare(a.UUID, b.UUID) })
}

// sameAmounts compares without cards, or with those that are wanted.
func sameAmounts(given, want []allocation.Share) error {
	if len(given) != len(want) {
		return fmt.Errorf("it has shares %v, want %v", given, want)
	}
	for i := range want {
		w := want[i]
		if w.UUID == "" {
			w.UUID = given[i].UUID
		}
		if given[i] != w {
			return fmt.Errorf("it has shares %v, want %v", given, want)
		}
	}
	return nil
}
